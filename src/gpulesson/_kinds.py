"""Compare what a file holds with what stands in its place, before it takes that place."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gpulesson._files import printable


def difference(found: Any, given: Any, way: str, *, more: bool = False) -> str | None:
    """Say where a value is of another kind than the one that it would replace; None if nowhere.

    The same names in dicts, the same length of lists, tensors of the same dtype and shape, numbers for
    numbers. What is None may become anything. Names that begin with ``_`` may be missing or added, as they
    are from one PyTorch to the next; with `more`, any may be added.

    >>> difference({"lr": "high"}, {"lr": 0.1, "betas": (0.9, 0.99)}, "group")
    'group lacks betas'
    >>> difference([1, "2"], [0.5, 3], "base_lrs")
    'base_lrs 1 is a str, not a number'
    """
    if given is None:
        return None
    if kind(found) != kind(given):
        return f"{printable(way, 200)} is {kind(found)}, not {kind(given)}"
    if isinstance(given, Counter):
        return None if all(type(each) is int for pair in found.items() for each in pair) else f"{way} is odd"
    if isinstance(given, Mapping):
        missing = [name for name in given if name not in found and not str(name).startswith("_")]
        added = [name for name in found if name not in given and not more and not str(name).startswith("_")]
        if missing or added:
            name = printable((missing or added)[0], 100)
            return f"{printable(way, 200)} {'lacks' if missing else 'has also'} {name}"
        parts = [(name, found[name], value) for name, value in given.items() if name in found]
    elif isinstance(given, list | tuple):
        if len(found) != len(given):
            return f"{printable(way, 200)} has {len(found)} entries, not {len(given)}"
        parts = [(number, *pair) for number, pair in enumerate(zip(found, given, strict=True))]
    else:
        return None
    for name, inner, before in parts:
        if wrong := difference(inner, before, f"{way} {name}"):
            return wrong
    return None


def kind(value: Any) -> str:
    """Name the kind of a value: ``"a number"``, ``"a torch.float32 of shape [3, 4]"``, ``"a dict"``."""
    if isinstance(value, bool | int | float):
        return "a number"
    if isinstance(value, Tensor):
        return f"a {value.dtype} of shape {list(value.shape)}"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, Mapping) and not isinstance(value, Counter):
        return "a dict"
    return "None" if value is None else f"a {type(value).__name__}"


def is_count(value: Any) -> bool:
    """Return whether this is an int, 0 or more, below 10**12: neither True nor 3.0."""
    return type(value) is int and 0 <= value < 10**12
