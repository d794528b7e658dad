"""Knows samples again by a number for each row, also when each column was scaled and shifted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

_NEAR = 1e-9
_NEAR_SCALED = 2e-6
"""A scaling rounds each number."""
_WIDEST = 2**16
_NARROW = 256


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


def sketch(samples: torch.Tensor) -> torch.Tensor | None:
    """Return what a scaling can be fitted to: the rows if they are narrow, else the mark of each; or None.

    Parameters
    ----------
    samples : Tensor
        ``[N, …]``, in host memory.
    """
    found = marks(samples)
    if found is None:
        return None
    rows = samples.reshape(len(samples), -1)
    return rows.float() if rows.shape[1] <= _NARROW else found[:, None]


@dataclass
class Scaling:
    """What a program has done to every sample: ``factor * x + shift``, each column with its own."""

    factor: torch.Tensor
    shift: torch.Tensor

    @classmethod
    def fit(cls, known: torch.Tensor, seen: torch.Tensor) -> Scaling | None:
        """Find the scaling that makes all of the seen rows of all of the known ones, in any order.

        Mean and deviation of a column do not depend on the order of its rows, so they give the scaling; a
        column whose values are all the same tells nothing and is left out. What is found is then tried: the
        rows must be the same ones, each as often. So a program cannot have one part's rows taken for those
        of another: no scaling makes one of the other. What it did to single rows is not seen if it kept them
        within the rounding of a scaling.

        Parameters
        ----------
        known, seen : Tensor
            Sketches, ``[N, columns]``.
        """
        if known.shape != seen.shape or not bool(seen.isfinite().all()):
            return None
        known, seen = known.double(), seen.double()
        spread = known.std(dim=0)
        factor = torch.where(spread > 0, seen.std(dim=0) / spread, 0)
        scaling = cls(factor, seen.mean(dim=0) - factor * known.mean(dim=0))
        part = scaling.applied(known)
        places = [part.find(rows).sort().values for rows in (part.marks, scaling.marks(seen))]
        return scaling if torch.equal(*places) else None

    def marks(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a number for each row that a program has scaled."""
        return rows.double() @ torch.where(self.factor > 0, _directions(rows.shape[1]), 0)

    def applied(self, rows: torch.Tensor, labels: torch.Tensor | None = None) -> Part:
        """Return known rows, with their labels, as the program has made them."""
        found = self.marks(self.factor * rows.double() + self.shift)
        return Part.of_marks(found, rows, found if labels is None else labels, _NEAR_SCALED)


@dataclass
class Part:
    """The samples of a data set's part, to be looked up by their marks."""

    marks: torch.Tensor
    order: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor
    """Their sketch."""
    near: float = _NEAR
    """Marks that differ less, relative to their size, are the same sample's."""

    @classmethod
    def of(cls, inputs: Any, labels: Any) -> Part:
        """Make it of arrays: ``[N, …]`` and ``[N]``."""
        samples = torch.as_tensor(inputs)
        found, rows = marks(samples), sketch(samples)
        assert found is not None and rows is not None
        return cls.of_marks(found, rows, torch.as_tensor(labels))

    @classmethod
    def of_marks(
        cls, found: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor, near: float = _NEAR
    ) -> Part:
        """Make it of marks, sketch and labels."""
        ordered, order = found.sort(stable=True)
        return cls(ordered, order, labels, rows, near)

    def find(self, wanted: torch.Tensor) -> torch.Tensor:
        """Return the place of the sample with the nearest mark, or -1. Twins have one place."""
        above = torch.searchsorted(self.marks, wanted).clamp(max=len(self.marks) - 1)
        below = (above - 1).clamp(min=0)
        nearer = (self.marks[below] - wanted).abs() < (self.marks[above] - wanted).abs()
        nearest = self.marks[torch.where(nearer, below, above)]
        first = torch.searchsorted(self.marks, nearest - _NEAR * (1 + nearest.abs()))
        found = (nearest - wanted).abs() <= self.near * (1 + wanted.abs())
        return torch.where(found, self.order[first], -1)
