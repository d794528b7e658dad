"""Exercise 11: two functions, and the update written out."""

import functools

import torch
from torch import nn

from gpulesson.models import MLP

loss_fn = nn.CrossEntropyLoss()


def one_step(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, rate: float) -> torch.Tensor:
    loss = loss_fn(model(inputs), targets)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.sub_(gradient, alpha=rate)
    return loss.detach()


def train(pixels, labels, steps, rate):
    torch.manual_seed(1)
    model = MLP(784, 64, 10)
    losses: list[torch.Tensor] = []
    for step in range(steps):
        rows = torch.arange(64 * step, 64 * (step + 1)) % len(pixels)
        inputs = pixels.index_select(0, rows) / 255
        losses.append(one_step(model, inputs, labels.index_select(0, rows), rate))
    return torch.stack(losses).numpy().tolist()


mine = functools.partial(train, rate=0.1)
