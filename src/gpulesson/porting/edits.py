"""Changes in a script's source, made in its syntax tree by LibCST: what is not changed keeps its form."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import libcst as cst
from libcst import matchers as m
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from gpulesson.porting.facts import DEVICE_LINE, Spot

_Edit = Callable[[Any], Any]
_ATOMS = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.SimpleString)


class Binding(NamedTuple):
    """
    Where a name gets its value.

    Attributes
    ----------
    kind : str
        ``"for"``, ``"assign"`` (the name alone), ``"part"`` (one of several), ``"parameter"`` or ``"other"``.
    node : CSTNode
        The loop, the value, the statement's small statement, or the function.
    line : int
    """

    kind: str
    node: Any
    line: int


class Source:
    """
    A source file and its syntax tree.

    Parameters
    ----------
    text : bytes

    Raises
    ------
    libcst.ParserSyntaxError
        If it is not Python.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.module = cst.parse_module(text)
        wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        self._positions: Any = wrapper.resolve(PositionProvider)
        self._parents: Any = wrapper.resolve(ParentNodeProvider)
        self._lines = re.split(r"\r\n|\r|\n", text.decode(self.module.encoding))

    # -- find

    def line(self, node: cst.CSTNode) -> int:
        """Return the number of a node's first line."""
        return int(self._positions[node].start.line)

    def code(self, node: cst.CSTNode) -> str:
        """Return a node's source."""
        return self.module.code_for_node(node).strip()

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield what a node is in, innermost first."""
        while (node := self._parents.get(node)) is not None:
            yield node

    def expression(self, spot: Spot) -> Any:
        """Return the expression at a spot; None if there is none."""
        start = spot.line, self._column(spot.line, spot.column)
        end = spot.end_line, self._column(spot.end_line, spot.end_column)
        best = None
        for node, place in self._positions.items():
            if isinstance(node, cst.BaseExpression) and (place.end.line, place.end.column) == end:
                if (place.start.line, place.start.column) == start:
                    return node
                if isinstance(node, cst.Call):  # of a chain over several lines Python knows the last part
                    best = node
        return best

    def _column(self, line: int, column: int) -> int:
        return len(self._lines[line - 1].encode()[:column].decode(errors="ignore"))

    def within(self, node: cst.CSTNode, kind: Any) -> Iterator[Any]:
        """Yield the nodes of a kind in a node."""
        if isinstance(node, kind):
            yield node
        for child in node.children:
            yield from self.within(child, kind)

    def scopes(self, spot: Spot) -> Iterator[Any]:
        """Yield the function of a spot and those around it, then the module."""
        if spot.function != "<module>":
            around = [
                each
                for each in self._positions
                if isinstance(each, cst.FunctionDef) and self._contains(each, spot)
            ]
            yield from sorted(around, key=self.line, reverse=True)
        yield self.module

    def binding(self, name: str, spot: Spot) -> Binding | None:
        """Find what gives a name the value that it has at a spot."""
        for scope in self.scopes(spot):
            found = _Bindings(name, self, scope).found
            around = [each for each in found if each.kind == "for" and self._contains(each.node, spot)]
            before = [each for each in found if each.line < spot.line]
            if around:
                inner = max(around, key=lambda each: each.line)
                later = [each for each in before if each.line > inner.line and self._same_loop(each, inner)]
                return max(later, key=lambda each: each.line) if later else inner
            if found:
                return max(before or found, key=lambda each: each.line)
        return None

    def _same_loop(self, binding: Binding, loop: Binding) -> bool:
        return any(each is loop.node for each in self.above(binding.node))

    def _contains(self, node: cst.CSTNode, spot: Spot) -> bool:
        place = self._positions[node]
        return bool(place.start.line <= spot.line <= place.end.line)

    def outermost_loop(self, spot: Spot) -> Any:
        """Return the outermost loop of its function that a spot is in the body of, or None."""
        scope = next(self.scopes(spot))
        for each in self._positions:
            loop = isinstance(each, cst.For | cst.While) and self._contains(each.body, spot)
            if loop and (scope is self.module or any(up is scope for up in self.above(each))):
                return each
        return None

    def device_from(self) -> int:
        """Return the last line above which the device is not known yet."""
        place = self._device_place()
        return self.line(self.module.body[place - 1]) if place else 0

    def is_moved(self, node: cst.CSTNode) -> bool:
        """Return whether a chain of calls sends its value somewhere: ``torch.zeros(3).to(x.device)``."""
        for each in self.above(node):
            if isinstance(each, cst.Attribute) and each.attr.value in ("to", "cuda", "cpu"):
                return True
            if not isinstance(each, cst.Attribute | cst.Call):
                break
        return False

    def statement(self, node: cst.CSTNode) -> Any:
        """Return the small statement, or the head of a compound one, that a node is in."""
        for each in (node, *self.above(node)):
            if isinstance(each, cst.BaseSmallStatement | cst.BaseCompoundStatement):
                return each
        return None

    def statement_at(self, spot: Spot) -> Any:
        """Return the innermost statement at a spot."""
        found: list[Any] = [
            node
            for node in self._positions
            if isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement)
            and self._contains(node, spot)
        ]
        return max(found, key=lambda node: (self.line(node), -self._positions[node].end.line), default=None)

    def binds(self, name: str) -> bool:
        """Return whether the file gives something this name, anywhere."""
        names = m.findall(self.module, m.Name(name))
        return any(self._is_bound(each) for each in names)

    def names(self) -> set[str]:
        """Return the names that the file uses."""
        return {each.value for each in m.findall(self.module, m.Name()) if isinstance(each, cst.Name)}

    def _is_bound(self, node: cst.CSTNode) -> bool:
        above = self._parents[node]
        if isinstance(above, cst.Param) and above.name is node:
            return True
        for each in (node, *self.above(node)):
            up = self._parents.get(each)
            if isinstance(up, cst.AssignTarget | cst.ImportAlias | cst.AsName):
                return True
            if isinstance(up, cst.For | cst.CompFor | cst.AnnAssign | cst.NamedExpr) and up.target is each:
                return True
            if not isinstance(up, cst.Tuple | cst.List | cst.Element):
                return False
        return False

    # -- change

    def changed(self, edits: dict[cst.CSTNode, _Edit]) -> bytes:
        """Return the text with some nodes replaced by what their functions make of them."""

        class Change(cst.CSTTransformer):
            def on_leave(self, original: Any, updated: Any) -> Any:
                return edits[original](updated) if original in edits else updated

        tree = self.module.visit(Change())
        text = tree.bytes
        if not self.text.endswith((b"\n", b"\r")) and text.endswith(b"\n"):
            text = text.rstrip(b"\r\n")
        return text

    def append(self, node: cst.BaseExpression, method: str, *arguments: str) -> bytes:
        """Call a method of an expression: ``x`` becomes ``x.to(device)``."""
        return self.changed({node: lambda each: called(each, method, *arguments)})

    def keyword(self, call: cst.Call, name: str, value: str) -> bytes:
        """Add a keyword argument to a call."""
        return self.changed({call: lambda each: with_keyword(each, name, value)})

    def move(self, names: Sequence[str], device: str, *, after: Any = None, first_in: Any = None) -> bytes:
        """Move tensors in a statement of its own, after a small statement or at the head of a loop."""
        line = _moving(names, device)
        if first_in is not None:
            return self.changed({first_in.body: lambda body: self._first(body, names, device)})
        holder = self._parents[after]
        if isinstance(holder, cst.SimpleStatementLine) and len(holder.body) == 1:
            return self._behind(holder, names, device)
        if isinstance(after, cst.BaseCompoundStatement):
            return self._behind(after, names, device)
        place = [each is after for each in holder.body].index(True)
        small = _small(line)

        def several(each: Any) -> Any:
            return each.with_changes(body=_joined([*each.body[: place + 1], small, *each.body[place + 1 :]]))

        return self.changed({holder: several})

    def _behind(self, statement: Any, names: Sequence[str], device: str) -> bytes:
        """Put the move behind a whole statement; or into the move that stands there."""
        block = self._parents[statement]
        place = [each is statement for each in block.body].index(True)

        def behind(each: Any) -> Any:
            rest = list(each.body[place + 1 :])
            moved, rest = _with_move(rest, names, device)
            return each.with_changes(body=[*each.body[: place + 1], *moved, *rest])

        return self.changed({block: behind})

    def _first(self, body: Any, names: Sequence[str], device: str) -> Any:
        if isinstance(body, cst.SimpleStatementSuite):
            small = _small(_moving(names, device))
            return body.with_changes(body=_joined([small, *body.body]))
        moved, rest = _with_move(list(body.body), names, device)
        return body.with_changes(body=[*moved, *rest])

    def statement_before(self, statement: Any, code: str) -> bytes:
        """Put a statement on a line of its own before another."""
        holder = statement
        while not isinstance(self._parents[holder], cst.IndentedBlock | cst.Module):
            holder = self._parents[holder]
        new = cst.parse_statement(code)
        return self.changed({holder: lambda each: cst.FlattenSentinel([new, each])})

    def buffer(self, assign: cst.Assign, owner: str, name: str, saved: bool = True) -> bytes:
        """Let a module register a tensor: ``self.x = y`` becomes ``self.register_buffer("x", y)``."""

        def registered(each: Any) -> Any:
            call = cst.parse_expression(f'{owner}.register_buffer("{name}", y)')
            assert isinstance(call, cst.Call)
            value = each.value
            if isinstance(value, cst.Tuple):
                value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            call = call.with_changes(args=[call.args[0], cst.Arg(value)])
            return cst.Expr(call if saved else with_keyword(call, "persistent", "False"))

        return self.changed({assign: registered})

    def torch_name(self) -> str:
        """Return the name that the file has for PyTorch outside of functions, "" if it imports only parts."""
        for each in m.findall(self.module, m.Import()):
            assert isinstance(each, cst.Import)
            if any(isinstance(above, cst.FunctionDef | cst.Lambda) for above in self.above(each)):
                continue
            for alias in each.names:
                name = self.code(alias.name)
                if name == "torch":
                    return self.code(alias.asname.name) if alias.asname else "torch"
                if name.startswith("torch.") and alias.asname is None:
                    return "torch"
        return ""

    def with_device_line(self, name: str) -> bytes:
        """Put the line that chooses the device behind the imports."""
        body, place = list(self.module.body), self._device_place()
        known = self.torch_name()
        line = DEVICE_LINE.replace("torch.", f"{known or 'torch'}.").replace("device =", f"{name} =", 1)
        new: list[Any] = [] if known else [cst.parse_statement("import torch")]
        chosen = cst.parse_statement(line)
        assert isinstance(chosen, cst.SimpleStatementLine)
        new.append(chosen.with_changes(leading_lines=[cst.EmptyLine(indent=False)]))
        tree = self.module.with_changes(body=[*body[:place], *new, *body[place:]])
        return bytes(tree.bytes)

    def device_assignments(self, kind: str) -> list[cst.Assign]:
        """Return the statements outside of functions that give a device of this kind a name."""
        device = rf"([\w.]*\bdevice\()?['\"]{kind}(:0)?['\"]\)?"
        return [
            small
            for each in self.module.body
            if isinstance(each, cst.SimpleStatementLine)
            for small in each.body
            if isinstance(small, cst.Assign)
            and re.fullmatch("(?i)\\w*dev(ice)?", self.code(small.targets[0].target))
            and re.fullmatch(rf"{device}( if .+ else .+)?", self.code(small.value))
        ]

    def device_name(self) -> str:
        """Return the name of the device that the file chooses already, or ""."""
        found = [self.code(each.targets[0].target) for each in self.device_assignments("(cuda|cpu)")]
        return found[0] if found else ""

    def _device_place(self) -> int:
        """Return how many statements stand above the line that chooses the device."""
        body = list(self.module.body)
        head = list(itertools.takewhile(_may_stand_above, body))
        last = max((number for number, each in enumerate(head) if _imports(each)), default=-1)
        torch_at = [number for number, each in enumerate(body) if _imports_torch(each)]
        last = max([last, *torch_at[:1]])
        while last + 1 < len(body) and _imports(body[last + 1]):
            last += 1
        return last + 1


class _Bindings(cst.CSTVisitor):
    """Finds what binds a name in one scope."""

    def __init__(self, name: str, source: Source, scope: Any) -> None:
        self._name, self._source = name, source
        self.found: list[Binding] = []
        if isinstance(scope, cst.FunctionDef):
            for each in source.within(scope.params, cst.Param):
                if each.name.value == name:
                    self._add("parameter", scope, scope)
            scope.body.visit(self)
        else:
            for each in scope.body:
                each.visit(self)

    def _add(self, kind: str, node: Any, at: Any) -> None:
        self.found.append(Binding(kind, node, self._source.line(at)))

    def _is(self, node: cst.CSTNode) -> bool:
        return self._source.code(node) == self._name

    def _in(self, node: Any) -> bool:
        if isinstance(node, cst.Tuple | cst.List):
            return any(self._in(each.value) for each in node.elements)
        return self._is(node)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False

    def visit_Assign(self, node: cst.Assign) -> None:
        for each in node.targets:
            if self._is(each.target):
                self._add("assign", node.value, node)
            elif self._in(each.target):
                value = _matching(each.target, node.value, self._is)
                self._add("part", node, node) if value is None else self._add("assign", value, node)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if self._is(node.target) and node.value is not None:
            self._add("assign", node.value, node)

    def visit_For(self, node: cst.For) -> None:
        if self._in(node.target):
            self._add("for", node, node)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        if self._is(node.target):
            self._add("assign", node.value, node)

    def visit_WithItem(self, node: cst.WithItem) -> None:
        if node.asname is not None and self._in(node.asname.name):
            self._add("other", node, node)


def _matching(target: Any, value: Any, wanted: Callable[[Any], bool]) -> Any:
    """Return the part of a tuple that goes to a name, if the value is written out as a tuple, too."""
    left, right = (getattr(each, "elements", ()) for each in (target, value))
    if len(left) != len(right):
        return None
    return next((new.value for old, new in zip(left, right, strict=True) if wanted(old.value)), None)


def called(node: Any, method: str, *arguments: str) -> cst.Call:
    """Return a call of a method of an expression."""
    atom = isinstance(node, _ATOMS) or bool(getattr(node, "lpar", ()))
    if not atom:
        node = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    given = [cst.Arg(cst.parse_expression(each)) for each in arguments]
    return cst.Call(cst.Attribute(node, cst.Name(method)), given)


def with_keyword(call: Any, name: str, value: str) -> Any:
    """Return a call with one more keyword argument, in the form of the others."""
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = cst.Arg(cst.parse_expression(value), cst.Name(name), equal=equal)
    args = list(call.args)
    if args:
        last = args[-1]
        if isinstance(last.comma, cst.Comma):  # also a trailing one, and what stands behind it
            new = new.with_changes(comma=last.comma)
            before = (
                args[-2].comma if len(args) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            )
            args[-1] = last.with_changes(comma=before)
        else:
            new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
            comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            args[-1] = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*args, new])


def _moving(names: Sequence[str], device: str) -> str:
    return f"{', '.join(names)} = {', '.join(f'{each}.to({device})' for each in names)}"


def _small(code: str) -> cst.BaseSmallStatement:
    statement = cst.parse_statement(code)
    assert isinstance(statement, cst.SimpleStatementLine)
    return statement.body[0]


def _with_move(rest: list[Any], names: Sequence[str], device: str) -> tuple[list[Any], list[Any]]:
    """Return a move, joined with the one that already begins the statements, and the statements behind it."""
    if rest and isinstance(rest[0], cst.SimpleStatementLine) and len(rest[0].body) == 1:
        there = rest[0].body[0]
        if isinstance(there, cst.Assign) and len(there.targets) == 1:
            code = cst.Module([]).code_for_node
            target = there.targets[0].target
            parts = target.elements if isinstance(target, cst.Tuple) else None
            known = [code(each.value) for each in parts] if parts else [code(target)]
            if code(there).strip() == _moving(known, device):
                joined = cst.parse_statement(_moving([*known, *names], device))
                assert isinstance(joined, cst.SimpleStatementLine)
                return [rest[0].with_changes(body=joined.body)], rest[1:]
    return [cst.parse_statement(_moving(names, device))], rest


def _joined(statements: list[Any]) -> list[Any]:
    """Put semicolons between small statements of one line."""
    between = cst.Semicolon(whitespace_after=cst.SimpleWhitespace(" "))
    *front, last = statements
    front = [
        each if isinstance(each.semicolon, cst.Semicolon) else each.with_changes(semicolon=between)
        for each in front
    ]
    return [*front, last]


def _imports(statement: cst.CSTNode) -> bool:
    return m.matches(statement, m.SimpleStatementLine(body=[m.AtLeastN(m.Import() | m.ImportFrom(), n=1)]))


def _imports_torch(statement: cst.CSTNode) -> bool:
    if not _imports(statement):
        return False
    return any(
        cst.Module([]).code_for_node(alias.name).split(".")[0] == "torch"
        for each in m.findall(statement, m.Import())
        for alias in getattr(each, "names", ())
    )


def _may_stand_above(statement: cst.CSTNode) -> bool:
    """Return whether imports may go on behind a statement: a docstring, a call, ``try: import …``."""
    simple = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom() | m.Expr()])
    return m.matches(statement, simple) or (
        isinstance(statement, cst.Try | cst.If) and bool(m.findall(statement, m.Import() | m.ImportFrom()))
    )
