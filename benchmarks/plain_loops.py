"""The loops that are compared: the naive script, and what a careful hand writes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler
from torchvision.datasets import FashionMNIST
from torchvision.transforms import ToTensor

from gpulesson.data import excerpt_folder

Pairs = Iterable[tuple[Tensor, Tensor]]
loss_fn = nn.CrossEntropyLoss()


def naive_loader(batch_size: int = 64, workers: int = 0) -> DataLoader:
    """Return what most tutorials have: a picture is opened, and made a tensor, sample by sample.

    Shuffled like `Batches` with its own generator: give both the same seed for the same order.
    """
    samples = FashionMNIST(excerpt_folder(), train=True, transform=ToTensor())
    return loader(samples, batch_size, workers)


def loader(samples: torch.utils.data.Dataset, batch_size: int = 64, workers: int = 0) -> DataLoader:
    """Return a shuffling DataLoader whose order `reseed` decides."""
    sampler = RandomSampler(samples, generator=torch.Generator())
    return DataLoader(samples, batch_size=batch_size, sampler=sampler, num_workers=workers)


def reseed(batches: object, seed: int) -> None:
    """Decide the order of the next pass."""
    sampler = getattr(batches, "sampler", batches)  # a DataLoader has one, Batches draws itself
    sampler.generator.manual_seed(seed)


def reseed_epoch(batches: object, seed: int, epoch: int) -> None:
    """Decide the order of one epoch (from 0) of a run: the same for all loops that are compared."""
    reseed(batches, 1000 * seed + epoch)


def naive(
    model: nn.Module, batches: Pairs, optimizer: torch.optim.Optimizer, device: str | torch.device
) -> list[float]:
    """Train for one pass, reading the loss in every step."""
    losses = []
    model.train()
    for inputs, targets in batches:
        inputs = inputs.to(device)
        targets = targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # the CPU waits
    return losses


def by_hand(
    model: nn.Module, batches: Pairs, optimizer: torch.optim.Optimizer, device: str | torch.device
) -> list[float]:
    """Train for one pass, reading the losses at its end."""
    losses = []
    model.train()
    for inputs, targets in batches:
        inputs = inputs.to(device)
        targets = targets.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()  # the CPU waits, once


def evaluated(model: nn.Module, batches: Pairs, device: str | torch.device) -> tuple[float, float]:
    """Return mean loss and accuracy, reading once."""
    losses, right, count = [], [], 0
    model.eval()
    with torch.inference_mode():
        for inputs, targets in batches:
            inputs = inputs.to(device)
            targets = targets.to(device)
            outputs = model(inputs)
            losses.append(loss_fn(outputs, targets) * len(targets))
            right.append((outputs.argmax(1) == targets).sum())
            count += len(targets)
    loss, correct = torch.stack([torch.stack(losses).sum(), torch.stack(right).sum()]).tolist()
    return loss / count, correct / count
