"""What references of several exercises do, with the switches of the mistakes that `words` has in common."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn


def rows(number: int, features: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return rows [number, features], the same ones each time, and their classes, 0 to 2."""
    rows = torch.randn(number, features, generator=torch.Generator().manual_seed(seed))
    return rows, (rows[:, 0] + rows[:, 1] > 0).long() + (rows[:, 2] > 0).long()


def learn(
    loss: Any, optimizer: Any, *, zero: str = "before", backward: str = "yes", step: str = "yes"
) -> None:
    """Do what comes after the loss in a step of training."""
    if zero == "before":
        optimizer.zero_grad()
    if backward == "yes":
        loss.backward()
    if zero == "late":
        optimizer.zero_grad()
    if step == "yes":
        optimizer.step()


@contextlib.contextmanager
def testing(model: nn.Module, *, test_mode: str = "eval", graph: str = "no") -> Iterator[None]:
    """Have a model tested inside: in evaluation mode, without gradients."""
    if test_mode == "eval":
        model.eval()
    model.requires_grad_(graph != "frozen")
    with torch.set_grad_enabled(graph == "yes"):
        yield


def classes(outputs: Tensor, *, dim: str = "1") -> Tensor:
    """Return the number of the class of each row of outputs [rows, classes]."""
    if dim == "values":
        return outputs.amax(1)
    return outputs.argmax() if dim == "none" else outputs.argmax(int(dim))


def accuracy(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: Any,
    *, feed: str = "moved", asked: str = "device", rows: str = "all", mean: str = "rows",
    scale: str = "share", dim: str = "1", returns: str = "number", **of_test: str,
) -> Any:  # fmt: skip
    """Return the share of right answers over all rows of all batches."""
    device = device if asked == "device" else "cuda"
    right, count, parts, most, numbers = 0.0, 0, 0, 0, 0
    for inputs, targets in batches:
        if feed == "moved":
            inputs, targets = inputs.to(device), targets.to(device)
        with testing(model, **of_test):
            outputs = model(inputs)
        hits = (classes(outputs, dim=dim) == targets).float()
        right += hits.mean().item() if mean == "batches" else hits.sum().item()
        count, parts, most = count + len(targets), parts + 1, max(most, len(targets))
        numbers += outputs.numel()
        if rows == "first":
            break
    divisors = {"rows": count, "batches": parts, "count": parts, "none": 1, "numbers": numbers}
    divisors |= {"whole": parts * most, "last": parts * len(targets), "classes": numbers // count}
    result = right / divisors[mean] * (100 if scale == "percent" else 1)
    return {"number": result, "tensor": torch.tensor(result, device=device), "nothing": None}[returns]
