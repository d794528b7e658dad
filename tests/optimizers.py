"""Small runs with most of PyTorch's optimizers and schedulers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

INPUTS, TARGETS = torch.linspace(-1, 1, 48).reshape(8, 6), torch.arange(8) % 3
loss_fn = nn.CrossEntropyLoss()


def sequence(optimizer):
    first, second = lr_scheduler.LinearLR(optimizer), lr_scheduler.CosineAnnealingLR(optimizer, 5)
    return lr_scheduler.SequentialLR(optimizer, [first, second], milestones=[2])


def chain(optimizer):
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    )


RUNS: dict[str, tuple[Any, Any]] = {
    "Adam and StepLR": (
        lambda weights: optim.Adam(weights, amsgrad=True),
        lambda optimizer: lr_scheduler.StepLR(optimizer, 2),
    ),
    "SGD and ReduceLROnPlateau": (
        lambda weights: optim.SGD(weights, 0.1, momentum=0.9),
        lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
    ),
    "AdamW and OneCycleLR": (
        optim.AdamW,
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=50),
    ),
    "RMSprop and CosineAnnealingWarmRestarts": (
        lambda weights: optim.RMSprop(weights, momentum=0.5, centered=True),
        lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
    ),
    "LBFGS and CyclicLR": (
        optim.LBFGS,
        lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.1, 0.5, cycle_momentum=False),
    ),
    "Adafactor and SequentialLR": (optim.Adafactor, sequence),
    "NAdam and MultiStepLR": (optim.NAdam, lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 3, 3])),
    "Rprop and ChainedScheduler": (optim.Rprop, chain),
    "ASGD and LambdaLR": (
        optim.ASGD,
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    ),
    "RAdam and PolynomialLR": (optim.RAdam, lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 9)),
}


def make(run: str) -> dict[str, Any]:
    """Build the parts of a run; what it begins with is always the same."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 3))
    optimizer = RUNS[run][0](model.parameters())
    scheduler = RUNS[run][1](optimizer)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "generator": torch.Generator().manual_seed(1),
    }


def learn(parts: dict[str, Any], inputs: torch.Tensor = INPUTS, targets: torch.Tensor = TARGETS) -> None:
    """Take a step of all that was loaded, and draw from each generator."""

    def closure():
        parts["optimizer"].zero_grad()
        loss = loss_fn(parts["model"](inputs), targets)
        loss.backward()
        return loss

    parts["optimizer"].step(closure)
    scheduler = parts["scheduler"]
    scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
