"""The mean is detached when it is returned; gradients are cleared after each step."""

import sys

import torch
from torch import nn

import gpulesson

loss_fn = nn.CrossEntropyLoss()


def train(model, optimizer, batches):
    """Train on each batch once; return the mean loss."""
    model.train()
    losses = []
    for inputs, labels in batches:
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return torch.stack(losses).mean().detach().cpu()


def evaluate(model, batches):
    """Return the mean loss; the model learns nothing here."""
    model.eval()
    losses = []
    with torch.set_grad_enabled(False):
        for inputs, labels in batches:
            losses.append(loss_fn(model(inputs), labels))
    return sum(losses) / len(losses)


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
