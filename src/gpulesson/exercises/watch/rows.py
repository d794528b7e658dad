"""Knows samples again: a number for each row of a tensor, so that no copy of the data is kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

_NEAR = 1e-9
_WIDEST = 2**16


@cache
def _directions(width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(20)  # its own: the learner's random numbers stay the same
    return torch.rand(width, dtype=torch.float64, generator=generator, device="cpu") + 0.5


def marks(samples: torch.Tensor) -> torch.Tensor | None:
    """Return a number for each sample, the same for the same sample; None if that makes no sense.

    Parameters
    ----------
    samples : Tensor
        ``[N, …]``, in host memory.
    """
    if not samples.dim() or not samples.numel() or samples.is_complex():
        return None
    rows = samples.reshape(len(samples), -1)
    if rows.shape[1] > _WIDEST:
        return None
    directions = _directions(rows.shape[1])
    return torch.cat([part.float().double() @ directions for part in torch.split(rows, 4096)])


@dataclass
class Part:
    """The samples of a data set's part, to be looked up by their marks."""

    sorted: torch.Tensor
    order: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def of(cls, inputs: Any, labels: Any) -> Part:
        """Make it of arrays: ``[N, …]`` and ``[N]``."""
        found = marks(torch.as_tensor(inputs))
        assert found is not None
        ordered, order = found.sort(stable=True)
        return cls(ordered, order, torch.as_tensor(labels))

    def find(self, wanted: torch.Tensor) -> torch.Tensor:
        """Return the place of each sample in this part, or -1. Twins have one place."""
        left = wanted - _NEAR * (1 + wanted.abs())
        place = torch.searchsorted(self.sorted, left).clamp(max=len(self.sorted) - 1)
        found = (self.sorted[place] - wanted).abs() <= _NEAR * (1 + wanted.abs())
        return torch.where(found, self.order[place], -1)
