"""End the loops of a script early, so that what stands behind them runs as well.

A loop in which the script trains ends after some steps, one that only draws batches after some batches. Both
depend on counts alone, so that the script does the same on every device. The source keeps its lines and
columns: only what a loop asks for its next turn is wrapped.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator
from typing import Any

TURNS, PASSES, BATCHES = 3, 8, 8
"""A loop ends after so many turns, if there were so many backward passes in it, or so many batches."""
_FOR, _WHILE, _BEGIN = "_port_turns_of", "_port_goes_on", "_port_begin"


def install(counts: Callable[[], tuple[int, int]]) -> None:
    """Let the loops of code that :func:`compiled` has made end early.

    Parameters
    ----------
    counts : callable
        Returns how many backward passes and batches there have been.
    """
    begun: dict[str, tuple[int, tuple[int, int]]] = {}

    def enough(turns: int, first: tuple[int, int]) -> bool:
        passes, batches = (now - before for now, before in zip(counts(), first, strict=True))
        return turns >= TURNS and (passes >= PASSES or (not passes and batches >= BATCHES))

    def turns_of(values: Iterable[Any]) -> Iterator[Any]:
        first = counts()
        for turns, value in enumerate(values, 1):
            yield value
            if enough(turns, first):
                return

    def begin(loop: str) -> None:
        begun[loop] = 0, counts()

    def goes_on(loop: str) -> bool:
        turns, first = begun[loop]
        begun[loop] = turns + 1, first
        return not enough(turns, first)

    for name, function in ((_FOR, turns_of), (_BEGIN, begin), (_WHILE, goes_on)):
        setattr(builtins, name, function)


class _Loops(ast.NodeTransformer):
    def __init__(self, path: str) -> None:
        self._path, self._number = path, 0

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        call = ast.Call(ast.Name(_FOR, ast.Load()), [node.iter], [])
        node.iter = _at(node.iter, call)
        return node

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        self.generic_visit(node)
        self._number += 1
        begin, goes_on = (
            ast.Call(ast.Name(name, ast.Load()), [ast.Constant(f"{self._path}:{self._number}")], [])
            for name in (_BEGIN, _WHILE)
        )
        before = ast.copy_location(ast.Expr(_at(node.test, begin)), node)
        node.test = _at(node.test, ast.BoolOp(ast.And(), [goes_on, node.test]))
        return [before, node]


def _at(place: ast.expr, new: ast.expr) -> ast.expr:
    """Put an expression and its new parts at the place of another."""
    for node in ast.walk(new):
        if not hasattr(node, "lineno"):
            ast.copy_location(node, place)
    return new


def compiled(source: bytes, path: str) -> Any:
    """Compile a source whose loops end early."""
    return compile(_Loops(path).visit(ast.parse(source, path)), path, "exec")
