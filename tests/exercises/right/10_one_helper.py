"""One function for both, with a switch."""

import sys

import torch
from torch import nn

import gpulesson

loss_fn = nn.CrossEntropyLoss()


def run(model, batches, optimizer=None):
    """Return the mean loss of all batches; with an optimizer, take a step for each."""
    model.train(optimizer is not None)
    total = 0.0
    for inputs, labels in batches:
        with torch.set_grad_enabled(optimizer is not None):
            loss = loss_fn(model(inputs), labels)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total / len(batches)


def train(model, optimizer, batches):
    return run(model, batches, optimizer)


def evaluate(model, batches):
    return run(model, batches)


def make_batches(number, device):
    inputs = torch.rand(number, 64, 256, device=device)
    labels = torch.randint(10, (number, 64), device=device)
    return list(zip(inputs, labels, strict=True))


torch.manual_seed(0)
with gpulesson.practice_gpu(force=True):  # it counts alike on any machine
    device = torch.device("cuda")
    model = nn.Sequential(
        *(nn.Linear(256, 256), nn.ReLU()),
        *(nn.Linear(256, 256), nn.ReLU()),
        *(nn.Linear(256, 256), nn.ReLU()),
        nn.Linear(256, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    train_batches, test_batches = make_batches(20, device), make_batches(5, device)

    history, held, needed = [], [], []
    for epoch in range(3):
        history.append(train(model, optimizer, train_batches))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        history.append(evaluate(model, test_batches))
        needed.append(torch.cuda.max_memory_allocated() - before)
        held.append(torch.cuda.memory_allocated())
        print(f"epoch {epoch + 1}: {held[-1]:>9,} bytes allocated", end=", ")
        print(f"the evaluation needs {needed[-1]:,}")

grown = held[2] - held[0]
with_history = sum(getattr(loss, "requires_grad", False) for loss in history)
if with_history:
    verdict = f"{with_history} of {len(history)} mean losses have kept their history"
elif grown > 2 * 2 * 512:  # two means an epoch, and each may keep its block
    verdict = f"{grown:,} bytes more after two epochs"
elif max(needed) > 3 * 64 * 256 * 4:  # more than three results of a hidden layer
    verdict = "the evaluation needs too much"
else:
    verdict = "nothing is kept"
print(verdict)
sys.exit(verdict != "nothing is kept")
