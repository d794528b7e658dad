"""Which statements of a source did not run, and which loops have no end."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def without_end(text: bytes) -> Iterator[int]:
    """Yield the lines of loops that nothing ends: ``while True`` without a way out."""
    for node in ast.walk(ast.parse(text)):
        out = any(isinstance(each, ast.Break | ast.Return | ast.Raise) for each in ast.walk(node))
        if (
            isinstance(node, ast.While)
            and isinstance(node.test, ast.Constant)
            and node.test.value
            and not out
        ):
            yield node.lineno


def not_reached(text: bytes, ran: set[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last line of each group of statements that did not run."""
    silent = ast.Global | ast.Nonlocal | ast.Pass | ast.Break | ast.Continue
    lines: dict[int, int] = {}
    for node in ast.walk(ast.parse(text)):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not isinstance(node, silent) and not docstring:
            body = getattr(node, "body", None)
            end = node.lineno if isinstance(body, list) else node.end_lineno or node.lineno
            lines[node.lineno] = max(end, lines.get(node.lineno, 0))
    group: list[int] = []
    for line in sorted(lines):
        if ran.isdisjoint(range(line, lines[line] + 1)):
            group = [group[0] if group else line, lines[line]]
        elif group:
            yield group[0], group[1]
            group = []
    if group:
        yield group[0], group[1]
