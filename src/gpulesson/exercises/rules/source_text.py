"""The learner's text, read where what was seen does not say which line to change."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

_ASKS = re.compile(r"available|accelerator|device_count|choose_device")
_METHODS = {"eval", "train", "step", "zero_grad", "backward", "cuda", "cpu", "synchronize", "is_available"}
_OFF = re.compile(r"no_grad|inference_mode|set_grad_enabled\(False\)")
_OFF_FOR_GOOD = re.compile(r"set_grad_enabled\(False\)|requires_grad_\(False\)|requires_grad = False")
_FREE = {"detach", "item", "float", "int", "cpu", "tolist", "numpy", "len"}


def keeping_line(lines: Sequence[str], loss_line: int) -> int:
    """Return the line that keeps the loss computed on `loss_line`: an append, a sum, an entry; or that line.

    Parameters
    ----------
    lines : sequence of str
        The learner's file.
    loss_line : int
        Where the loss function was called.
    """
    nodes = all_nodes(lines)
    names = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and holds(node, loss_line)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    keeping = [(kept.lineno, kept) for node in nodes for kept in _kept(node) if not _freed(kept)]
    named = [line for line, kept in keeping if _names_in(kept) & names]
    by_word = [line for line, kept in keeping if any("loss" in name.lower() for name in _names_in(kept))]
    return next(iter(sorted(named) or sorted(by_word)), loss_line)


def tree(lines: Sequence[str]) -> ast.Module:
    """Return a program's syntax tree; an empty one, if Python cannot read it: its own run says why."""
    try:
        return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def all_nodes(lines: Sequence[str]) -> list[ast.AST]:
    """Return the nodes of a program's syntax tree."""
    return list(ast.walk(tree(lines)))


def first_line(lines: Sequence[str], pattern: str) -> int:
    """Return the number of the first line in which a regular expression is found; 0 if in none."""
    return next((number for number, text in enumerate(lines, 1) if re.search(pattern, text)), 0)


def _kept(node: ast.AST) -> list[ast.expr]:
    """Return what a statement keeps: the argument of an append, what is added, what becomes an entry."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.args[-1:] if node.func.attr in ("append", "insert", "appendleft") else []
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return [node.value]
    if isinstance(node, ast.Assign):
        if any(isinstance(target, ast.Subscript) for target in node.targets):
            return [node.value]
        if isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
            own = {target.id for target in node.targets if isinstance(target, ast.Name)}
            return [node.value] if own & _names_in(node.value) else []
    return []


def _freed(kept: ast.expr) -> bool:
    """Tell whether the history is left behind on the way."""
    for node in ast.walk(kept):
        if isinstance(node, ast.Attribute) and node.attr in _FREE | {"data"}:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FREE:
            return True
    return False


def _names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def literal_device(lines: Sequence[str], kind: str) -> int:
    """Return the line of the first device that is written down and not chosen, such as ``"cuda"``; 0 if none.

    Parameters
    ----------
    lines : sequence of str
        The learner's file.
    kind : str
        ``"cuda"`` or ``"cpu"``.
    """
    nodes = all_nodes(lines)
    guards = _guards(nodes)
    chosen = {part for node in nodes if _asks(node, guards) for part in ast.walk(node)}
    found = []
    for node in nodes:
        if isinstance(node, ast.Constant) and re.fullmatch(rf"{kind}(:\d+)?", str(node.value)):
            written = node not in chosen
        else:
            is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            written = is_method and node.func.attr == kind == "cuda" and node not in chosen  # type: ignore[attr-defined]
        if written:
            found.append(node.lineno)  # type: ignore[attr-defined]
    return min(found, default=0)


def _guards(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the variables and functions that hold what is there, such as ``has_gpu = ….is_available()``."""
    guards = set()
    for node in nodes:
        if (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value
            and _ASKS.search(ast.unparse(node.value))
        ):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            guards |= {
                part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)
            }
        if isinstance(node, ast.NamedExpr) and _ASKS.search(ast.unparse(node.value)):
            guards.add(node.target.id)
        if isinstance(node, ast.FunctionDef) and _ASKS.search(ast.unparse(node)):
            guards.add(node.name)
    return guards


def _asks(node: ast.AST, guards: set[str]) -> bool:
    """Tell whether a statement makes its choice by what is there."""
    if isinstance(node, ast.Compare | ast.Try):
        return True
    if isinstance(node, ast.BoolOp | ast.Subscript | ast.match_case):
        return _by_what_is_there(node, guards)
    return isinstance(node, ast.IfExp | ast.If | ast.Match) and _by_what_is_there(_condition(node), guards)


def _condition(node: ast.IfExp | ast.If | ast.Match) -> ast.expr:
    return node.subject if isinstance(node, ast.Match) else node.test


def _by_what_is_there(node: ast.AST, guards: set[str]) -> bool:
    return bool(_ASKS.search(ast.unparse(node)) or guards & _names_in(node))


def swapped_branches(lines: Sequence[str]) -> int:
    """Return the line that takes the CPU where there is a GPU, and else the GPU; 0 if none does."""
    nodes = all_nodes(lines)
    guards = _guards(nodes)
    for node in nodes:
        if isinstance(node, ast.IfExp | ast.If) and _by_what_is_there(node.test, guards):
            if_so, else_ = (
                (node.body, node.orelse) if isinstance(node, ast.If) else ([node.body], [node.orelse])
            )
            if isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not):
                if_so, else_ = else_, if_so
            if _device_in(if_so) == "cpu" and _device_in(else_) == "cuda":
                return node.lineno
    return 0


def _device_in(nodes: Sequence[ast.AST]) -> str:
    """Return the first device that is written down in some statements, without its number."""
    parts = [part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Constant)]
    named = [str(part.value).partition(":")[0] for part in parts]
    return next((name for name in named if name in ("cpu", "cuda")), "")


def choosing_line(lines: Sequence[str]) -> int:
    """Return the line of the first choice between the CPU and a GPU; 0 if there is none."""
    for node in all_nodes(lines):
        if isinstance(node, ast.IfExp | ast.If):
            branches = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [*node.body, *node.orelse]
            named = {_device_in([branch]) for branch in branches}
            if "cpu" in named:
                return node.lineno
    return 0


class NamesCuda(NamedTuple):
    """Where ``"cuda"`` is written down, and on what it depends.

    Attributes
    ----------
    line : int
    how : str
        ``"always"``, ``"tried"`` in a ``try``, ``"chosen"`` by a condition.
    """

    line: int
    how: str


def names_cuda(lines: Sequence[str], places: Sequence[ast.stmt]) -> NamesCuda | None:
    """Tell where the first of some statements that names ``"cuda"`` is, and what it depends on.

    Parameters
    ----------
    lines : sequence of str
        The learner's file.
    places : sequence of stmt
        Of the file's tree.
    """
    parents = {child: node for node in all_nodes(lines) for child in ast.iter_child_nodes(node)}
    by_place = {
        (node.lineno, node.col_offset, type(node)): node for node in parents if isinstance(node, ast.stmt)
    }
    for place in places:
        node = by_place.get((place.lineno, place.col_offset, type(place)))
        literal = None if node is None else _cuda_in(node)
        if literal is None:
            continue
        child: ast.AST = literal
        while (parent := parents.get(child)) is not None:
            if isinstance(parent, ast.Try) and child in parent.body:
                return NamesCuda(literal.lineno, "tried")
            if isinstance(parent, ast.IfExp | ast.If) and child is not parent.test:
                return NamesCuda(parent.lineno, "chosen")
            body = getattr(parent, "body", [])
            if isinstance(parent, ast.FunctionDef) and child in body:
                before = body[: body.index(child)]
                asked = [each for each in before if isinstance(each, ast.If) and _device_in([each]) == "cpu"]
                return NamesCuda(asked[-1].lineno, "chosen") if asked else NamesCuda(literal.lineno, "always")
            child = parent
        given = {ast.unparse(target) for target in getattr(place, "targets", [])}
        for later in all_nodes(lines):
            if isinstance(later, ast.If) and later.lineno > place.lineno and _device_in(later.body) == "cpu":
                assigned = [ast.unparse(each).partition(" = ")[0] for each in later.body]
                if given & set(assigned):
                    return NamesCuda(later.lineno, "chosen")
        return NamesCuda(literal.lineno, "always")
    return None


def _cuda_in(statement: ast.stmt) -> ast.expr | None:
    for node in ast.walk(statement):
        if isinstance(node, ast.Constant) and re.fullmatch(r"cuda(:\d+)?", str(node.value)):
            return node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            return node
    return None


def asking_if(lines: Sequence[str], before: int) -> int:
    """Return the last ``if`` above a line that asks what is there, and has no else; 0 if there is none."""
    nodes = all_nodes(lines)
    guards = _guards(nodes)
    found = [
        node.lineno for node in nodes if isinstance(node, ast.If) and not node.orelse and _asks(node, guards)
    ]
    return max((line for line in found if line < before), default=0)


def unasked_accelerator(lines: Sequence[str]) -> int:
    """Return the line of the first ``current_accelerator()`` that does not ask what is there; 0 if none."""
    found = []
    for node in all_nodes(lines):
        if isinstance(node, ast.Call) and called(node) == "current_accelerator":
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if not given or (isinstance(given[0], ast.Constant) and not given[0].value):
                found.append(node.lineno)
    return min(found, default=0)


def chosen_device(lines: Sequence[str]) -> str:
    """Return the variable that holds the device, where the program chooses one; else an empty text."""
    for node in all_nodes(lines):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        parts = list(ast.walk(node.value))
        by_choice = any(isinstance(part, ast.IfExp) and _device_in([part]) for part in parts)
        if _ASKS.search(ast.unparse(node.value)) and (
            by_choice or any(called(part) in ("choose_device", "current_accelerator") for part in parts)
        ):
            return node.targets[0].id
    return ""


def thrown_away(
    lines: Sequence[str], names: set[str], methods: Collection[str] = ("to", "cuda")
) -> tuple[int, str]:
    """Return the line of the first ``x.to(device)`` or ``x.cuda()`` whose result nothing keeps, and the call.

    Parameters
    ----------
    lines : sequence of str
        The learner's file.
    names : set of str
        Variables that may be meant. What is called, or has parameters, is a module: that does move.
    methods : collection of str
        What is called last.

    Returns
    -------
    tuple
        ``(0, "")`` if there is none.
    """
    whole = "\n".join(lines)
    found = []
    for node in all_nodes(lines):
        if not isinstance(node, ast.Expr):
            continue
        for value in node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]:
            function = value.func if isinstance(value, ast.Call) else None
            if isinstance(function, ast.Attribute) and function.attr in methods:
                owner = function.value
                while isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute):
                    owner = owner.func.value  # x in x.detach().cpu()
                name = ast.unparse(owner)
                last = name.rpartition(".")[2]
                begin = r"\b" if "." in name else r"(?<![\w.])"  # torch.tensor( says nothing of a tensor
                module = re.search(
                    rf"{begin}{re.escape(last)}(\(|\.(parameters|train|eval|state_dict)\b)", whole
                )
                if not module and (name in names or f".{last}" in names):
                    found.append((node.lineno, ast.unparse(value)))
    return min(found, default=(0, ""))


def uncalled(lines: Sequence[str]) -> tuple[int, str]:
    """Return the line of the first method that is not called, and its words; ``(0, "")`` if all are."""
    found = []
    whole = "\n".join(lines)
    for node in all_nodes(lines):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Attribute):
            if node.value.attr in _METHODS:
                found.append((node.lineno, ast.unparse(node.value)))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
            value, target = ast.unparse(node.value), ast.unparse(node.targets[0])
            used = re.search(rf"(?<![\w.]){re.escape(target)}\(", whole)
            if re.search(r"\b(choose_device|current_accelerator)$", value) and not used:
                found.append((node.lineno, value))
        elif isinstance(node, ast.IfExp | ast.If | ast.BoolOp | ast.UnaryOp):
            tests = node.values if isinstance(node, ast.BoolOp) else [getattr(node, "test", None)]
            tests = [node.operand] if isinstance(node, ast.UnaryOp) else tests
            for test in tests:
                if isinstance(test, ast.Attribute) and test.attr == "is_available":
                    found.append((test.lineno, ast.unparse(test)))
    return min(found, default=(0, ""))


def leaving(lines: Sequence[str]) -> int:
    """Return the line of a ``break``, ``return`` or ``continue`` that every round reaches; 0 if none does."""
    found = []
    for node in all_nodes(lines):
        if isinstance(node, ast.For | ast.While):
            body = list(node.body)
            for statement in body:
                if isinstance(statement, ast.With):
                    body += statement.body
                elif isinstance(statement, ast.Break | ast.Return | ast.Continue):
                    found.append(statement.lineno)
    return min(found, default=0)


def called(node: ast.AST) -> str:
    """Return the name of what a call calls, without what stands before its dot; else an empty text."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def holds(node: ast.AST, line: int) -> bool:
    """Tell whether a line is one of a node's."""
    first = getattr(node, "lineno", 0)
    return first <= line <= (getattr(node, "end_lineno", None) or first)


def loops_around(lines: Sequence[str], line: int) -> list[ast.For | ast.While]:
    """Return the loops that a line is in, the outermost first."""
    return [node for node in all_nodes(lines) if isinstance(node, ast.For | ast.While) and holds(node, line)]


def loop_around(lines: Sequence[str], line: int) -> int:
    """Return the first line of the outermost loop that a line is in; the line itself if it is in none."""
    return min((loop.lineno for loop in loops_around(lines, line)), default=line)


def innermost_loop(lines: Sequence[str], line: int) -> int:
    """Return the first line of the innermost loop that a line is in; the line itself if it is in none."""
    return max((loop.lineno for loop in loops_around(lines, line)), default=line)


def gradients_off(lines: Sequence[str], before: int, behind: Collection[int] | None = None) -> int:
    """Return the last line up to `before` that switches gradients off; 0 if none does.

    Parameters
    ----------
    lines : sequence of str
        The learner's file.
    before : int
        Where the error was.
    behind : collection of int, optional
        The lines that made what failed: a block or a function that holds none of them does not count.
    """
    found = []
    for node in all_nodes(lines):
        spans = isinstance(node, ast.With | ast.FunctionDef)
        if spans and behind is not None and not any(holds(node, line) for line in behind):
            continue
        if isinstance(node, ast.With):
            found += [node.lineno for item in node.items if _OFF.search(ast.unparse(item.context_expr))]
        elif isinstance(node, ast.FunctionDef):
            found += [each.lineno for each in node.decorator_list if _OFF.search(ast.unparse(each))]
        elif isinstance(node, ast.Expr | ast.Assign) and _OFF_FOR_GOOD.search(ast.unparse(node)):
            found.append(node.lineno)
    return max((line for line in found if line <= before), default=0)


def history_cut(lines: Sequence[str], before: int) -> int:
    """Return the last line up to `before` that takes a loss out of autograd, and calls the result a loss."""
    found = [
        node.lineno
        for node in all_nodes(lines)
        if isinstance(node, ast.Assign)
        and node.lineno <= before
        and any("loss" in ast.unparse(target).lower() for target in node.targets)
        and re.search(
            r"\.(item|detach|tolist)\(\)|\.data\b|(?<![.\w])float\(|torch\.tensor\(", ast.unparse(node.value)
        )
    ]
    return max(found, default=0)


def step_before(lines: Sequence[str], line: int) -> int:
    """Return the last line before `line`, in the same loop, that takes a step; 0 if there is none."""
    found = [
        node.lineno
        for loop in loops_around(lines, line)[-1:]
        for node in ast.walk(loop)
        if isinstance(node, ast.Expr) and node.lineno < line and re.search(r"\.step\(", ast.unparse(node))
    ]
    return max(found, default=0)


def forward_without_return(lines: Sequence[str]) -> int:
    """Return the last line of a ``forward`` that returns nothing; 0 if there is none."""
    for node in all_nodes(lines):
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            returns = [part for part in ast.walk(node) if isinstance(part, ast.Return) and part.value]
            if not returns:
                return node.body[-1].lineno
    return 0


class NothingReturned(NamedTuple):
    """A function without a value to return, and where its result is used.

    Attributes
    ----------
    function : str
    line : int
        Of its last statement.
    computed : str
        What that statement computes; empty if that cannot be said in a word.
    name : str
        The variable that got the result; empty if another line uses it at once.
    used_on : int
    """

    function: str
    line: int
    computed: str
    name: str
    used_on: int


_USES_NOTHING = {"exit", "SystemExit", "print"}
"""Functions that may well get None."""


_USES = (
    *(ast.Attribute, ast.BinOp, ast.BoolOp, ast.Compare, ast.For, ast.If, ast.IfExp, ast.keyword),
    *(ast.Subscript, ast.UnaryOp, ast.While),
)


def nothing_returned(lines: Sequence[str]) -> NothingReturned | None:
    """Return the first use of the result of a function of this file that returns nothing; None if none is."""
    nodes = all_nodes(lines)
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    silent = {each.name: each for each in functions if _is_silent(each)}
    for each in functions:
        if not _is_silent(each):
            silent.pop(each.name, None)  # it is not clear which one is called
    silent.pop("forward", None)
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    calls = [node for node in nodes if isinstance(node, ast.Call) and _own_name(node) in silent]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        name, parent = "", parents.get(call)
        if isinstance(parent, ast.Expr | ast.Return | ast.Lambda | ast.Await):
            continue
        if isinstance(parent, ast.Call):
            if called(parent) in _USES_NOTHING:
                continue
        elif isinstance(parent, ast.Assign | ast.AnnAssign):
            target = parent.targets[0] if isinstance(parent, ast.Assign) else parent.target
            name = ast.unparse(target)
            if isinstance(target, ast.Name) and not _is_read(name, nodes):
                continue
        elif not isinstance(parent, _USES):
            continue
        function = silent[_own_name(call)]
        last = _last_statement(function)
        return NothingReturned(function.name, last.lineno, _computed(last), name, call.lineno)
    return None


def _own_name(call: ast.Call) -> str:
    """Return the name of a function, or of a method of ``self``, that is called; else an empty text."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr if ast.unparse(function.value) == "self" else ""
    return function.id if isinstance(function, ast.Name) else ""


def _is_read(name: str, nodes: Sequence[ast.AST]) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) for node in nodes
    )


def _is_silent(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function has no ``return`` with a value, and none is to be expected."""
    inner = [node for node in ast.walk(function) if isinstance(node, ast.Yield | ast.YieldFrom | ast.Return)]
    gives = any(not isinstance(node, ast.Return) or node.value is not None for node in inner)
    last = function.body[-1]
    empty = isinstance(last, ast.Raise | ast.Pass) or (
        isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant)
    )
    return not (gives or empty or function.decorator_list)


def _last_statement(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
    last: ast.stmt = function.body[-1]
    while isinstance(last, ast.If | ast.With):
        inner = last.orelse if isinstance(last, ast.If) and last.orelse else last.body
        last = inner[-1]
    return last


def _computed(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        return ast.unparse(target)
    text = ast.unparse(statement.value) if isinstance(statement, ast.Expr) else ""
    return text if len(text) <= 40 and not text.startswith("print(") else ""


def doubles_made(lines: Sequence[str]) -> int:
    """Return the first line that makes a tensor of inputs, and keeps NumPy's float64; 0 if none does."""
    found = []
    for node in all_nodes(lines):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            text = ast.unparse(node)
            if re.search(r"float64|\bdouble\b|astype\(float\)", text):
                found.append((0, node.lineno))
            elif re.search(r"(torch\.(tensor|as_tensor)|from_numpy)\(", text) and not re.search(
                r"float32|torch\.float\b|\.float\(\)|torch\.long|int64|\.long\(\)", text
            ):
                of_labels = re.match(r"\s*\(?(y|target|label)", text) is not None
                found.append((1 + of_labels, node.lineno))
    return min(found, default=(0, 0))[1]


def largest_value_taken(lines: Sequence[str]) -> int:
    """Return the line that takes from ``max(dim=1)`` the value, and not its place; 0 if none does."""
    of_call = r"max\([^()]*\)(\[0\]|\.values)"
    of_answer = r"max\(\w+\([^()]*\), *(dim=)?-?1\)(\[0\]|\.values)"
    return first_line(lines, rf"{of_call}|{of_answer}|^\s*\w+, *_ *= .*max\(")


def _answers(node: ast.AST) -> ast.expr | None:
    """Return what becomes the value of ``ANSWERS``, if a statement gives it one."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if "ANSWERS" in map(ast.unparse, targets):
            return node.value
    return None


def keys_twice(lines: Sequence[str], name: str = "") -> dict[str, int]:
    """Return the names that stand twice in a dictionary as it is written down, each with its last line.

    Parameters
    ----------
    lines : sequence of str
        The learner's file.
    name : str
        Of the variable that holds the dictionary; by default any.
    """
    found: dict[str, int] = {}
    for node in all_nodes(lines) if not name else [value for _, value in _made(lines, name)]:
        if isinstance(node, ast.Dict):
            keys = [each for each in node.keys if isinstance(each, ast.Constant)]
            said = [each.value for each in keys]
            found |= {str(each.value): each.lineno for each in keys if said.count(each.value) > 1}
    return found


class Asked(NamedTuple):
    """What a line asked a dictionary for.

    Attributes
    ----------
    name : str
        The dictionary, as it is called there.
    written : bool
        The key is written down on that line, and does not come from a variable.
    made : int
        The line that makes the dictionary, with all its entries; 0 if it is not written down so.
    """

    name: str
    written: bool
    made: int


def asked_for(lines: Sequence[str], line: int, key: str) -> Asked | None:
    """Return which dictionary a line asked for a key; None if that is not clear."""
    parts = [node for node in all_nodes(lines) if isinstance(node, ast.Subscript) and node.lineno == line]
    parts = [node for node in parts if isinstance(node.ctx, ast.Load)]
    written = [
        node for node in parts if isinstance(node.slice, ast.Constant) and str(node.slice.value) == key
    ]
    open_ = [node for node in parts if not isinstance(node.slice, ast.Constant | ast.Slice)]
    names = {ast.unparse(node.value) for node in written or open_}
    if len(names) != 1:
        return None
    name = names.pop()
    made = _made(lines, name)
    changed = re.search(
        rf"(?m)\b{re.escape(name)}(\[[^\]]*\]\s*=[^=]|\.(pop|update|clear|setdefault)\()", "\n".join(lines)
    )
    whole = len(made) == 1 and not changed and isinstance(made[0][1], ast.Dict) and all(made[0][1].keys)
    return Asked(name, bool(written), made[0][0] if whole else 0)


def loads(lines: Sequence[str], name: str) -> bool:
    """Tell whether a variable holds what was read from a file."""
    return any(re.search(r"\bload\w*\(", ast.unparse(value)) for _, value in _made(lines, name))


def _made(lines: Sequence[str], name: str) -> list[tuple[int, ast.expr]]:
    """Return the statements that give a variable its value: their lines, and the values."""
    found = []
    for node in all_nodes(lines):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in map(ast.unparse, targets):
                found.append((node.lineno, node.value))
    return found


def key_line(lines: Sequence[str], key: str) -> int:
    """Return the line of a key of the dictionary ``ANSWERS``, or of the dictionary; 0 if there is none.

    Where the dictionary is made of other variables, their lines are searched as well.
    """
    nodes = all_nodes(lines)
    given = [(node, value) for node in nodes if (value := _answers(node)) is not None]
    if not given:
        return 0
    for node in nodes:  # given one by one
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"ANSWERS[{key!r}]":
            return node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ANSWERS.update":
            for part in ast.walk(node):
                named = part.arg if isinstance(part, ast.keyword) else getattr(part, "value", None)
                if named == key and not isinstance(part, ast.Call):
                    return int(getattr(part, "lineno", node.lineno))
    made = {
        part.id: node
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for part in ast.walk(target)
        if isinstance(part, ast.Name)
    }
    values, seen = [given[-1][1]], {"ANSWERS"}
    first = 0
    while values:
        value = values.pop(0)
        entries = [(part.lineno, part.value) for part in ast.walk(value) if isinstance(part, ast.Constant)]
        entries += [
            (part.value.lineno, str(part.arg)) for part in ast.walk(value) if isinstance(part, ast.keyword)
        ]
        if line := next((line for line, name in entries if name == key), 0):
            return line
        if len(re.findall(r"\bc(?:pu|uda)\b", " ".join(str(name) for _, name in entries))) >= 4:
            first = first or entries[0][0]
        for name in sorted(_names_in(value) - seen):
            seen.add(name)
            other = made.get(name)
            if other is not None and other.value is not None:
                values.append(other.value)
    return first or given[-1][0].lineno  # type: ignore[attr-defined]


def answers_computed(lines: Sequence[str]) -> int:
    """Return the line that fills ``ANSWERS`` with what the tensors say themselves; 0 if none does."""
    for node in all_nodes(lines):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr):
            text = ast.unparse(node)
            asked = re.search(r"\.device\b|\bplaces\b|is_cuda", text)
            if asked and re.match(r"ANSWERS\b.*(=|update)", text):
                return node.lineno
    return 0
