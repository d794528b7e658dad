"""Long lists of tests that resemble one another: some always run, the others are ``thorough``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], *, every: int, ids: Callable[[Any], str] | None = None) -> list[Any]:
    """Return parameters of a test, one value in `every` unmarked, the others `thorough`.

    A value for several arguments is a tuple.
    """
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            id=ids(value) if ids else None,
            marks=[pytest.mark.thorough] if place % every else [],
        )
        for place, value in enumerate(values)
    ]
