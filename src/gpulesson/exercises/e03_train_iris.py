"""Exercise 3: the loop of five calls, the accuracy, and the run on a device that is made of them."""

from contextlib import closing
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from gpulesson.exercises import references
from gpulesson.exercises.contract import Task, kind_of, number_of
from gpulesson.exercises.watch import Watch
from gpulesson.exercises.words import COMMON, mistakes, of_lists, works

EPOCHS, SEED = 2, 7
FIVE = "model", "X_train", "y_train", "X_test", "y_test"


class Model(nn.Sequential):
    """What is in it is watched: so the passes of a ``model.forward(X)`` are seen, and those of one flower."""

    def forward(self, X):
        return self[0](X) if X.ndim > 1 else self[0](X[None])[0]


def new_model(dropout=0.4):
    return Model(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3)))


def train(
    model, X, y, loss_fn, optimizer, epochs,
    *, passes="right", calls="model", inputs_as="scores", optimizers="given", zero="before", step="last",
    losses_as="numbers", returns="list",
):  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01) if optimizers == "own" else optimizer
    losses = []
    for _ in range(epochs + {"one more": 1, "one less": -1}.get(passes, 0)):
        outputs = model.forward(X) if calls == "forward" else model(X)
        loss = loss_fn(outputs.softmax(1) if inputs_as == "softmax" else outputs, y)
        if step == "early":
            optimizer.zero_grad()
            optimizer.step()
        references.learn(
            loss, optimizer, zero="never" if step == "early" else zero, step="yes" if step == "last" else "no"
        )
        so_far = losses[-1] if losses_as == "sums" and losses else 0
        kept = losses.append(loss if losses_as == "tensors" else loss.item() + so_far)
        losses = kept if losses_as == "lost" and returns != "inside" else losses
        if returns == "inside":
            break
    if step == "once":
        optimizer.step()
    return {"last": losses and losses[-1], "nothing": None}.get(returns, losses)


def observe_train(function, facts):
    torch.manual_seed(0)
    model, (X, y), calls = new_model(dropout=0).cuda(), references.rows(40, 4, seed=1), []
    model.register_forward_hook(lambda *_: calls.append(1))
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
    results, trained = [], [0]
    with closing(Watch(model[0])) as watch:
        for epochs in (3, EPOCHS):
            results.append(function(model, X.cuda(), y.cuda(), loss_fn, optimizer, epochs))
            trained.append(len(watch.training()))
    lists = [list(each) if hasattr(each, "__len__") and not torch.is_tensor(each) else [] for each in results]
    kinds = {kind_of(value).partition(" on ")[0] for each in lists for value in each}
    updates = watch.updates()
    facts["called"] = len(calls) == len(watch.passes)
    facts["train modes"] = sorted({each["training"] for each in watch.passes})
    facts["trained"] = [b - a for a, b in pairwise(trained)]
    facts["stale"], facts["steps"] = watch.stale, watch.steps
    facts["optimizers"] = watch.optimizers <= 1
    facts["updates"] = "each" if updates >= watch.steps > 0 else "some" if updates else "never"
    facts["left"] = watch.steps > 0 and not updates and any(p.grad is not None for p in model.parameters())
    facts["kind"] = f"a list: each is {' or '.join(sorted(kinds))}" if kinds else kind_of(results[0])
    facts["count"] = [len(each) for each in lists]
    facts["value"] = [[number_of(value) for value in each] for each in lists]
    facts["weights"] = watch.weights()


def accuracy(model, X, y, **switches):
    return references.accuracy(model, [(X, y)], X.device, feed="stays", **switches)


def observe_accuracy(function, facts):
    torch.manual_seed(0)
    model, (X, y) = new_model().cuda(), references.rows(50, 4, seed=2)
    X[0] *= 20  # the largest output of all is this flower's, so its place is a class
    with closing(Watch(model[0])) as watch:
        try:
            value = function(model, X.cuda(), y.cuda())
        finally:
            facts |= watch.of_a_test()
    facts["kind"], facts["value"] = kind_of(value), number_of(value)


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
    train, test, watches, seeds = references.rows(40, 4, seed=3), references.rows(30, 4, seed=4), [], []

    def make_model():
        model = new_model()
        seeds.append(torch.initial_seed())
        watches.append(Watch(model[0]))
        return model

    torch.manual_seed(5)
    try:
        value = function(make_model, *train, *test, torch.device("cuda"), EPOCHS, SEED)
    finally:
        for each in watches:
            each.close()
        watches.sort(key=lambda each: not each.training())
        watch, *others = watches or [Watch(new_model()[0])]
        found = {SEED: "the one asked for", 5: "not set"}
        facts["seed"] = found.get(seeds[0], "another one") if seeds else "not set"
        facts["another"] = any(each.passes for each in others)
        facts["steps"] = "some" if watch.steps else 0
        if not watch.training():
            watch.passes.clear()  # what was not trained is not tested
        facts |= watch.of_a_run(train, test)
        del facts["order"], facts["idle"]
        if facts["device"] == ["cuda:0"]:
            facts["on the CPU"] = on_the_cpu(function, (*train, *test))
    of_test, of_train = watch.meaning(value, test, train), watch.meaning(value, train, test)
    if of_test[0].isdigit() and not of_train[0].isdigit():  # both parts were tested
        facts["tested on"], of_test = "the training rows", of_train
    facts["kind"], facts["value"] = kind_of(value), of_test


def on_the_cpu(function, flowers):
    """Return whether it computes on the CPU, if that is the device."""
    models = []

    def make_model():
        models.append(new_model())
        return models[0]

    works_there = works(lambda: function(make_model, *flowers, torch.device("cpu"), 1, SEED))
    return works_there and not next(models[0].parameters()).is_cuda


WORDS = {
    "called": "model.forward(X) was called.",
    "trained": lambda found, _: (
        f"two calls, with epochs=3 and epochs={EPOCHS}, trained for {found[0]} and {found[1]} epochs."
    ),
    "stale": "gradients of an earlier epoch were still there.",
    "left": "at the end there are gradients that were never used.",
    "count": "the number of losses, of two calls,",
    "seed": "the seed, when make_model() was called,",
    "another": "make_model() was called again, and the new model was used, too.",
    "epochs": "the number of epochs",
    "value": "the number returned",
}
OWN = mistakes(
    """
optimizers=own
train() made an optimizer of its own, so the one that it was given did nothing.
Fix: Use the optimizer that the function is given.
    optimizer.step()

calls=forward
model.forward(X) was called. It skips the hooks of the model.
Fix: Call the model itself.
    outputs = model(X)

step=early
step() came before backward(), so it had no gradients to work with.
Fix: First compute the gradients, then use them.
    loss.backward()
    optimizer.step()

step=once
step() comes after the loop, so the weights changed once, and not in each epoch.
Fix: Indent the call, so that it belongs to the loop.
    optimizer.step()

losses_as=lost
append changes the list, and returns nothing: after `losses = losses.append(…)` the list is gone.
Fix: Call append, and assign nothing.
    losses.append(loss.item())

losses_as=sums
Each number is the sum of all losses so far.
Fix: Append the loss of the epoch itself.

losses_as=tensors
The losses are tensors, and not numbers. Such a tensor can keep the history that it was computed from.
Fix: Fetch the number of each loss.

returns=last
Only the last loss was returned.
Fix: Collect the losses in a list that is made before the loop, and return the list.

returns=inside
The function returns in the first round of its loop, so there was one epoch.
Fix: Take the return out of the loop: it has the indent of `for`.
    return losses

test_mode=as it is
The model was in training mode at the test. A layer such as dropout then sets some numbers to 0, at random.
Fix: Switch the model to evaluation mode before the test.
    model.eval()

mean=classes
The number of right answers was divided by the number of classes.
Fix: Divide it by the number of flowers.
    return right / len(y)

seeded=never
The seed was not set before the model was made, so its random weights differ in each run.
Fix: Set the seed before the model is made.
    torch.manual_seed(seed)

seeded=fixed
The seed that was set is not the one that the function was given.
Fix: Use the parameter `seed`.

trained_on=test
It was trained on the test flowers, so their accuracy says nothing about new ones.
Fix: Train on the training flowers alone.
    train(model, X_train, y_train, loss_fn, optimizer, epochs)

trained_on=both
It was trained on the test flowers, too, so their accuracy says nothing about new ones.
Fix: Train on the training flowers alone.

tested_on=train
The accuracy is that of the training flowers, which the model has seen.
Fix: Return the accuracy on the test flowers.
    return accuracy(model, X_test, y_test)

tests=another
The model that was tested is not the one that was trained, but a new one.
Fix: Call make_model() once, and use that model for both.
    model = make_model().to(device)

stays=everything
Everything stayed on the CPU.
Fix: Five things have to move: the model, and the features and labels of both parts.
    model.to(device)
    X_train = X_train.to(device)
"""
    + "".join(
        f"""
stays={name}
{name} stayed on the CPU.
Fix: Move it before it is used. Of a tensor, keep what `to` returns: it is a copy.
    {name} = {name}.to(device)
"""
        for name in FIVE
    )
)
own_mistakes = partial(mistakes, common=COMMON + OWN)

TASKS = (
    Task(
        does="trains for some epochs, and returns their losses",
        reference=train,
        observe=observe_train,
        begin="Make an empty list, then a loop over the epochs with the five calls of the lesson.",
        words=WORDS | {"value": of_lists("the losses")},
        mistakes=own_mistakes(
            "passes=one more; passes=one less; calls=forward; inputs_as=softmax; optimizers=own; "
            "zero=never; zero=late; step=never (hides zero=late, optimizers); step=once; "
            "step=early (hides zero); losses_as=tensors; losses_as=sums; losses_as=lost; "
            "returns=last (hides losses_as=sums); "
            "returns=inside (hides passes, step=once, losses_as=lost, losses_as=sums); "
            "returns=nothing (hides losses_as=tensors, losses_as=sums)"
        ),
    ),
    Task(
        does="returns the share of right answers, from 0 to 1",
        reference=accuracy,
        observe=observe_accuracy,
        begin="Switch to evaluation mode, and compute the outputs without gradients.",
        words=WORDS | {"value": "the accuracy"},
        mistakes=own_mistakes(
            "test_mode=as it is; graph=yes; graph=frozen; dim=0; dim=none; "
            "dim=values (hides mean, scale); mean=none; mean=classes; scale=percent; returns=tensor; "
            "returns=nothing (hides mean, scale, dim=none, dim=values)"
        ),
    ),
    Task(
        does="makes a model, trains it on the device, and returns its accuracy on the test flowers",
        reference=run,
        observe=observe_run,
        begin="Set the seed and make the model. Move five things to the device, then make the optimizer.",
        words=WORDS,
        mistakes=own_mistakes(
            "seeded=never; seeded=fixed; asked=cuda; optimizers=another; "
            "stays=everything (hides asked); stays=model; stays=X_train; stays=y_train; stays=X_test; "
            "stays=y_test; trained_on=test; trained_on=both; tested_on=train; "
            "tests=another (hides tested_on, returns); returns=nothing"
        ),
    ),
)
