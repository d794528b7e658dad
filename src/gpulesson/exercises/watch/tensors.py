"""Reads tensors without being noticed, and says where they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Reader:
    """Reads tensors so that neither the practice GPU's log nor autograd knows of it."""

    def __init__(self) -> None:
        self.gpu: Any = None
        """The PracticeGPU or RealGPU that the program computes on; None on a machine without either."""
        self.silent = 0
        """How often :meth:`unnoticed` is open: what is read meanwhile is not the learner's reading."""

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """While it is open, what happens is nobody's copy and nobody's wait."""
        with torch.no_grad(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            here = self.gpu.thread_state if self.gpu is not None and self.gpu.simulated else None
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
