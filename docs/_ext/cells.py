"""The code cells of a lesson, as sphinx-gallery has them, for programs without Sphinx."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

FOLDED = "# fold:"  # begins a folded cell; the rest of that line stays visible
TEXT = re.compile(r"^(?:#{20,}|# ?%%).*\s(?:^#.*\s?)*", re.M)  # a cell of text, with the mark above it


def code_cells(script: Path) -> Iterator[tuple[int, str]]:
    """Yield the line in which each code cell begins, and its code, without the docstring."""
    source = script.read_text(encoding="utf-8")
    after_docstring = ast.parse(source).body[0].end_lineno or 0
    rest = "\n".join(source.split("\n")[after_docstring:])
    start = 0
    for end, following in [*(match.span() for match in TEXT.finditer(rest)), (len(rest), len(rest))]:
        if rest[start:end].strip():
            yield after_docstring + 1 + rest.count("\n", 0, start), rest[start:end]
        start = following
