"""From a line back to the lines that made its values: where the learner has to edit."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from gpulesson.exercises.rules import source_text

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Test = Callable[[ast.stmt], bool]
_MAY_BE_SKIPPED = ast.If | ast.For | ast.While | ast.Try | ast.Match
_MOST = 200
_PREPARING = (255, 16)
"""The largest numbers in the images."""
_SHOWING = {"print", "item", "float", "round", "format", "str", "replace", "info", "write"}
_MEANS = {"mean", "div", "div_", "divide", "average", "fmean"}
_CHANGING = {"append", "extend", "update", "insert", "add_", "copy_", "sort"}


class _Program:
    """A program's statements, with the function that each is in."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.statements: list[ast.stmt] = []
        self.scope: dict[ast.stmt, ast.AST | None] = {}
        self.functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self._enter(source_text.tree(lines), None)
        self.statements.sort(key=lambda each: (each.lineno, each.col_offset))

    def _enter(self, node: ast.AST, scope: ast.AST | None) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.stmt):
                self.statements.append(child)
                self.scope[child] = scope
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions.setdefault(child.name, []).append(child)
                inner = child
            self._enter(child, inner)

    def at(self, line: int) -> ast.stmt | None:
        """Return the innermost statement of a line."""
        around = [each for each in self.statements if source_text.holds(each, line)]
        return around[-1] if around else None

    def sources(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        """Yield the statements that gave a statement its values, the nearest first."""
        scope = self.scope[statement]
        for name in sorted(read(statement)):
            yield from self._bindings(name, statement, scope)

    def _bindings(self, name: str, statement: ast.stmt, scope: ast.AST | None) -> Iterator[ast.stmt]:
        key = name.rpartition(".")[2]
        for function in self.functions.get(key, []):
            inside = [each for each in self.statements if self.scope[each] is function]
            yield from (each for each in inside if isinstance(each, ast.Return) or _yields(each))
        where = self.statements
        if "." not in name:
            own = [each for each in where if self.scope[each] is scope]
            here = [each for each in own if name in bound(each)]
            if not here and isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
                if name in _parameters(scope):
                    yield from self._given(scope, name)
                    return
                yield from self._bindings(name, statement, self.scope.get(scope))
                return
        else:
            here = [each for each in where if name in bound(each)]
        before = [each for each in here if each.lineno < statement.lineno][::-1]
        for each in before or here:
            yield each
            if before and "." not in name and self._settles(each, name, statement):
                return

    def _settles(self, giving: ast.stmt, name: str, statement: ast.stmt) -> bool:
        """Tell whether a name has its value from one statement alone, whatever was before."""
        if not isinstance(giving, ast.Assign | ast.AnnAssign | ast.For) or name in read(giving):
            return False
        targets = giving.targets if isinstance(giving, ast.Assign) else [giving.target]
        if not any(isinstance(part, ast.Name) and part.id == name for part in _plain(targets)):
            return False
        around = [each for each in self.statements if isinstance(each, _MAY_BE_SKIPPED)]
        return all(
            source_text.holds(each, statement.lineno)
            for each in around
            if source_text.holds(each, giving.lineno)
        )

    def _given(self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[ast.stmt]:
        """Yield the statements that call a function, those that give it this argument."""
        for statement in self.statements:
            for node in own(statement):
                if isinstance(node, ast.Call) and source_text.called(node) == function.name:
                    yield statement
                    break


def own(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, but not those of the statements inside: of a loop only its head."""
    queue: deque[ast.AST] = deque([statement])
    while queue:
        node = queue.popleft()
        yield node
        queue.extend(
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)
        )


def text(statement: ast.stmt) -> str:
    """Return a statement as text in one line, of a loop only its head."""
    return " ; ".join(ast.unparse(child) for child in ast.iter_child_nodes(statement) if _is_own(child))


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.expr | ast.withitem | ast.keyword)


def bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement gives a value, or changes; an attribute as ``.name``."""
    targets: list[ast.AST] = []
    if isinstance(statement, ast.Assign):
        targets = list(statement.targets)
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign | ast.For):
        targets = [statement.target]
    elif isinstance(statement, ast.With):
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr in _CHANGING:
            targets = [function.value]
    targets += [node.target for node in own(statement) if isinstance(node, ast.NamedExpr)]
    return {name for target in targets for name in _targets(target)}


def _plain(targets: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """Yield the targets of an assignment, those in a tuple one by one."""
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _plain(target.elts)
        else:
            yield target


def _targets(target: ast.AST) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _targets(part)
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from _targets(target.value)
    elif isinstance(target, ast.Attribute):
        yield f".{target.attr}"
    elif isinstance(target, ast.Name):
        yield target.id


def read(statement: ast.stmt) -> set[str]:
    """Return the names whose values a statement takes; an attribute as ``.name``."""
    found = set()
    for node in own(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(f".{node.attr}")
    if isinstance(statement, ast.AugAssign):
        found |= bound(statement)
    return found


def _yields(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own(statement))


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = function.args
    return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


@lru_cache(maxsize=4)
def _program(lines: tuple[str, ...]) -> _Program:
    return _Program(lines)


def back(lines: Sequence[str], line: int) -> list[ast.stmt]:
    """Return the statement of a line, and those that made its values, the nearest first.

    Parameters
    ----------
    lines : sequence of str
        The learner's file.
    line : int
        Its number, from 1.
    """
    program = _program(tuple(lines))
    start = program.at(line)
    if start is None:
        return []
    found, queue = {start: None}, deque([start])
    while queue and len(found) < _MOST:
        for source in program.sources(queue.popleft()):
            if source not in found:
                found[source] = None
                queue.append(source)
    return list(found)


def find(lines: Sequence[str], line: int, test: Test, words: str = "") -> int:
    """Return the line of the nearest statement behind a line that passes a test; 0 if none does.

    Parameters
    ----------
    lines : sequence of str
        The learner's file.
    line : int
        Where to begin.
    test : callable
        Gets a statement.
    words : str
        A regular expression: of a statement of several lines, the first of them that has it.
    """
    statement = next((each for each in back(lines, line) if test(each)), None)
    return 0 if statement is None else line_in(lines, statement, words)


def line_in(lines: Sequence[str], statement: ast.stmt, words: str) -> int:
    """Return the first line of a statement that has a regular expression; its first line if none has."""
    places = range(statement.lineno, head_end(statement) + 1)
    return next((n for n in places if words and re.search(words, lines[n - 1])), statement.lineno)


def head_end(statement: ast.stmt) -> int:
    """Return the last line of a statement, of a loop that of its head."""
    ends = [getattr(node, "end_lineno", None) for node in own(statement) if node is not statement]
    return max((end for end in ends if end), default=statement.lineno)


def divides(statement: ast.stmt) -> bool:
    """Tell whether a statement divides, or takes a mean; to divide images by 255 or 16 does not count."""
    return any(map(_divides, own(statement)))


def _divides(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        written = isinstance(node.right, ast.Constant) and node.right.value in _PREPARING
        return isinstance(node.op, ast.Div | ast.FloorDiv) and not written
    if isinstance(node, ast.Call):
        return source_text.called(node) in _MEANS
    return isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div)


def computes(statement: ast.stmt) -> bool:
    """Tell whether a statement calls anything but to print a number, or divides."""
    calls = (node for node in own(statement) if isinstance(node, ast.Call))
    return divides(statement) or any(source_text.called(call) not in _SHOWING for call in calls)


def matches(pattern: str) -> Test:
    """Return a test whether a regular expression is found in a statement."""
    return lambda statement: re.search(pattern, text(statement)) is not None


def names(pattern: str) -> Test:
    """Return a test whether a statement reads a variable whose name has a pattern; functions do not count."""

    def test(statement: ast.stmt) -> bool:
        functions = {node.func for node in own(statement) if isinstance(node, ast.Call)}
        for node in own(statement):
            if node not in functions and isinstance(node, ast.Name | ast.Attribute):
                loaded = isinstance(node.ctx, ast.Load)
                if loaded and re.search(pattern, node.id if isinstance(node, ast.Name) else node.attr):
                    return True
        return False

    return test


OF_TRAINING = r"(?i)(?<![a-z])(x|y)?_?train(?!er|ed|able|_one|_epoch|_step|_model|_loop)|train(_|$)"
OF_TEST = r"(?i)(?<![a-z])(x|y)?_?(test|valid)"
