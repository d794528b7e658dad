"""How the observers look: at the learner's line, and at tensors without being noticed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from gpulesson.exercises.trace import Site
from gpulesson.practice.events import is_library, where

_TORCH = Path(torch.__file__).parent
_WORKERS = (str(_TORCH / "amp"), str(_TORCH / "optim"))


def here() -> Site:
    """Return the learner's line that is running."""
    return Site(*where())


def made_here(made: Any) -> Site:
    """Return the learner's line that makes an object, not a line of the object's own ``__init__``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        own = frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is made
        if not own and not is_library(frame.f_code.co_filename):
            return Site(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return Site()


def inside_optimizers() -> bool:
    """Tell whether an optimizer or a gradient scaler is at work, below the learner's line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_WORKERS):
            return True
        frame = frame.f_back
    return False


class Looker:
    """Reads tensors so that neither the practice GPU's log nor autograd knows of it.

    Parameters
    ----------
    gpu : PracticeGPU or RealGPU, optional
        None on a machine without either.
    """

    def __init__(self, gpu: Any = None) -> None:
        self.gpu = gpu
        self.silent = 0
        """How often :meth:`unnoticed` is open: what is read meanwhile is not the learner's reading."""

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """While it is open, what happens is nobody's copy and nobody's wait."""
        with torch.no_grad(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            here = self.gpu.here if self.gpu is not None and self.gpu.simulated else None
            before = here is not None and here.quiet
            self.silent += 1
            if here is not None:
                here.quiet = True
            try:
                yield  # no mode sees an operator, neither the practice GPU's nor one of the learner's
            finally:
                self.silent -= 1
                if here is not None:
                    here.quiet = before

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy in host memory."""
        with self.unnoticed():
            if self.gpu is not None and self.gpu.simulated:
                return tensor.detach().clone()  # the ledger is not told, so it is on the host
            return tensor.detach().cpu()

    def number(self, tensor: torch.Tensor) -> float:
        """Return the value of a tensor of one element."""
        with self.unnoticed():
            return float(self.on_host(tensor).item())


def kind_of_device(value: Any) -> str:
    """Return ``"cpu"``, ``"cuda"``, … of the first tensor in a nest of tuples, lists and dicts, or ``""``."""
    tensor = first_tensor(value)
    return "" if tensor is None else tensor.device.type


def first_tensor(value: Any) -> torch.Tensor | None:
    """Return the first tensor in a nest of tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            if (found := first_tensor(part)) is not None:
                return found
    return None


def devices_in(module: nn.Module) -> list[str]:
    """Return the kinds of device that a module's parameters and buffers are on."""
    return sorted({tensor.device.type for tensor in (*module.parameters(), *module.buffers())})
