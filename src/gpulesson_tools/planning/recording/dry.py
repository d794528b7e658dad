"""Take an operator's shapes only, and compute nothing: for models that are too large for this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.device.ledger import address_of

_SMALL = 2**20
"""Bytes up to which results are filled with zeros. Larger ones, not touched, take no memory here."""


def shapes_only(gpu: PracticeGPU, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return an ATen operator's results, not computed, but of the right shapes, strides and dtypes.

    NotImplemented where it has to be computed: it makes no floating-point numbers of others on the device, it
    gives a view, or PyTorch cannot tell its shapes.
    """
    tensors = tensors_in((args, kwargs))
    homes = {gpu.ledger.index(tensor) for tensor in tensors}
    if len(homes) != 1 or -1 in homes or not any(tensor.is_floating_point() for tensor in tensors):
        return NotImplemented
    aliases = [each.alias_info for each in func._schema.returns]
    if func._schema.is_mutable:
        in_place = func.__name__.split(".")[0].endswith("_") and all(aliases)
        return (args[0] if aliases else None) if in_place else NotImplemented
    if not aliases or any(aliases) or kwargs.get("device") is not None:
        return NotImplemented
    with gpu.let_pass():
        given = tree_map_only(torch.Tensor, _meta, (args, kwargs))
        try:
            shapes = func(*given[0], **given[1])
        except (RuntimeError, NotImplementedError):  # it has no shapes without values
            return NotImplemented
        found = tensors_in(shapes)
        if not found or not all(tensor.is_floating_point() or tensor.dtype is torch.bool for tensor in found):
            return NotImplemented
        if not {address_of(tensor) for tensor in found}.isdisjoint(map(address_of, tensors_in(given))):
            return NotImplemented  # a view, although its schema does not say so: _unsafe_view
        results = tree_map_only(torch.Tensor, _uncomputed, shapes)
    gpu.ledger.place_new(results, homes.pop())
    return results


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of arguments or results."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _uncomputed(shape: torch.Tensor) -> torch.Tensor:
    result = torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype)
    return result.zero_() if result.untyped_storage().nbytes() <= _SMALL else result
