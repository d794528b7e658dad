"""Dtypes that CUDA's kernels refuse and the CPU's do not, and the other way round.

``dtypes.json`` has what CUDA refuses, with its messages: the tests' ``stand_in.py`` got them from a CUDA
build of PyTorch, for every operator of PyTorch's database. No text there is invented.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from practice_gpu import errors
from practice_gpu.operators.determinism import Check

Texts = dict[torch.dtype, str]

_FILE = Path(__file__).with_suffix(".json")
_SMALL = dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.float64)
_WIDER = {"abs": {torch.bool: torch.uint8}, "trace": {torch.bool: torch.uint8}, "histc": _SMALL}
"""The dtypes in which the CPU computes operators for which it lacks a kernel that CUDA has."""
_HALF = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""The same, for every other operator."""


def refused(name: str) -> Texts:
    """Return CUDA's messages about dtypes that the CPU has a kernel for, by the dtype of the first tensor."""
    return _table()["refused"].get(name.removesuffix("_"), {})


def check_of(func: Any, name: str, overload: str) -> Check | None:
    """Return the check to call before an operator runs on a device, or None if CUDA refuses nothing."""
    if name in _file()["absent"]:

        def refuse(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            raise errors.absent(name, overload)

        return refuse
    if name == "convolution":
        return _check_convolution
    texts = refused(name)
    if not texts:
        return None

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if args[0].dtype in texts:
            _check(func, args, kwargs)

    return check


def _check(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    name = func._schema.name.removeprefix("aten::")
    text = refused(name).get(args[0].dtype)
    if name.startswith("scatter_reduce") and args[4] in ("sum", "mean"):  # these have separate kernels
        return
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if text and all(tensor.numel() for tensor in tensors):  # without elements, no kernel runs
        _raise_before(func, args, kwargs)
        raise as_error(text)


def _check_convolution(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    given = args[0]
    for name, tensor in (("weight", args[1]), ("bias", args[2])):
        if tensor is not None and tensor.dtype is not given.dtype:
            raise errors.wrong_convolution_type(name, tensor.dtype, given.dtype)
    _check(torch.ops.aten.convolution.default, args, kwargs)


def _raise_before(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise PyTorch's error about sizes or dtypes that do not match, since it comes before CUDA's."""
    args, kwargs = tree_map_only(torch.Tensor, torch.ops.aten.clone.default, (args, kwargs))
    func(*args, **kwargs)  # on the CPU, which has a kernel


def as_error(text: str) -> RuntimeError:
    """Return the exception that PyTorch raises with this message."""
    return NotImplementedError(text) if "not implemented for" in text else RuntimeError(text)


def reworded(name: str, dtype: torch.dtype) -> RuntimeError | None:
    """Return CUDA's error for a dtype that neither it nor the CPU has a kernel for; None if unknown."""
    text = _table()["reworded"].get(name.removesuffix("_"), {}).get(dtype)
    return as_error(text) if text else None


def wider(name: str, dtype: torch.dtype) -> torch.dtype | None:
    """Return the dtype in which to compute an operator for which CUDA has a kernel and the CPU has none."""
    name = name.removesuffix("_")
    if dtype in refused(name) or dtype in _table()["reworded"].get(name, {}):
        return None
    return _WIDER.get(name, _HALF).get(dtype)


def compute_in(
    wide: torch.dtype,
    narrow: torch.dtype,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    written: Sequence[torch.Tensor],
) -> Any:
    """Compute an operator on `narrow` tensors in the dtype `wide`; return its results in `narrow`.

    `written` are the arguments that it writes to.
    """
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype is not narrow:
            return tensor
        pairs.append((tensor, tensor.to(wide)))
        return pairs[-1][1]

    def narrow_again(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype is not wide:
            return tensor
        same = [given for given, made in pairs if made is tensor]
        return same[0] if same else tensor.to(narrow)

    args, kwargs = tree_map_only(torch.Tensor, widen, (args, kwargs))
    result = func(*args, **kwargs)
    for given, made in pairs:
        if any(given is tensor for tensor in written):
            given.copy_(made)
    return tree_map_only(torch.Tensor, narrow_again, result)


def compute_with_out_dtype(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Multiply matrices with ``out_dtype=``, which only CUDA has: here all is computed in that dtype."""
    to = next(arg for arg in args if isinstance(arg, torch.dtype))
    operators = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::"))
    same = getattr(operators, "out" if "out" in kwargs else "default")
    return same(
        *(arg.to(to) if isinstance(arg, torch.Tensor) else arg for arg in args if arg is not to), **kwargs
    )


@lru_cache(maxsize=1)
def _file() -> Any:
    return json.loads(_FILE.read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, Texts]]:
    """Return the messages by operator and dtype; in the file, ``{}`` is replaced by the dtype's name."""
    return {
        kind: {name: _texts(texts) for name, texts in _file()[kind].items()}
        for kind in ("refused", "reworded")
    }


def _texts(texts: dict[str, str]) -> Texts:
    types = [(text, getattr(torch, dtype)) for text, names in texts.items() for dtype in names.split()]
    return {dtype: text.format(errors.scalar_name(dtype)) for text, dtype in types}
