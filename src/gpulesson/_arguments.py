"""Errors about wrong arguments, which name what was found, what was expected, and the remedy."""

from __future__ import annotations

import operator
import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor


def described(value: Any) -> str:
    """Describe an object in a few words: ``"a tensor float32 [5, 6]"``, ``"the class MLP"``."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | int | float | torch.device | torch.dtype):
        return reprlib.repr(value) if isinstance(value, str) else str(value)
    kind = type(value).__name__
    named = f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
    if isinstance(value, Tensor):
        return f"a tensor {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if kind == "ndarray":
        return f"a NumPy array {value.dtype} {list(value.shape)}"
    if isinstance(value, Mapping):
        return f"{named} with the keys {', '.join(map(repr, list(value)[:4])) or '(none)'}"
    if isinstance(value, tuple | list):
        parts = ", ".join(map(described, value[:3])) + (", …" if len(value) > 3 else "")
        return f"{named} of {len(value)}" + (f" ({parts})" if parts else "")
    if hasattr(value, "__code__"):
        return f"the function {value.__name__}"
    return named


def refuse(
    name: str, value: Any, expected: str, remedy: str, *, error: type[Exception] = TypeError
) -> NoReturn:
    """Raise an error that names the argument, what it is, what it must be, and the remedy."""
    if isinstance(value, type):  # a class where an object belongs: the same remedy everywhere
        remedy = f"make an object of the class, with brackets: {value.__name__}(…)"
    raise error(f"{name} is {described(value)}, but must be {expected}: {remedy}")


def as_path(name: str, value: Any) -> Path:
    """Return a path; reject None, which `latest` may return."""
    if not isinstance(value, str | os.PathLike):
        remedy = "where latest(…) returns None, there is no checkpoint yet"
        given = "give a string or a pathlib.Path, such as 'runs/last.safetensors'"
        refuse(name, value, "the name of a file", remedy if value is None else given)
    return Path(value)


def whole_number(name: str, value: Any, least: int, remedy: str) -> int:
    """Return `value` as an int of at least `least`; ``True``, 2.5 and ``"3"`` are refused."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name}={value!r} is of the type {type(value).__name__}, not a whole number: {remedy}"
        ) from None
    if number < least:
        raise ValueError(f"{name}={value}: {remedy}")
    return number


def flags(**given: Any) -> None:
    """Refuse an option that is neither True nor False."""
    for name, value in given.items():
        if not isinstance(value, bool):
            refuse(name, value, "True or False", "choose one of the two")
