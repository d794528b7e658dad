"""What can be read in a learner's program: slips that nobody can dispute, and the line that it stops in."""

from __future__ import annotations

import ast
import builtins
import difflib
import linecache
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CALLED_ALONE = "backward|detach_|empty_cache|eval|replay|step|synchronize|train|update|zero_grad"
"""Methods whose names stand alone in a line by mistake: their call was meant."""
_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
_NAMES = 4
"""Of a line whose values are shown."""
_LETTERS = 70
"""Of a line that are shown."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes
    ----------
    kind : str
        Its name, for programs and tables: ``"zero=late"``, ``"error"``, ``"empty"``, ``"nothing"``, or a
        fact's name.
    says : str
        What is wrong, and what was seen.
    fix : str
        What to do; said from the second check on.
    line : int
        Of the learner's file, from 1; 0 if none is known.
    """

    kind: str
    says: str
    fix: str = ""
    line: int = 0

    @property
    def switch(self) -> str:
        """What comes before "=" in its name; mistakes that exclude each other share it."""
        return self.kind.partition("=")[0]


def slips(text: str, names: Sequence[str], space: Mapping[str, Any]) -> dict[str, list[Finding]]:
    """Find slips in a program, for each of the functions that it should have.

    `space` has the names that the program has made, with their values.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {name: [] for name in names}  # a cell with lines that are IPython's
    functions = {each.name: each for each in tree.body if isinstance(each, _FUNCTIONS)}
    misplaced = {name: _misplaced(tree, name, names, space) for name in names}
    return {name: [slip] if slip else [*_not_called(functions, name)] for name, slip in misplaced.items()}


def _not_called(functions: Mapping[str, ast.AST], name: str) -> Iterator[Finding]:
    """Find lines in a function, and in those that it uses, which name a method and do not call it."""
    used = [name] if name in functions else []
    for each in used:
        for node in ast.walk(functions[each]):
            if isinstance(node, ast.Name) and node.id in functions and node.id not in used:
                used.append(node.id)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Attribute):
                method = ast.unparse(node.value)
                if re.fullmatch(CALLED_ALONE, node.value.attr):
                    says = f"{method} is only named here: without its brackets () it is not called."
                    yield Finding("not called", says, f"Write {method}().", node.lineno)


def _misplaced(tree: ast.Module, name: str, names: Sequence[str], space: Mapping[str, Any]) -> Finding | None:
    """Find out why a function that was written is not the one that the name stands for."""
    value, outers = space.get(name), dict(_outers(tree))
    top = [each for each in outers if outers[each] is None]
    defined = [each.lineno for each in top if isinstance(each, _FUNCTIONS) and each.name == name]
    given = [
        n.lineno for n in top if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
    ]
    stars = [n.lineno for n in top if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]
    code = getattr(value, "__code__", None)
    if len(defined) > 1:
        lines = f"{', '.join(map(str, defined[:-1]))} and {defined[-1]}"
        says = f"{name} is defined in the lines {lines}, and only the last one counts."
        return Finding("defined twice", says, "Keep one of them.", defined[-1])
    if given and name in space and not callable(value):
        instead = f" The function of line {defined[0]} has lost its name." if defined else ""
        says = f"{name} is {described(value)}, not a function.{instead}"
        return Finding("not a function", says, "Give this value another name.", given[-1])
    if defined and code and stars and stars[-1] > defined[0] and code.co_filename != space.get("__file__"):
        says = f"This import brings another {name}, which takes the place of the one in line {defined[0]}."
        return Finding("imported over", says, "Import by their names what you need.", stars[-1])
    if name in space:
        return None
    for each, outer in outers.items():
        if isinstance(each, _FUNCTIONS) and each.name == name and outer is not None:
            says = f"{name} is indented, and so is inside {outer.name}, which begins in line {outer.lineno}."
            return Finding("inside another", says, "Let its def begin at the left edge.", each.lineno)
    others = {each.name: each.lineno for each in top if isinstance(each, _FUNCTIONS)}
    others = {each: line for each, line in others.items() if each not in {*names, "main"}}
    alike = difflib.get_close_matches(name, {each.lower(): each for each in others}, 1)
    for each, line in others.items():
        if len(others) == 1 or each.lower() in alike:
            says = f"This line defines {each}. The exercise asks for {name}."
            return Finding("other name", says, f"If it is that function, name it {name}.", line)
    return None


def _outers(tree: ast.Module) -> Iterator[tuple[Any, Any]]:
    """Yield what a program consists of, each with the function or class around it, or None."""
    todo: list[tuple[Any, Any]] = [(tree, None)]
    for node, outer in todo:
        inside = node if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) else outer
        todo += [(each, inside) for each in ast.iter_child_nodes(node)]
        yield node, outer


def changed(text: str, starter: str, names: Sequence[str]) -> list[str]:
    """Return what a starter defines, and a program otherwise, beside the functions with these names."""
    kinds = (*_FUNCTIONS, ast.ClassDef)
    mine, its = (
        {one.name: ast.dump(one) for one in ast.parse(each).body if isinstance(one, kinds)}
        for each in (text, starter)
    )
    return [name for name, one in its.items() if name not in names and mine.get(name, one) != one]


def stands_in(frame: types.FrameType, line: int) -> str:
    """Say what stands in a line of a program that has stopped, and the values of its variables there."""
    text = linecache.getline(frame.f_code.co_filename, line, frame.f_globals).strip()
    if not text:
        return ""
    values, spaces = [], (frame.f_locals, frame.f_globals)
    for name in dict.fromkeys(re.findall(r"(?<![\w.'\"])[A-Za-z_]\w*(?!['\"])", text)):
        with suppress(Exception):
            value = next(space[name] for space in spaces if name in space)
            if hasattr(builtins, name) and value is not getattr(builtins, name):
                values.append(f"{name} is not Python's own, but {described(value)}")
            elif name in frame.f_locals and not isinstance(value, types.ModuleType):
                values.append(f"{name} is {described(value)}")
    shown = text if len(text) <= _LETTERS else f"{text[:_LETTERS]}…"
    return f"`{shown}`" + (f", where {'; '.join(values[:_NAMES])}" if values else "")


def marked(error: SyntaxError) -> str:
    """Return the line that Python could not read, and below it a mark at the place."""
    text = (error.text or "").rstrip()
    place = max((error.offset or 1) - 1 - (len(text) - len(text.lstrip())), 0)
    begin = max(place - _LETTERS + 10, 0)
    # spaces that neither a browser nor a paragraph closes up
    spaces = "\N{NO-BREAK SPACE}" * (place - begin)
    return f"{text.strip()[begin : begin + _LETTERS]}\n{spaces}^" if text else ""


def described(value: Any) -> str:
    """Say what a value is, in a few words.

    Examples
    --------
    >>> described(3), described([1, 2]), described(print)
    ('3', 'a list of 2', 'a function of builtins')
    """
    import torch

    if isinstance(value, torch.Tensor):
        place = f" on {value.device}" if value.device.type != "cpu" else ""
        return f"a tensor {list(value.shape)} of {str(value.dtype).removeprefix('torch.')}{place}"
    if (
        value is None
        or type(value) in (bool, float, torch.device)
        or (type(value) is int and abs(value) < 1e15)
    ):
        return f"{value:.4g}" if type(value) is float else str(value)
    if type(value) is str and len(value) <= _LETTERS:
        return repr(value)
    if type(value) in (list, tuple, dict, set):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return (
            "a function" if value.__module__ in (None, "submission") else f"a function of {value.__module__}"
        )
    return f"of the type {type(value).__name__}"


def hiding(folder: Path) -> list[str]:
    """Return the files of a folder that have the name of a module which is here from elsewhere."""
    found = []
    with suppress(OSError):
        for path in sorted(folder.iterdir()):
            file = path if path.suffix == ".py" else path / "__init__.py"
            origin = getattr(sys.modules.get(path.stem), "__file__", None)
            if origin and file.is_file() and not file.samefile(origin):
                found.append(path.name)
    return found
