"""Compile a script so that the lines that run are noted, and its loops may end early.

A loop in which the script trains ends after some steps, one that only draws batches after some batches, so
that what follows them runs as well. What is due every few steps, but in none of these, is done once. All this
depends on counts alone, so that the script does the same on every device. Lines and columns stay the same.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from gpulesson_tools.porting.facts import Failure

Node = TypeVar("Node", bound=ast.AST)
TURNS, PASSES, BATCHES = 3, 8, 8
"""A loop ends after this many turns, if it has had this many backward passes, or this many batches."""
_FOR, _WHILE, _BEGIN, _DUE = "_port_turns_of", "_port_goes_on", "_port_begin", "_port_is_due"


def install(counts: Callable[[], tuple[int, int]]) -> None:
    """Let loops that :func:`compiled` has shortened end early, by counts of backward passes and batches."""
    loops: dict[str, tuple[int, tuple[int, int]]] = {}

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
        loops[loop] = 0, counts()

    def goes_on(loop: str) -> bool:
        turns, first = loops[loop]
        loops[loop] = turns + 1, first
        return not enough(turns, first)

    asked: dict[str, set[int]] = {}

    def is_due(where: str, holds: Any) -> bool:
        seen = asked.setdefault(where, set())
        seen.add(-1 if holds else counts()[0])
        due = -1 not in seen and len(seen) == TURNS
        seen |= {-1} if due else set()
        return due or bool(holds)

    for name, function in ((_FOR, turns_of), (_BEGIN, begin), (_WHILE, goes_on), (_DUE, is_due)):
        setattr(builtins, name, function)


_ALONE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Assert)
"""Statements without which a script may go on."""


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
        before = _at(node, ast.Expr(begin))
        node.test = _at(node.test, ast.BoolOp(ast.And(), [goes_on, node.test]))
        return [before, node]

    def visit_If(self, node: ast.If) -> ast.If:
        self.generic_visit(node)
        if not any(isinstance(each, _LEAVES) for part in node.body for each in ast.walk(part)):
            node.test = _Due(self._path).visit(node.test)
        return node


_LEAVES = ast.Raise | ast.Return | ast.Break | ast.Continue


class _Due(ast.NodeTransformer):
    """Wraps ``step % 100 == 0`` in a condition; what else is in it stays a condition."""

    def __init__(self, path: str) -> None:
        self._path = path

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        left = node.left
        if not (
            isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and isinstance(node.ops[0], ast.Eq)
        ):
            return node
        if isinstance(left.left, ast.JoinedStr) or isinstance(getattr(left.left, "value", 0), str | bytes):
            return node  # that formats a text
        where = ast.Constant(f"{self._path}:{node.lineno}:{node.col_offset}")
        return _at(node, ast.Call(ast.Name(_DUE, ast.Load()), [where, node], []))


def _at(place: ast.AST, new: Node) -> Node:
    """Put a new node, and what is new in it, at the place of another."""
    return ast.fix_missing_locations(ast.copy_location(new, place))


class _Marks(ast.NodeTransformer):
    """Puts a call that notes its line before each statement."""

    def __init__(self, mark: str, without: Collection[str]) -> None:
        self._mark, self._without = mark, without

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, [new for each in statements for new in self._marked(each)])
        return super().generic_visit(node)

    def _marked(self, node: ast.stmt) -> list[ast.stmt]:
        if _may_be_first(node):
            return [node]
        if self._without and isinstance(node, _ALONE) and ast.unparse(node) in self._without:
            return [_at(node, ast.Pass())]
        mark = ast.Call(ast.Name(self._mark, ast.Load()), [ast.Constant(node.lineno)], [])
        return [_at(node, ast.Expr(mark)), node]


def _may_be_first(node: ast.AST) -> bool:
    """Return whether a statement may have to stand before all others, as a docstring does."""
    future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
    return future or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def unlike(failure: Failure, texts: Mapping[str, bytes]) -> str:
    """Return the statement, outside of training, that failed where loops ended early; "" if there is none.

    It may need all that the loops would have made: a plot of the means of 1,000 losses each.
    """
    for spot in reversed(failure.frames):
        nodes = ast.walk(ast.parse(texts[spot.file]))
        found = [
            each
            for each in nodes
            if isinstance(each, ast.stmt) and each.lineno <= spot.line <= (each.end_lineno or 0)
        ]
        inner = max(found, key=lambda each: (each.lineno, -(each.end_lineno or 0)), default=None)
        if isinstance(inner, _ALONE) and "backward" not in (text := ast.unparse(inner)):
            return text
    return ""


def compiled(source: bytes, path: str, short: bool, ran: set[int], without: Collection[str] = ()) -> Any:
    """Compile a source, whose loops end early if `short`.

    When it runs, `ran` gets the first lines of the statements that run. Statements are left out that are in
    `without`, as :func:`unlike` returns them.
    """
    tree = ast.parse(source, path)
    mark = f"_port_mark_{id(ran)}"
    setattr(builtins, mark, ran.add)
    tree = _Marks(mark, without).visit(tree)
    return compile(_Loops(path).visit(tree) if short else tree, path, "exec")


def not_reached(text: bytes, ran: set[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last line of each group of statements that did not run."""
    silent = ast.Global | ast.Nonlocal | ast.Pass | ast.Break | ast.Continue
    lines: dict[int, int] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not isinstance(node, silent) and not _may_be_first(node):
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
