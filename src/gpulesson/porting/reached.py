"""Which statements of a source did not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator


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
