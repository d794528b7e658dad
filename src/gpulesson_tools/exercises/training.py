"""Training, its test and their mean: references and observations that exercises have in common.

Each reference is a right function, in which every keyword switches a mistake on; `words` says what it is.
"""
# mypy: allow-untyped-calls

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn

from gpulesson_tools.exercises.contract import Facts, kind_of, number_of
from gpulesson_tools.exercises.watch import ModelWatch


def rows(number: int, features: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return rows [number, features], the same ones each time, and their classes, 0 to 2."""
    rows = torch.randn(number, features, generator=torch.Generator().manual_seed(seed))
    return rows, (rows[:, 0] + rows[:, 1] > 0).long() + (rows[:, 2] > 0).long()


def train_step(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss_fn: Any, optimizer: Any, device: Any,
    *, feed: str = "moved", asked: str = "device", train_mode: str = "train", inputs_as: str = "scores",
    zero: str = "before", backward: str = "yes", step: str = "yes", returns: str = "number",
) -> Any:  # fmt: skip
    """Train on one batch, and return its loss."""
    device = device if asked == "device" else "cuda"
    if train_mode == "train":
        model.train()
    if feed == "model back":
        model, device = model.cpu(), "cpu"
    inputs = inputs if feed == "stays" else inputs.to(device)
    outputs = model(inputs)
    outputs = outputs.cpu() if feed == "outputs back" else outputs
    if feed not in ("stays", "labels stay"):
        targets = targets.to("cuda" if feed == "labels cuda" else outputs.device)
    loss = loss_fn(outputs.softmax(1) if inputs_as == "softmax" else outputs, targets)
    if zero == "before":
        optimizer.zero_grad()
    if backward == "yes":
        loss.backward()
    if zero == "late":
        optimizer.zero_grad()
    if step == "yes":
        optimizer.step()
    if returns == "number":
        return loss.item()
    return {"graph": loss, "tensor": loss.detach(), "nothing": None}[returns]


def observe_training(model: nn.Module, train: Callable[[ModelWatch], Any], facts: Facts) -> ModelWatch:
    """Call what trains a model, with the watch, and note what can be seen of its steps."""
    with closing(ModelWatch(model)) as watch:
        try:
            value = train(watch)
        finally:
            graphs = [each for each in watch.passes if each["graph"]] or watch.passes
            facts["train modes"] = sorted({each["training"] for each in graphs})
            facts["backwards"] = [each["backward"] for each in graphs]
            facts["fresh"], facts["steps"], facts["idle"] = watch.stale == 0, watch.steps, watch.idle > 0
    facts["kind"], facts["weights"], facts["value"] = kind_of(value), watch.weights(), number_of(value)
    return watch


@contextlib.contextmanager
def testing(model: nn.Module, *, test_mode: str = "eval", graph: str = "no") -> Iterator[None]:
    """Have a model tested inside: in evaluation mode, without gradients."""
    if test_mode == "eval":
        model.eval()
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
    device, sums = device if asked == "device" else "cuda", []
    for inputs, targets in batches:
        if feed == "moved":
            inputs, targets = inputs.to(device), targets.to(device)
        with testing(model, **of_test):
            outputs = model(inputs)
        right = (classes(outputs, dim=dim) == targets).sum().item()
        sums.append([right, len(targets), outputs.numel()])
        if rows == "first":
            break
    hits, counts, numbers = zip(*sums, strict=True)
    divisors = {"rows": sum(counts), "whole": len(counts) * max(counts), "last": len(counts) * counts[-1]}
    divisors |= {"count": len(counts), "none": 1, "numbers": sum(numbers)}
    if mean == "batches":
        result = sum(each / count for each, count in zip(hits, counts, strict=True)) / len(counts)
    else:
        result = sum(hits) / divisors[mean]
    result = 100 * result if scale == "percent" else result
    return {"number": result, "tensor": torch.tensor(result, device=device), "nothing": None}[returns]


def observe_test(model: nn.Module, test: Callable[[], Any], facts: Facts) -> tuple[Any, ModelWatch]:
    """Call what tests a model, and note what can be seen of it. Return its result, and the watch."""
    with closing(ModelWatch(model)) as watch:
        try:
            value = test()
        finally:
            facts["rows"] = sum(len(each["rows"]) for each in watch.passes)
            facts["test modes"] = sorted({each["training"] for each in watch.passes})
            facts["graph"] = any(each["graph"] for each in watch.passes)
            facts["frozen"] = not all(parameter.requires_grad for parameter in model.parameters())
            facts["backwards"] = len(watch.training())
    facts["kind"], facts["value"] = kind_of(value), number_of(value)
    return value, watch
