"""What an error means: the section of the page "Error messages" that its message belongs to."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from gpulesson.exercises.catalogue import shipped

_ENOUGH = 0.65
"""A section is that of a message if the message has so many of its heading's pairs of words."""


class Explanation(NamedTuple):
    """A section of the page: a message, its usual cause, and code without that error."""

    message: str
    cause: str
    fix: str


@cache
def explanations() -> tuple[Explanation, ...]:
    """Read the sections of the page."""
    page = shipped("errors.rst", "docs/errors.rst")
    parts = re.split(r"^``(.+)``\n~+\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return tuple(
        Explanation(m, _prose(text), _fix(text)) for m, text in zip(parts[1::2], parts[2::2], strict=True)
    )


def explain(error: str) -> Explanation | None:
    """Find the explanation of an error.

    Parameters
    ----------
    error : str
        The type and the first line of the message.

    Returns
    -------
    Explanation or None
        None: the page has no such message.

    Examples
    --------
    >>> explain("IndexError: Target 12 is out of bounds.").message
    'Target 3 is out of bounds.'
    """
    found = _pairs(error)

    def share(each: Explanation) -> float:
        pairs = _pairs(each.message)
        return len(pairs & found) / max(1, len(pairs))

    best = max(explanations(), key=share)
    return best if share(best) >= _ENOUGH else None


def _pairs(text: str) -> set[tuple[str, str]]:
    """Return the words of a message in pairs; numbers that stand alone are all the same."""
    words = re.findall(r"[A-Za-z_](?:[\w:]|\.\w)*|\d+", text)
    words = ["0" if word.isdigit() else word.lower() for word in words]
    return set(pairwise(words))


def _prose(text: str) -> str:
    """Return the first paragraph without its markup."""
    paragraph = next(p for p in text.strip().split("\n\n") if not p.startswith((".. ", "   ")))
    paragraph = re.sub(r":\w+:`([^`<]+?)(?: <[^>]+>)?`", r"\1", paragraph)
    return re.sub(r"`+|\*\*", "", paragraph).replace("\n", " ")


def _fix(text: str) -> str:
    found = re.search(r":caption: Fix\n\n((?:   .*\n|\n)+)", text)
    return re.sub(r"^   ", "", found[1], flags=re.MULTILINE).strip() if found else ""
