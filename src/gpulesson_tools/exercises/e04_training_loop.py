"""Exercise 4: one step of training, the accuracy, and the run that is made of them."""

from contextlib import closing

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from gpulesson_tools.exercises.contract import Task, kind_of, number_of
from gpulesson_tools.exercises.training import accuracy, observe_test, observe_training, rows, train_step
from gpulesson_tools.exercises.watch import ModelWatch
from gpulesson_tools.exercises.words import COMMON, of_lists, works

DEVICE, EPOCHS = torch.device("cuda"), 3


def make_model():
    """Return a model in which the mode matters, by its dropout and its batch normalisation."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


# The references: a right solution each, and every keyword switches one mistake on (see contract.py).
# Batches have unequal sizes, so that a mean over batches is not the mean over rows.


def observe_train_step(function, facts):
    model, (inputs, targets), values = make_model().to(DEVICE).eval(), rows(36, 6, seed=1), []
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()

    def train(_):
        for batch in zip(inputs.split(20), targets.split(20), strict=True):
            values.append(function(model, *batch, loss_fn, optimizer, DEVICE))
        return values[0]

    observe_training(model, train, facts)
    facts["value"] = [number_of(value) for value in values]
    on_cpu, batch = make_model(), (inputs[:16], targets[:16])
    optimizer = torch.optim.SGD(on_cpu.parameters())
    facts["on the CPU"] = works(lambda: function(on_cpu, *batch, loss_fn, optimizer, torch.device("cpu")))


def observe_accuracy(function, facts):
    model, (inputs, targets) = make_model().to(DEVICE).train(), rows(50, 6, seed=2)
    batches = list(zip(inputs.split(16), targets.split(16), strict=True))
    observe_test(model, lambda: function(model, batches, DEVICE), facts)
    facts["on the CPU"] = works(lambda: function(make_model(), batches, torch.device("cpu")))


def run(
    model, train_set, test_set, device, epochs,
    *, move="yes", asked="device", optimizers="one", shuffle="yes", train_mode="train", zero="before",
    step="yes", rows="all", trained_on="train", tested_on="test", test_mode="eval", graph="no", mean="rows",
    scale="share", returns="number", passes="right",
):  # fmt: skip
    device = device if asked == "device" else "cuda"
    model = model.to(device) if move == "yes" else model
    device = device if move == "yes" else "cpu"
    optimized = nn.Linear(2, 2) if optimizers == "another" else model
    optimizer, loss_fn = torch.optim.Adam(optimized.parameters(), lr=1e-2), nn.CrossEntropyLoss()
    sets = {"train": train_set, "test": test_set, "both": ConcatDataset([train_set, test_set])}
    chosen = sets[trained_on]
    if shuffle == "once":
        chosen = Subset(chosen, torch.randperm(len(chosen)).tolist())
    for _ in range(epochs + {"one more": 1, "one less": -1}.get(passes, 0)):
        if optimizers == "each epoch":
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        order = {"shuffle": shuffle == "yes", "drop_last": rows == "dropped"}
        for batch in DataLoader(chosen, batch_size=32, **order):
            how = {"train_mode": train_mode, "zero": zero, "step": step}
            train_step(model, *batch, loss_fn, optimizer, device, **how)
            if rows == "first":
                break
    batches = test_set if tested_on == "dataset" else DataLoader(sets[tested_on], batch_size=32)
    result = accuracy(model, batches, device, test_mode=test_mode, graph=graph, mean=mean, scale=scale)
    return None if returns == "nothing" else result


def observe_run(function, facts):
    train, test = rows(90, 6, seed=3), rows(55, 6, seed=4)
    model = make_model().eval()
    torch.manual_seed(5)
    with closing(ModelWatch(model)) as watch:
        value = function(model, TensorDataset(*train), TensorDataset(*test), DEVICE, EPOCHS)
    facts |= watch.of_a_run(train, test)
    facts["kind"], facts["value"] = kind_of(value), watch.meaning(value, test, train)
    if facts["device"] == ["cuda:0"]:  # else it trained elsewhere, which that fact shows
        parts, alone = (TensorDataset(*train), TensorDataset(*test)), make_model()
        there = works(lambda: function(alone, *parts, torch.device("cpu"), 1))
        facts["on the CPU"] = there and not next(alone.parameters()).is_cuda
        facts["no epochs"] = works(lambda: function(make_model(), *parts, DEVICE, 0))


OF_RUN = COMMON | {
    "tested_on=dataset": """The test set itself went through the model, row by row. The model computes with
        batches.
        Fix: Make batches of it with a DataLoader.""",
    "rows=dropped": """Each epoch left out the rows of its last, shorter batch.
        Fix: Let the DataLoader keep it: drop_last is False by default.""",
}

TASKS = (
    Task(
        does="trains on one batch, and returns its loss as a number",
        reference=train_step,
        observe=observe_train_step,
        begin="Bring inputs and targets to the device, then write the five calls of the lesson, one a line.",
        words={"value": of_lists("the losses of two batches")},
        table=COMMON,
        only="feed; asked; train_mode; inputs_as; zero; backward; step; returns=graph; returns=tensor; "
        "returns=nothing",
    ),
    Task(
        does="returns the share of right answers, from 0 to 1",
        reference=accuracy,
        observe=observe_accuracy,
        begin="Switch the model to evaluation mode, then go through the batches and count the right answers.",
        words={"value": "the accuracy"},
        table=COMMON,
        only="feed=stays; asked; test_mode; graph; dim; rows; mean=batches; mean=whole; mean=last; "
        "mean=none; mean=count; mean=numbers; scale; returns=tensor; returns=nothing",
    ),
    Task(
        does="trains for some epochs, and returns the accuracy on the test rows",
        reference=run,
        observe=observe_run,
        begin="Move the model, then make the loss function and the optimizer. After that come two loops, one "
        "in the other: over the epochs, and over the batches of a DataLoader.",
        words={
            "value": "what is returned",
            "no epochs": "with epochs=0, as the starter's main() calls it, it stops.",
        },
        table=OF_RUN,
        only="move; asked; optimizers; shuffle; passes; trained_on; tested_on; train_mode; test_mode; graph; "
        "zero; step; rows; mean=batches; mean=count; mean=none; scale; returns=nothing",
    ),
)
