"""Compare a file's content with what it is to replace."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from gpulesson._files import printable

_Range = tuple[type, float, float]
_COUNT: _Range = int, 0, 10**12
_SOME: _Range = int, 1, 10**12
_ANY: _Range = float, -math.inf, math.inf
NUMBERS: dict[Any, _Range] = {
    # of NumPy's random state, which NumPy does not check: it would read beyond its memory
    "pos": (int, 0, 624),
    "has_gauss": (int, 0, 1),
    # of Python's
    "version": (int, 0, 99),
    # what optimizers, schedulers and gradient scalers count
    "step": (float, 0, 10**12),
    "_step_count": _COUNT,
    "last_epoch": (int, -1, 10**12),
    "num_bad_epochs": _COUNT,
    "cooldown_counter": _COUNT,
    "growth_interval": _COUNT,
    "_growth_tracker": _COUNT,
    "growth_factor": (float, 1, 10**9),
    "backoff_factor": (float, 0, 1),
    "scale": (float, 2.0**-126, 2.0**127),
    # by which a scheduler divides, or with which it makes ranges
    "step_size": _SOME,
    "T_max": (float, 1, 10**12),
    "T_0": _SOME,
    "T_i": _SOME,
    "T_mult": _SOME,
    "total_iters": _SOME,
    "total_steps": _SOME,
    "total_size": (float, 1, 10**12),
    "step_ratio": (float, 2.0**-40, 1),
    "max_iter": (int, 1, 10**6),
    # the best loss so far, before there is one
    "best": _ANY,
    "mode_worse": _ANY,
}
"""The numbers of saved states by name: type, least and greatest. An int is accepted as a float."""
_OTHER: _Range = float, -1e30, 1e30  # well within float32


def wrong_number(value: Any, name: Any, given: Any = 0.0) -> str | None:
    """Say what is wrong with a number of this name that would replace `given`; None if nothing is.

    >>> wrong_number(1e6, "pos")
    '1000000.0, not an int from 0 to 624'
    """
    if isinstance(given, bool) or isinstance(value, bool):
        return None if type(value) is type(given) else f"{printable(repr(value), 40)}, not {kind(given)}"
    kind_of, least, most = NUMBERS.get(name, _OTHER)
    if type(value) in (int, kind_of) and least <= value <= most:
        return None
    limits = f"an int from {least} to {most}" if kind_of is int else "a finite number"
    limits += " that is not negative" if kind_of is float and not least else ""
    return f"{printable(repr(value), 40)}, not {limits}"


def difference(
    found: Any, given: Any, way: str, more: bool = False, firm: bool = False, name: Any = None
) -> str | None:
    """Say where a value does not match the one that it would replace; None if it matches everywhere.

    Dicts need the same names, lists the same length, tensors the same dtype and shape, numbers the range that
    `NUMBERS` declares for their name. Anything may replace None, unless `firm`. Names that begin with ``_``
    may be missing or added, as from one PyTorch to the next; with `more`, any name may be added.

    >>> difference({"lr": "high"}, {"lr": 0.1, "betas": (0.9, 0.99)}, "group")
    'group lacks betas'
    >>> difference([1, "2"], [0.5, 3], "base_lrs")
    'base_lrs 1 is a str, not a number'
    """
    if given is None and not firm:
        return None
    if wrong := _mismatch(found, given, more, name):
        return f"{printable(way, 200)} {wrong}"
    for each, before in _parts(given):
        there = not isinstance(found, Mapping) or each in found  # else it is allowed to be missing
        if there and (wrong := difference(found[each], before, f"{way} {each}", more, firm, each)):
            return wrong
    return None


def _mismatch(found: Any, given: Any, more: bool, name: Any) -> str | None:
    """Say what is wrong with a value itself, regardless of its parts."""
    if kind(found) != kind(given):
        return f"is {kind(found)}, not {kind(given)}"
    if isinstance(given, int | float):
        wrong = wrong_number(found, name, given)
        return wrong and f"is {wrong}"
    if isinstance(given, Counter):
        whole = all(type(each) is int for pair in found.items() for each in pair)
        return None if whole else "counts something that is not an int"
    if isinstance(given, Mapping):
        missing = [each for each in given if each not in found and not str(each).startswith("_")]
        added = [each for each in found if each not in given and not more and not str(each).startswith("_")]
        if missing or added:
            return f"{'lacks' if missing else 'has also'} {printable((missing or added)[0], 100)}"
    elif isinstance(given, list | tuple) and len(found) != len(given):
        return f"has {len(found)} entries, not {len(given)}"
    return None


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping) and not isinstance(value, Counter):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def find_wrong_versions(found: Any, given: Any) -> str | None:
    """Say what PyTorch could not read of the modules' versions in a model's state dict.

    Only known names are compared. Others could change how it loads: with ``assign_to_params_buffers``, a
    model would get tensors that its optimizer does not have.
    """
    theirs, ours = (getattr(each, "_metadata", None) or {} for each in (found, given))
    both = [name for name in ours if name in theirs]
    theirs, ours = ({name: each[name] for name in both} for each in (theirs, ours))
    return difference(theirs, ours, "the version of the module")


def kind(value: Any) -> str:
    """Name the kind of a value: ``"a number"``, ``"a torch.float32 of shape [3, 4]"``, ``"a dict"``."""
    if isinstance(value, bool):
        return "True or False"
    if isinstance(value, int | float):
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
