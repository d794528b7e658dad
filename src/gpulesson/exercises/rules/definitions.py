"""Where in the learner's text a name is defined, and what stands in that definition."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from gpulesson.exercises.rules import source_text


def find(lines: Sequence[str], name: str) -> ast.stmt | None:
    """Return the last statement outside functions and classes that binds a name; None if there is none.

    Parameters
    ----------
    lines : sequence of str
        The learner's file.
    name : str
        Of a function, a class or a variable.
    """
    found = [statement for statement in _outside(source_text.tree(lines).body) if name in _bound(statement)]
    return found[-1] if found else None


def line(lines: Sequence[str], name: str) -> int:
    """Return the number of the line that defines a name, not that of a decorator; 0 if none does."""
    statement = find(lines, name)
    return 0 if statement is None else statement.lineno


def span(lines: Sequence[str], name: str) -> range:
    """Return the numbers of the lines of a definition."""
    statement = find(lines, name)
    if statement is None:
        return range(0)
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def nodes(lines: Sequence[str], name: str) -> list[ast.AST]:
    """Return the syntax nodes of a definition, in the order of their lines; none if there is none.

    A name that another stands for, as in ``stopwatch = partial(measure, 20)``, has the nodes of both.
    """
    statement = find(lines, name)
    if statement is None:
        return []
    parts = list(ast.walk(statement))
    if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
        used = {part.id for part in parts if isinstance(part, ast.Name)} - {name}
        parts += [node for other in sorted(used) if (inner := find(lines, other)) for node in ast.walk(inner)]
    placed = [part for part in parts if hasattr(part, "lineno")]
    return sorted(placed, key=lambda part: (part.lineno, part.col_offset))  # type: ignore[attr-defined]


def _outside(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when the file does, those in ``if``, ``with``, ``for`` included."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for block in ("body", "orelse", "finalbody"):
                yield from _outside(getattr(statement, block, []))
            for handler in getattr(statement, "handlers", []):
                yield from _outside(handler.body)


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign | ast.For):
        targets = [statement.target]
    elif isinstance(statement, ast.With):
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    return {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}


def first_match(lines: Sequence[str], pattern: str, *names: str) -> int:
    """Return the number of the first line in which a regular expression is found; 0 if in none.

    Parameters
    ----------
    lines : sequence of str
        The learner's file.
    pattern : str
    *names
        Their definitions are searched first, in this order, and then the whole file.
    """
    places = [span(lines, name) for name in names]
    for place in (*places, range(1, len(lines) + 1)):
        for number in place:
            if re.search(pattern, lines[number - 1].partition("#")[0]):
                return number
    return 0
