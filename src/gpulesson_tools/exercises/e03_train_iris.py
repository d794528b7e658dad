"""Exercise 3: the loop of five calls, the accuracy, and the run on a device that is made of them."""

from itertools import pairwise

import torch
from torch import nn

from gpulesson_tools.exercises import training
from gpulesson_tools.exercises.contract import Task, kind_of, number_of, same
from gpulesson_tools.exercises.watch import ModelWatch
from gpulesson_tools.exercises.words import COMMON, of_lists, works

EPOCHS, SEED = 3, 7
FIVE = "model", "X_train", "y_train", "X_test", "y_test"


class Model(nn.Sequential):
    """What is in it is watched: so the passes of a ``model.forward(X)`` are seen, and those of one flower."""

    def forward(self, X):
        return self[0](X) if X.ndim > 1 else self[0](X[None])[0]


def new_model(dropout=0.4):
    return Model(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3)))


def train(
    model, X, y, loss_fn, optimizer, epochs,
    *, passes="right", optimizers="given", step="yes", losses_as="numbers", returns="list", **how,
):  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01) if optimizers == "own" else optimizer
    losses, how["returns"] = [], "graph" if losses_as == "tensors" else "number"
    for _ in range(epochs + {"one more": 1, "one less": -1}.get(passes, 0)):
        loss = training.train_step(model, X, y, loss_fn, optimizer, X.device, feed="stays", step=step, **how)
        kept = losses.append(loss)
        losses = kept if losses_as == "lost" and returns != "inside" else losses
        if returns == "inside":
            break
    if step == "once":
        optimizer.step()
    return {"last": losses and losses[-1], "nothing": None}.get(returns, losses)


def observe_train(function, facts):
    torch.manual_seed(0)
    model, (X, y), calls = new_model(dropout=0).cuda(), training.rows(40, 4, seed=1), []
    model.register_forward_hook(lambda *_: calls.append(1))
    optimizer, loss_fn, losses = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), []
    loss_fn.register_forward_hook(lambda *called: losses.append(called[-1].item()))
    results, passes = [], [0]
    facts["trained"] = []

    def train(watch):
        for epochs in (4, 2):
            results.append(function(model, X.cuda(), y.cuda(), loss_fn, optimizer, epochs))
            passes.append(len(watch.training()))
            facts["trained"] = [b - a for a, b in pairwise(passes)]

    watch = training.observe_training(model[0], train, facts)
    lists = [list(each) if hasattr(each, "__len__") and not torch.is_tensor(each) else [] for each in results]
    kinds = {kind_of(value).partition(" on ")[0] for each in lists for value in each}
    facts["optimizers"], facts["called"] = watch.optimizers <= 1, len(calls) >= len(watch.passes)
    facts["kind"] = f"a list: each is {' or '.join(sorted(kinds))}" if kinds else one(results[0], losses[:4])
    facts["count"] = [len(each) for each in lists]
    facts["value"] = [[number_of(value) for value in each] for each in lists]


def one(value, losses):
    """Say what is returned in place of a list of losses."""
    number = number_of(value)
    sums = {"the last loss": losses[-1:], "the sum of the losses": losses}
    sums["the mean of the losses"] = [loss / len(losses) for loss in losses]
    names = (f", {name}" for name, parts in sums.items() if number is not None and same(number, sum(parts)))
    return kind_of(value) + next(names, "")


def accuracy(model, X, y, **switches):
    return training.accuracy(model, [(X, y)], X.device, feed="stays", **switches)


def observe_accuracy(function, facts):
    torch.manual_seed(0)
    model, (X, y) = new_model().cuda(), training.rows(50, 4, seed=2)
    X[0] *= 20  # the largest output of all is this flower's, so its place is a class
    training.observe_test(model[0], lambda: function(model, X.cuda(), y.cuda()), facts)


def run(
    make_model, X_train, y_train, X_test, y_test, device, epochs, seed,
    *, seeded="before", asked="device", stays="nothing", optimizers="own", trained_on="train",
    tested_on="test", tests="trained", returns="number",
):  # fmt: skip
    device = device if asked == "device" else "cuda"
    if seeded != "never":
        torch.manual_seed(seed if seeded == "before" else 0)
    model, sets = make_model(), {"train": (X_train, y_train), "test": (X_test, y_test)}
    sets["both"] = torch.cat([X_train, X_test]), torch.cat([y_train, y_test])
    five = zip(FIVE, (model, *sets[trained_on], *sets[tested_on]), strict=True)
    _, *parts = (each if stays in (name, "everything") else each.to(device) for name, each in five)
    changed = nn.Linear(2, 2) if optimizers == "another" else model
    optimizer = torch.optim.Adam(changed.parameters(), lr=0.01)
    train(model, *parts[:2], nn.CrossEntropyLoss(), optimizer, epochs)
    if tests == "another":
        model = make_model().to(next(model.parameters()).device)
    result = accuracy(model, *parts[2:])
    return None if returns == "nothing" else result


def observe_run(function, facts):
    train, test, watches, seeds = training.rows(40, 4, seed=3), training.rows(30, 4, seed=4), [], []

    def make_model():
        model = new_model()
        seeds.append(torch.initial_seed())
        watches.append(ModelWatch(model[0]))
        return model

    torch.manual_seed(5)
    try:
        value = function(make_model, *train, *test, torch.device("cuda"), EPOCHS, SEED)
    finally:
        for each in watches:
            each.close()
        watches.sort(key=lambda each: not each.training())
        watch, *others = watches or [ModelWatch(new_model()[0])]
        found = {SEED: "the one asked for", 5: "not set"}
        facts["seed"] = found.get(seeds[0], "another one") if seeds else "not set"
        facts["another"] = any(each.passes for each in others)
        facts["steps"] = "some" if watch.steps else 0
        if not watch.training():
            watch.passes.clear()  # what was not trained is not tested
        facts |= watch.of_a_run(train, test)
        del facts["order"], facts["idle"]
        if facts["device"] == ["cuda:0"]:
            alone = new_model()
            there = works(lambda: function(lambda: alone, *train, *test, torch.device("cpu"), 1, SEED))
            facts["on the CPU"] = there and not next(alone.parameters()).is_cuda
    of_test, of_train = watch.meaning(value, test, train), watch.meaning(value, train, test)
    if of_test[0].isdigit() and not of_train[0].isdigit():  # both parts were tested
        facts["tested on"], of_test = "the training rows", of_train
    facts["kind"], facts["value"] = kind_of(value), of_test


WORDS = {
    "called": "model.forward(X) was called, and not the model itself.",
    "trained": lambda found, _: (
        f"two calls, with epochs=4 and epochs=2, trained for {found[0]} and {found[1]} epochs."
        if len(found) == 2
        else ""  # the first call has stopped
    ),
    "count": "the number of losses, of two calls,",
    "seed": "the seed, when make_model() was called,",
    "another": "make_model() was called again, and the new model was used, too.",
    "epochs": "the number of epochs",
    "value": "the number returned",
}
OWN = COMMON | {
    "optimizers=own": """train() made its own optimizer, so the one that it was given did nothing.
        Fix: Use the optimizer that the function is given.""",
    "step=once": """step() comes after the loop, so the weights changed once, and not in each epoch.
        Fix: Indent the call, so that it belongs to the loop.""",
    "losses_as=lost": """append changes the list, and returns nothing: after `losses = losses.append(…)` the
        list is gone.
        Fix: Call append, and assign nothing.""",
    "losses_as=tensors": """The losses are tensors, and not numbers. Such a tensor can keep the history that
        it was computed from.
        Fix: Fetch the number of each loss.""",
    "returns=inside": """The function returns in the first round of its loop, so there was one epoch.
        Fix: Take the return out of the loop: it has the indent of `for`.""",
    "seeded=never, fixed": """The seed that the function was given was not set before the model was made, so
        its random weights are others.
        Fix: Set `seed` before the model is made.""",
    "tests=another": """The model that was tested is not the one that was trained, but a new one.
        Fix: Call make_model() once, and use that model for both.""",
    "stays=everything": """Everything stayed on the CPU.
        Fix: Five things have to move: the model, and the features and labels of both parts.""",
} | {
    f"stays={name}": f"""{name} stayed on the CPU.
        Fix: Move it before it is used. Of a tensor, keep what `to` returns: it is a copy."""
    for name in FIVE
}  # fmt: skip

TASKS = (
    Task(
        does="trains for some epochs, and returns their losses",
        reference=train,
        observe=observe_train,
        begin="Make an empty list, then a loop over the epochs with the five calls of the lesson.",
        words=WORDS | {"value": of_lists("the losses")},
        table=OWN,
        only="passes; inputs_as; optimizers=own; zero; backward; step; losses_as; returns=last; "
        "returns=inside; returns=nothing",
    ),
    Task(
        does="returns the share of right answers, from 0 to 1",
        reference=accuracy,
        observe=observe_accuracy,
        begin="Switch to evaluation mode, and compute the outputs without gradients.",
        words=WORDS | {"value": "the accuracy"},
        table=OWN,
        only="test_mode; graph; dim; mean=none; scale; returns=tensor; returns=nothing",
    ),
    Task(
        does="makes a model, trains it on the device, and returns its accuracy on the test flowers",
        reference=run,
        observe=observe_run,
        begin="Set the seed and make the model. Move five things to the device, then make the optimizer.",
        words=WORDS,
        table=OWN,
        only="seeded; asked; optimizers=another; stays; trained_on; tested_on; tests; returns=nothing",
    ),
)
