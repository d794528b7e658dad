"""The first step of a call: its batches are looked at, and if it fails, nothing has changed."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from gpulesson import _checks
from gpulesson._arguments import described

Undo = list[Callable[[], object]]


class FirstStep:
    """Batches of which the first is looked at; a context that undoes what a failing first step has changed.

    Until the first step is done, only random numbers, buffers and modes can have changed: its weights are
    changed last.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: _checks.Pairs,
        device: torch.device,
        look: Callable[[Any], None] | None = None,
    ) -> None:
        self.batches, self.look = batches, look
        self.tensors = getattr(batches, "tensors", None)
        self.undo = _random_states(device, batches)
        self.undo += [partial(_set_buffer, buffer, buffer.clone()) for buffer in model.buffers()]
        self.undo += [partial(setattr, part, "training", part.training) for part in model.modules()]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.batches)
        for batch in batches:
            _checks.check_pair(batch, self.batches)
            if self.look is not None:
                self.look(batch)
            yield batch
            break
        self.undo.clear()  # the first step is done
        yield from batches

    def __enter__(self) -> FirstStep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            _all(self.undo)


def held_out(validation: Any, passes: int, device: torch.device) -> tuple[Any, Any]:
    """Return the first batch of the validation data, or None where a look would cost one; and all the data.

    Random numbers that are drawn for the look are drawn once more later: nothing is changed by it. Data that
    other processes load, and iterators of one's own, are not looked at.
    """
    if validation is None or not passes:
        return None, validation
    if once(validation):
        if passes > 1:
            raise ValueError(
                f"validation is {described(validation)}, which is used up after one pass, but there "
                f"are {passes} "
                "epochs: give a list, a DataLoader or Batches"
            )
        first = next(validation, None)
        whole: Any = validation if first is None else chain([first], validation)
    else:
        if not _looked_at_free_of_charge(validation):
            return None, validation
        undo = _random_states(device, validation) + [partial(random.setstate, random.getstate())]
        if numpy := sys.modules.get("numpy"):
            undo.append(partial(numpy.random.set_state, numpy.random.get_state()))
        try:
            first, whole = next(iter(validation), None), validation
        finally:
            _all(undo)
    if first is None:
        raise ValueError(
            f"nothing to evaluate: the validation data, {described(validation)}, is empty; give at "
            "least one batch"
        )
    _checks.check_pair(first, validation, "validation")
    return first, whole


def once(batches: Any) -> bool:
    """Tell whether the batches can be gone through only once: a generator, or an iterator of Python's."""
    return hasattr(batches, "__next__") and type(batches).__module__ in ("builtins", "itertools")


def alike(batch: Any, other: Any) -> bool:
    """Tell whether what computes with one batch certainly computes with the other as well."""
    (inputs, targets), (other_inputs, other_targets) = batch, other
    if not _shaped_alike(inputs, other_inputs) or not _shaped_alike(targets, other_targets):
        return False
    if targets.is_floating_point() or targets.is_complex() or targets.device.type != "cpu":
        return True
    return bool(targets.min() <= other_targets.min() and other_targets.max() <= targets.max())


def _shaped_alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.shape[1:] == other.shape[1:] and one.device == other.device
    return False


def _looked_at_free_of_charge(batches: Any) -> bool:
    if isinstance(batches, DataLoader):
        return not batches.num_workers and not isinstance(batches.dataset, IterableDataset)
    return isinstance(batches, Sequence) or hasattr(batches, "tensors")


def _random_states(device: torch.device, batches: Any) -> Undo:
    """Return what sets PyTorch's random numbers back: the CPU's, the device's, and those that shuffle."""
    undo: Undo = [partial(torch.set_rng_state, torch.get_rng_state())]
    if device.type not in ("cpu", "meta"):
        module = torch.get_device_module(device)
        undo.append(partial(module.set_rng_state, module.get_rng_state(device), device))
    generator = getattr(batches, "generator", None)
    if isinstance(generator, torch.Generator):
        undo.append(partial(generator.set_state, generator.get_state()))
    return undo


def _set_buffer(buffer: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        buffer.copy_(value)


def _all(undo: Undo) -> None:
    for call in undo:
        call()
