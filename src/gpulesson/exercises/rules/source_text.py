"""The learner's text, read where what was seen does not say which line to change."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

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
    nodes = _nodes(lines)
    names = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and node.lineno <= loss_line <= (node.end_lineno or node.lineno)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    keeping = [(kept.lineno, kept) for node in nodes for kept in _kept(node) if not _freed(kept)]
    named = [line for line, kept in keeping if _names_in(kept) & names]
    by_word = [line for line, kept in keeping if any("loss" in name.lower() for name in _names_in(kept))]
    return next(iter(sorted(named) or sorted(by_word)), loss_line)


def _nodes(lines: Sequence[str]) -> list[ast.AST]:
    """Return the nodes of a program's syntax tree; none, if Python cannot read it."""
    try:
        return list(ast.walk(ast.parse("\n".join(lines))))
    except SyntaxError:
        return []


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
    nodes = _nodes(lines)
    chosen = {part for node in nodes if _asks(node) for part in ast.walk(node)}
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


def _asks(node: ast.AST) -> bool:
    """Tell whether a statement makes its choice by what is there."""
    if isinstance(node, ast.Compare):
        return True
    if isinstance(node, ast.IfExp | ast.If):
        return bool(re.search(r"available|accelerator|device_count", ast.unparse(node.test)))
    return isinstance(node, ast.Try)


def _is_answers(node: ast.Assign) -> bool:
    return "ANSWERS" in map(ast.unparse, node.targets)


def key_line(lines: Sequence[str], key: str) -> int:
    """Return the line of a key of the dictionary ``ANSWERS``, or of the dictionary; 0 if there is none."""
    for node in _nodes(lines):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and _is_answers(node):
            entries = [entry for entry in node.value.keys if isinstance(entry, ast.Constant)]
            return next((entry.lineno for entry in entries if entry.value == key), node.lineno)
    return 0
