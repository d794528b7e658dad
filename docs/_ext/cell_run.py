"""Runs one cell of a lesson, as sphinx-gallery does, and measures it."""

from __future__ import annotations

import ast
import contextlib
import io
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from .lesson_cells import Cell
from .recording import RecordingError


@dataclass(frozen=True)
class CellRun:
    """What a cell printed, the HTML of its last expression, its seconds, and the GPU memory at its peak."""

    text: str
    html: str
    seconds: float
    peak_memory: int


def run_cell(cell: Cell, script: Path, main: ModuleType) -> CellRun:
    """Run a cell in the module `main`; wait for the GPU before the clock starts and before it stops.

    Raises
    ------
    RecordingError
        The cell failed.
    """
    printed = io.StringIO()
    finish_gpu_work()
    if gpu_in_use():
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            value = execute(cell, script, main)
            finish_gpu_work()
    except Exception as error:
        place = f"{script.name}, the cell at line {cell.line} ({cell.first_line})"
        raise RecordingError(
            f"{place} failed: {type(error).__name__}: {error}\nNothing was recorded of this lesson."
        ) from error
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() if gpu_in_use() else 0
    text, html = shown(value)
    return CellRun(printed.getvalue() + text, html, seconds, peak)


def execute(cell: Cell, script: Path, main: ModuleType) -> object:
    """Execute a cell; return the value of its last line, if that is an expression."""
    # the line numbers of a traceback are those of the script
    tree = ast.parse("\n" * (cell.line - 1) + cell.code, str(script))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(script), "exec", dont_inherit=True), vars(main))
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), str(script), "eval", dont_inherit=True), vars(main))


def shown(value: object) -> tuple[str, str]:
    """Return the text or the HTML that stands for a value, as sphinx-gallery chooses: HTML first."""
    if value is None:
        return "", ""
    html = value._repr_html_() if hasattr(value, "_repr_html_") else None
    return ("", html) if isinstance(html, str) else (f"\n{value!r}", "")


def finish_gpu_work() -> None:
    if gpu_in_use():
        torch.cuda.synchronize()


def gpu_in_use() -> bool:
    """Tell whether the lesson has touched the GPU; before, even a question would."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
