"""Exercise 4: one step of training, the accuracy, and the run that is made of them."""

from contextlib import closing

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from gpulesson.exercises.contract import Task, kind_of, number_of
from gpulesson.exercises.references import accuracy, learn, rows
from gpulesson.exercises.watch import Watch
from gpulesson.exercises.words import mistakes, of_lists, works

DEVICE, EPOCHS = torch.device("cuda"), 2


def make_model():
    """Return a model in which the mode matters, by its dropout and its batch normalisation."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


# The references: a right solution each, and every keyword switches one mistake on (see contract.py).
# Batches have unequal sizes, so that a mean over batches is not the mean over rows.


def train_step(
    model, inputs, targets, loss_fn, optimizer, device,
    *, feed="moved", asked="device", train_mode="train", inputs_as="scores", returns="number", **of_learning,
):  # fmt: skip
    device = device if asked == "device" else "cuda"
    if train_mode == "train":
        model.train()
    if feed == "moved":
        inputs, targets = inputs.to(device), targets.to(device)
    outputs = model(inputs)
    loss = loss_fn(outputs.softmax(1) if inputs_as == "softmax" else outputs, targets)
    learn(loss, optimizer, **of_learning)
    values = {"number": loss.item(), "sum": loss.item() * len(inputs)}
    return (values | {"graph": loss, "tensor": loss.detach(), "nothing": None})[returns]


def observe_train_step(function, facts):
    model, (inputs, targets) = make_model().to(DEVICE).eval(), rows(32, 6, seed=1)
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
    halves = zip(inputs.split(16), targets.split(16), strict=True)
    with closing(Watch(model)) as watch:
        values = [function(model, *half, loss_fn, optimizer, DEVICE) for half in halves]
    on_cpu = make_model()
    cpu_optimizer = torch.optim.SGD(on_cpu.parameters())
    cpu_batch = inputs[:16], targets[:16]
    facts["on the CPU"] = works(
        lambda: function(on_cpu, *cpu_batch, loss_fn, cpu_optimizer, torch.device("cpu"))
    )
    facts["train modes"] = [each["training"] for each in watch.passes]
    facts["backwards"] = [each["backward"] for each in watch.passes]
    facts["fresh"] = watch.stale == 0
    facts["steps"] = watch.steps
    facts["idle"] = watch.idle
    facts["kind"] = kind_of(values[0])
    facts["weights"] = watch.weights()
    facts["value"] = [number_of(value) for value in values]


def observe_accuracy(function, facts):
    model, (inputs, targets) = make_model().to(DEVICE).train(), rows(50, 6, seed=2)
    batches = list(zip(inputs.split(16), targets.split(16), strict=True))
    with closing(Watch(model)) as watch:
        value = function(model, batches, DEVICE)
    facts["on the CPU"] = works(lambda: function(make_model(), batches, torch.device("cpu")))
    facts |= watch.of_a_test()
    facts["rows"] = sum(len(each["rows"]) for each in watch.passes)
    facts["kind"] = kind_of(value)
    facts["value"] = number_of(value)


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
    train, test = rows(90, 6, seed=3), rows(83, 6, seed=4)
    model = make_model().eval()
    torch.manual_seed(5)
    with closing(Watch(model)) as watch:
        value = function(model, TensorDataset(*train), TensorDataset(*test), DEVICE, EPOCHS)
    facts |= watch.of_a_run(train, test)
    if facts["device"] == ["cuda:0"]:  # else it trained elsewhere, which is told by that fact
        parts, alone = (TensorDataset(*train), TensorDataset(*test)), make_model()
        there = works(lambda: function(alone, *parts, torch.device("cpu"), 1))
        facts["on the CPU"] = there and not next(alone.parameters()).is_cuda
        facts["no epochs"] = works(lambda: function(make_model(), *parts, DEVICE, 0))
    facts["kind"], facts["value"] = kind_of(value), watch.meaning(value, test, train)


TASKS = (
    Task(
        does="trains on one batch, and returns its loss as a number",
        reference=train_step,
        observe=observe_train_step,
        begin="Bring inputs and targets to the device, then write the five calls of the lesson, one a line.",
        words={"value": of_lists("the losses of two batches")},
        mistakes=mistakes("""
feed=stays
asked=cuda
train_mode=as it is
inputs_as=softmax
zero=never; zero=late
step=never (hides zero=late)
returns=sum; returns=graph; returns=tensor; returns=nothing
"""),
    ),
    Task(
        does="returns the share of right answers, from 0 to 1",
        reference=accuracy,
        observe=observe_accuracy,
        begin="Switch the model to evaluation mode, then go through the batches and count the right answers.",
        words={"value": "the accuracy"},
        mistakes=mistakes("""
feed=stays
asked=cuda
test_mode=as it is
graph=yes; graph=frozen
dim=0 (hides mean, scale, rows); dim=none; dim=values (hides mean, scale)
rows=first (hides mean=batches, mean=whole, mean=last)
mean=batches; mean=whole; mean=last; mean=numbers; mean=count; mean=none
scale=percent
returns=tensor; returns=nothing (hides mean, scale, dim=none, dim=values)
"""),
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
        mistakes=mistakes("""
move=no (hides asked)
asked=cuda
optimizers=another (hides step, zero); optimizers=each epoch
shuffle=no; shuffle=once
passes=one more; passes=one less (hides optimizers=each epoch, shuffle=once)
trained_on=test; trained_on=both
tested_on=train
train_mode=as it is (hides test_mode)
test_mode=as it is
graph=yes
zero=never; zero=late
step=never (hides zero=late, optimizers)
mean=batches; mean=count; mean=none
scale=percent
returns=nothing (hides mean, scale)

tested_on=dataset
The test set itself went through the model, row by row. The model computes with batches.
Fix: Make batches of it with a DataLoader.
    DataLoader(test_set, batch_size=32)

rows=first
Each epoch ended after its first batch.
Fix: Let the inner loop go to its end.
    for inputs, targets in batches:

rows=dropped
Each epoch left out the rows of its last, shorter batch.
Fix: Let the DataLoader keep it: drop_last is False by default.
    DataLoader(train_set, batch_size=32, shuffle=True)
"""),
    ),
)
