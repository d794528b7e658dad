"""Changes in a script's source, made in its syntax tree by LibCST: what is not changed keeps its form."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import libcst as cst
from libcst import matchers as m
from libcst.helpers import parse_template_expression
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from gpulesson_tools.porting.facts import DEVICE_LINE, Spot

_Edit = Callable[[Any], Any]
_SCOPES = (cst.FunctionDef, cst.Lambda, cst.ClassDef, cst.Module)
_STATEMENTS = (cst.BaseSmallStatement, cst.BaseCompoundStatement)
_ATOMS = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.SimpleString)


class Binding(NamedTuple):
    """Where a name gets its value."""

    kind: str
    """``"for"``, ``"assign"`` (the name alone), ``"part"`` (one of several), ``"parameter"``, ``"with"``, or
    ``"other"`` for an import and the like."""
    node: Any  # the loop, the value, the small statement; else what the name is in
    line: int
    scope: Any  # the function, class or module in which it is known


class Source:
    """A source file and its syntax tree; raises ``libcst.ParserSyntaxError`` if it is not Python."""

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

    def above(self, node: cst.CSTNode, itself: bool = False) -> Iterator[Any]:
        """Yield what a node is in, innermost first."""
        if itself:
            yield node
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

    def within(self, node: cst.CSTNode | None, kind: Any) -> Iterator[Any]:
        """Yield the nodes of a kind in a node; none if there is no such node."""
        if isinstance(node, kind):
            yield node
        for child in node.children if node is not None else ():
            yield from self.within(child, kind)

    def scopes(self, spot: Spot) -> Iterator[Any]:
        """Yield the function of a spot and those around it, then the module."""
        if spot.function != "<module>":
            above = self.above(self.statement_at(spot), itself=True)
            yield from (each for each in above if isinstance(each, cst.FunctionDef))
        yield self.module

    def binding(self, name: str, spot: Spot) -> Binding | None:
        """Find what gives a name the value that it has at a spot; None if a comprehension does."""
        within = self.above(self.expression(spot) or self.module, itself=True)
        comprehensions = [each.for_in for each in within if isinstance(each, cst.BaseComp)]
        for each in (part for whole in comprehensions for part in self.within(whole, cst.CompFor)):
            if any(part.value == name for part in self.within(each.target, cst.Name)):
                return None
        for scope in self.scopes(spot):
            found = [each for each in self._bindings(name) if each.scope is scope and each.kind != "other"]
            around = [each for each in found if each.kind == "for" and self._contains(each.node, spot)]
            before = [each for each in found if each.line < spot.line]
            if around:
                inner = max(around, key=lambda each: each.line)
                later = [each for each in before if inner.node in self.above(each.node)]
                return max(later, key=lambda each: each.line, default=inner)
            if found:
                return max(before or found, key=lambda each: each.line)
        return None

    def _bindings(self, name: str) -> Iterator[Binding]:
        """Yield all that gives a name a value, anywhere in the file."""
        for node in self._named(name):
            target = node
            while isinstance(self._parents[target], cst.Tuple | cst.List | cst.BaseElement):
                target = self._parents[target]
            if m.matches(self._parents[node], m.Attribute(attr=m.Name("data"))) and node.value not in (
                "data",
                "self",
            ):
                target = self._parents[node]  # x.data = y: x has what y has
            bound = self._bound(node, target, self._parents[target])
            if bound is not None:
                scope = next(each for each in self.above(node) if isinstance(each, _SCOPES))
                yield Binding(*bound, self.line(node), scope)

    def _bound(self, name: cst.Name, target: Any, by: Any) -> tuple[str, Any] | None:
        """Return kind and node of a binding, by what is above the name or its tuple; None if it is none."""
        if isinstance(by, cst.AssignTarget):
            statement = self._parents[by]
            alone = not isinstance(target, cst.Tuple | cst.List)
            value = statement.value if alone else _matching(target, statement.value, name)
            return ("part", statement) if value is None else ("assign", value)
        if isinstance(by, cst.ImportAlias | cst.AsName):
            return "with" if isinstance(self._parents[by], cst.WithItem) else "other", by
        if isinstance(by, cst.Param):
            return ("parameter", by) if by.name is target else None
        if getattr(by, "target", None) is not target or isinstance(by, cst.Del):
            return None
        if isinstance(by, cst.AnnAssign | cst.NamedExpr) and by.value is not None:
            return "assign", by.value
        if isinstance(by, cst.For):
            return "for", by
        return "other", by

    def _named(self, name: str) -> Iterator[Any]:
        return (each for each in self._positions if isinstance(each, cst.Name) and each.value == name)

    def _contains(self, node: cst.CSTNode, spot: Spot) -> bool:
        place = self._positions[node]
        return bool(place.start.line <= spot.line <= place.end.line)

    def loops(self, spot: Spot) -> Iterator[Any]:
        """Yield the loops of its function that a spot is in the body of, innermost first."""
        scope = next(self.scopes(spot))
        for each in itertools.takewhile(lambda each: each is not scope, self.above(self.statement_at(spot))):
            if isinstance(each, cst.For | cst.While) and self._contains(each.body, spot):
                yield each

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
        above = self.above(node, itself=True)
        return next((each for each in above if isinstance(each, _STATEMENTS)), None)

    def statement_at(self, spot: Spot) -> Any:
        """Return the innermost statement at a spot."""
        found = [
            each for each in self._positions if isinstance(each, _STATEMENTS) and self._contains(each, spot)
        ]
        return max(found, key=lambda node: (self.line(node), -self._positions[node].end.line), default=None)

    def binds(self, name: str) -> bool:
        """Return whether the file gives something this name, anywhere."""
        return any(self._bindings(name))

    def uses(self, name: str) -> bool:
        """Return whether this name is in the file."""
        return any(self._named(name))

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

    def ask_later(self, spot: Spot, device: str) -> bytes:
        """Let a call move the tensor that it makes before that asks for a gradient; empty if it cannot."""
        call = self.expression(spot)
        given = getattr(call, "args", ())
        args = [each for each in given if each.keyword is None or each.keyword.value != "requires_grad"]
        if len(args) == len(given):
            return b""
        args[-1:] = [each.with_changes(comma=cst.MaybeSentinel.DEFAULT) for each in args[-1:]]
        plain = call.with_changes(args=args)
        return self.changed({call: lambda _: called(called(plain, "to", device), "requires_grad_")})

    def move(self, names: Sequence[str], device: str, *, after: Any = None, first_in: Any = None) -> bytes:
        """Move tensors in a separate statement, after a small statement or at the head of a loop.

        If a move stands there already, they join it.
        """
        if first_in is not None:
            block, place = first_in.body, 0
        else:
            line = self._parents[after]
            alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
            last = line if alone else after
            block = self._parents[last]
            place = list(block.body).index(last) + 1
        there: Any = next(iter(block.body[place:]), None)
        small = there.body[0] if isinstance(there, cst.SimpleStatementLine) else there
        known = self.moved_names(small, device)
        new: Any = _small(_moving([*known, *names], device))
        if known:
            return self.changed({small: lambda _: new})
        if not isinstance(block, cst.SimpleStatementLine | cst.SimpleStatementSuite):
            new = cst.SimpleStatementLine([new])
        body = [*block.body[:place], new, *block.body[place:]]
        return self.changed({block: lambda each: each.with_changes(body=body)})

    def move_less(self, statement: Any, names: Sequence[str], device: str) -> bytes:
        """Let a statement that moves tensors move these alone; take it out if there are none."""
        if names:
            return self.changed({statement: lambda _: _small(_moving(names, device))})
        return self.changed({self._parents[statement]: lambda _: cst.RemovalSentinel.REMOVE})

    def moved_names(self, statement: Any, device: str) -> list[str]:
        """Return the names that a small statement moves, if it does nothing else."""
        code = self.code(statement) if statement is not None else ""
        names = code.partition(" = ")[0].split(", ")
        return names if code == _moving(names, device) else []

    def statement_before(self, statement: Any, code: str) -> bytes:
        """Put a statement on its own line before another."""
        holder = statement
        while not isinstance(self._parents[holder], cst.IndentedBlock | cst.Module):
            holder = self._parents[holder]
        new = cst.parse_statement(code)
        return self.changed({holder: lambda each: cst.FlattenSentinel([new, each])})

    def buffer(self, assign: cst.Assign, owner: str, name: str, saved: bool = True) -> bytes:
        """Let a module register a tensor: ``self.x = y`` becomes ``self.register_buffer("x", y)``."""
        template = f'{owner}.register_buffer("{name}", {{value}})'
        call = parse_template_expression(template, value=assign.value)
        registered = cst.Expr(call if saved else with_keyword(call, "persistent", "False"))
        return self.changed({assign: lambda _: registered})

    @property
    def torch(self) -> str:
        """The name that the file has for PyTorch outside of functions; or that it gets with the device."""
        return next(self._torch_names(), "torch")

    def _torch_names(self) -> Iterator[str]:
        for each in self.within(self.module, cst.Import):
            if any(isinstance(above, cst.FunctionDef) for above in self.above(each)):
                continue
            for alias in each.names:
                name, known = alias.evaluated_name, alias.evaluated_alias
                if name == "torch" or (name.startswith("torch.") and known is None):
                    yield known or "torch"

    def with_device_line(self, name: str) -> bytes:
        """Put the line that chooses the device after the imports."""
        body, place = list(self.module.body), self._device_place()
        line = DEVICE_LINE.replace("torch.", f"{self.torch}.").replace("device =", f"{name} =", 1)
        new: list[Any] = [] if any(self._torch_names()) else [cst.parse_statement("import torch")]
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


def _matching(target: Any, value: Any, name: cst.Name) -> Any:
    """Return the part of a tuple that goes to a name, if the value is written out as a tuple, too."""
    left, right = (getattr(each, "elements", ()) for each in (target, value))
    if len(left) != len(right):
        return None
    return next((new.value for old, new in zip(left, right, strict=True) if old.value is name), None)


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
    if not call.args:
        return call.with_changes(args=[new])
    *front, last = call.args
    if isinstance(last.comma, cst.Comma):  # also a trailing one, and what follows it
        new = new.with_changes(comma=last.comma)
        last = last.with_changes(comma=front[-1].comma if front else cst.MaybeSentinel.DEFAULT)
    else:
        new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
        last = last.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*front, last, new])


def _moving(names: Sequence[str], device: str) -> str:
    return f"{', '.join(names)} = {', '.join(f'{each}.to({device})' for each in names)}"


def _small(code: str) -> cst.BaseSmallStatement:
    statement = cst.parse_statement(code)
    assert isinstance(statement, cst.SimpleStatementLine)
    return statement.body[0]


def _imports(statement: cst.CSTNode) -> bool:
    return m.matches(statement, m.SimpleStatementLine(body=[m.AtLeastN(m.Import() | m.ImportFrom(), n=1)]))


def _imports_torch(statement: Any) -> bool:
    return _imports(statement) and any(
        alias.evaluated_name.split(".")[0] == "torch"
        for each in statement.body
        if isinstance(each, cst.Import)
        for alias in each.names
    )


def _may_stand_above(statement: cst.CSTNode) -> bool:
    """Return whether imports may go on behind a statement: a docstring, a call, ``try: import …``."""
    simple = m.SimpleStatementLine(body=[m.Import() | m.ImportFrom() | m.Expr()])
    return m.matches(statement, simple) or (
        isinstance(statement, cst.Try | cst.If) and bool(m.findall(statement, m.Import() | m.ImportFrom()))
    )
