"""The first step of a call: if it fails, nothing has changed. And a look at the validation data before it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from gpulesson import _checks
from gpulesson._arguments import described

Undo = list[Callable[[], object]]


class FirstStep:
    """A context that undoes what a failing first step has changed.

    The weights are changed at the end of a step: before it, only random numbers, buffers and modes are.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        batches: _checks.Pairs,
        look: Callable[[Any], None] = lambda batch: None,
    ) -> None:
        self.look = look
        self.undo = _random_states(device, batches)
        self.undo += [partial(_set_buffer, buffer, buffer.clone()) for buffer in model.buffers()]
        self.undo += [partial(setattr, part, "training", part.training) for part in model.modules()]

    def watch(self, batches: _checks.Pairs) -> Iterator[Any]:
        """Yield the batches, having looked at the first; asking for the next means that the step is done."""
        batches = _checks.pairs(batches)
        for batch in islice(batches, 1):
            self.look(batch)
            yield batch
            self.undo.clear()
        yield from batches

    def __enter__(self) -> FirstStep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            _all(self.undo)


def held_out(validation: Any, passes: int) -> tuple[Any, ...] | None:
    """Return the first batch of the validation data, if it can be had without using it up.

    Data that other processes load, and iterators of one's own, are not looked at.
    """
    if once(validation):
        if passes > 1:
            raise ValueError(
                f"validation is {described(validation)}, which is used up after one pass, but there are "
                f"{passes} epochs: give a list, a DataLoader or Batches"
            )
        return None
    if isinstance(validation, DataLoader):
        if validation.num_workers or isinstance(validation.dataset, IterableDataset):
            return None
    elif not isinstance(validation, Sequence) and not hasattr(validation, "tensors"):
        return None
    for batch in validation:
        _checks.check_pair(batch, "validation")
        return batch  # type: ignore[no-any-return]
    raise ValueError(
        f"nothing to evaluate: the validation data, {described(validation)}, is empty; give "
        "at least one batch"
    )


def alike(batch: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Tell whether what computes with one batch certainly computes with the other as well."""
    for one, two in zip(batch, other, strict=True):
        if not (isinstance(one, Tensor) and isinstance(two, Tensor)):
            return False
        if (one.dtype, one.shape[1:], one.device) != (two.dtype, two.shape[1:], two.device):
            return False
        if one.device.type == "cpu" and not two.isfinite().all():  # elsewhere a look would wait
            return False
    targets, others = batch[1], other[1]
    if len(other[0]) != len(others):
        return False
    if targets.is_floating_point() or targets.is_complex() or targets.device.type != "cpu":
        return True
    return bool(targets.min() <= others.min() and others.max() <= targets.max())


def once(batches: Any) -> bool:
    """Tell whether the batches can be gone through only once: a generator, or an iterator of Python's."""
    return hasattr(batches, "__next__") and type(batches).__module__ in ("builtins", "itertools")


@contextmanager
def undone(device: torch.device, *loaders: Any) -> Iterator[None]:
    """Put all random numbers back at the end."""
    undo = _random_states(device, *loaders)
    try:
        yield
    finally:
        _all(undo)


def _random_states(device: torch.device, *loaders: Any) -> Undo:
    """Return what sets random numbers back: Python's, NumPy's, PyTorch's, and those that shuffle."""
    undo: Undo = [
        partial(random.setstate, random.getstate()),
        partial(torch.set_rng_state, torch.get_rng_state()),
    ]
    if numpy := sys.modules.get("numpy"):
        undo.append(partial(numpy.random.set_state, numpy.random.get_state()))
    if device.type not in ("cpu", "meta"):
        module = torch.get_device_module(device)
        undo.append(partial(module.set_rng_state, module.get_rng_state(device), device))
    for owner in [part for loader in loaders for part in (loader, getattr(loader, "sampler", None))]:
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            undo.append(partial(generator.set_state, generator.get_state()))
    return undo


def _set_buffer(buffer: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        buffer.copy_(value)


def _all(undo: Undo) -> None:
    for call in undo:
        call()
