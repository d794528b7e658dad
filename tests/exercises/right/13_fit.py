"""Fit."""

import sys

import torch
from torch import nn

import gpulesson
from gpulesson.training import fit

loss_fn = nn.CrossEntropyLoss()


def train(model, optimizer, batches):
    """Train on each batch once: one update a batch, from all of its rows."""
    model.train()
    for inputs, labels in batches:
        parts = list(zip(inputs.chunk(4), labels.chunk(4), strict=True))
        fit(model, parts, loss_fn, optimizer, "cuda", epochs=1, accumulate=4)


def make_model():
    torch.manual_seed(0)
    hidden = [(nn.Linear(64, 64), nn.ReLU()) for _ in range(12)]
    return nn.Sequential(*(layer for pair in hidden for layer in pair), nn.Linear(64, 10))


def make_batches(number):
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(number, 4096, 64, generator=draw)
    labels = torch.randint(10, (number, 4096), generator=draw)
    return list(zip(inputs, labels, strict=True))


def weights_of(model):
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


batches = make_batches(3)

expected = make_model()  # on the CPU, where there is memory enough
optimizer = torch.optim.SGD(expected.parameters(), lr=0.5)
for inputs, labels in batches:
    optimizer.zero_grad()
    loss_fn(expected(inputs), labels).backward()
    optimizer.step()

with gpulesson.practice_gpu(memory="12 MiB", force=True):  # as little on any machine
    model = make_model().to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train(model, optimizer, batches)
    print(f"peak: {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB")
    difference = (weights_of(model) - weights_of(expected)).abs().max().item()

print(f"largest difference of a weight: {difference:.1e}")
same = difference < 1e-5
print("it fits, and learns the same" if same else "it fits, and learns something else")
sys.exit(not same)
