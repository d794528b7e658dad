"""From a loss back to the model: what stands on the way that gradients would take."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpulesson.exercises.rules import source_text

_CUTS = {
    *("argmax", "round", "long", "int", "item", "detach", "tolist", "numpy", "byte", "bool", "floor", "ceil"),
    *("sign", "trunc"),
}
_CUTTING_ATTRIBUTES = {"data", "indices"}
_MODULES = {"torch", "nn", "F", "np", "numpy", "functional", "math"}
_MOST = 12


class Part(NamedTuple):
    """An expression on the way back from a loss.

    Attributes
    ----------
    node : expr
    statement : stmt
        That it is in.
    in_loss : bool
        It is what a loss function gets.
    """

    node: ast.expr
    statement: ast.stmt
    in_loss: bool


class _Way:
    """The assignments of a program, with the functions that they are in."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.given: list[tuple[str, int, ast.stmt, ast.expr, ast.AST | None]] = []
        self.calls: list[tuple[ast.stmt, ast.expr, ast.AST | None]] = []
        self._enter(source_text.tree(lines), None)

    def _enter(self, node: ast.AST, scope: ast.AST | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Assign | ast.AnnAssign) and child.value is not None:
                for target in child.targets if isinstance(child, ast.Assign) else [child.target]:
                    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                    for place, part in enumerate(parts):
                        if isinstance(part, ast.Name):
                            self.given.append((part.id, place, child, child.value, scope))
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
                function = child.value.func
                if isinstance(function, ast.Attribute) and function.attr == "backward":
                    self.calls.append((child, function.value, scope))
            self._enter(child, child if isinstance(child, ast.FunctionDef) else scope)

    def parts(self, line: int) -> Iterator[Part]:
        """Yield the parts of the loss whose ``backward()`` is called on a line, the nearest first."""
        for statement, loss, scope in self.calls:
            if source_text.holds(statement, line):
                yield from self._behind(loss, statement, scope, False, _MOST)
                return

    def _behind(
        self, node: ast.expr, statement: ast.stmt, scope: ast.AST | None, in_loss: bool, most: int
    ) -> Iterator[Part]:
        if not most:
            return
        yield Part(node, statement, in_loss)
        if isinstance(node, ast.Name):
            here = [each for each in self.given if each[0] == node.id and each[4] is scope]
            before = [each for each in here if each[2].lineno < statement.lineno]
            for _, place, giving, value, _ in before[-1:]:
                if place and source_text.called(value) == "max":  # the second result: where the largest is
                    yield Part(ast.Attribute(value, "indices"), giving, in_loss)
                yield from self._behind(value, giving, scope, in_loss, most - 1)
            return
        for inner, lost in _inner(node):
            yield from self._behind(inner, statement, scope, in_loss or lost, most - 1)


def _inner(node: ast.expr) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the parts of an expression that gradients go through, and whether through a loss there."""
    if isinstance(node, ast.Call):
        function = node.func
        of_module = isinstance(function, ast.Attribute) and _root(function) in _MODULES
        if isinstance(function, ast.Attribute) and not of_module and not is_model(node):
            yield function.value, False
        elif node.args and (of_module or len(node.args) > 1 or source_text.called(node) in _CUTS | {"float"}):
            yield (
                node.args[0],
                len(node.args) > 1 and source_text.called(node) not in _CUTS | {"softmax", "log_softmax"},
            )
    elif isinstance(node, ast.BinOp):
        yield node.left, False
        yield node.right, False
    elif isinstance(node, ast.UnaryOp):
        yield node.operand, False
    elif isinstance(node, ast.Attribute | ast.Subscript):
        yield node.value, False


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_model(node: ast.expr) -> bool:
    """Tell whether a call looks like that of a model: one argument, and a name that is no function's."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or source_text.called(node) in _CUTS:
        return False
    function = node.func
    if isinstance(function, ast.Attribute):
        return ast.unparse(function.value) == "self"
    return isinstance(function, ast.Name) and function.id not in {
        "float",
        "int",
        "round",
        "sum",
        "len",
        "abs",
    }


def cut(lines: Sequence[str], line: int) -> tuple[int, str]:
    """Return the line that takes the model's answer out of autograd before the loss, and how.

    Parameters
    ----------
    lines : sequence of str
        The learner's file.
    line : int
        Where ``backward()`` is called.

    Returns
    -------
    tuple
        ``(0, "")`` if there is none. What is done to the loss itself, or to labels, does not count.
    """
    for node, statement, in_loss in _Way(lines).parts(line):
        if in_loss and isinstance(node, ast.Call) and source_text.called(node) in _CUTS:
            return statement.lineno, f"{source_text.called(node)}()"
        if in_loss and isinstance(node, ast.Attribute) and node.attr in _CUTTING_ATTRIBUTES:
            return statement.lineno, "max()" if node.attr == "indices" else ".data"
    return 0, ""


def before_the_loop(lines: Sequence[str], line: int) -> int:
    """Return the line that calls the model before the loop that calls ``backward()``; 0 if none does."""
    start = max((loop.lineno for loop in source_text.loops_around(lines, line)), default=0)
    for node, statement, _ in _Way(lines).parts(line):
        if is_model(node) and statement.lineno < start:
            return statement.lineno
    return 0
