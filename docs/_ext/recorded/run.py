"""Runs lessons on a GPU and records their output: docs/record.py is its command line.

A lesson runs cell by cell as in a build of the site: the same cells, the same initial state of PyTorch, the
same text for the last expression. Nothing is written before the whole lesson has succeeded.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt
import torch
import torchvision

import gpulesson
from gpulesson.device import device_report
from practice_gpu import PracticeWarning

from .. import torch_state
from ..paths import without_paths
from .files import (
    SIMULATED,
    Cell,
    Figure,
    RecordedCell,
    Recording,
    RecordingError,
    Run,
    described,
    lines_of,
    read_cells,
    sources,
    write,
)


def present_gpu(rehearsal: bool = False) -> Run:
    """Describe the GPU and the software of this machine.

    Parameters
    ----------
    rehearsal : bool
        Accept a simulated GPU, too. Every reader of a recording refuses it by its name.

    Raises
    ------
    RecordingError
        There is no CUDA GPU, or only a simulated one.
    """
    report = device_report()
    gpu = report.devices[0]
    if gpu.device.type != "cuda" or (SIMULATED in gpu.name and not rehearsal):
        raise RecordingError(
            f"a recording needs a CUDA GPU, and this machine has: {', '.join(map(str, report.devices))}. "
            f"{report.advice}\nNothing was recorded."
        )
    return Run(
        gpu=gpu.name,
        gpu_count=torch.cuda.device_count(),
        driver=report.driver_version or "unknown",
        built_for=report.built_for,
        torch=report.torch_version,
        torchvision=torchvision.__version__,
        python=report.python_version,
        gpulesson=gpulesson.__version__,
        platform=report.system,
        date=datetime.now(timezone.utc).date().isoformat(),
    )


def record(script: Path, folder: Path, run: Run, project: Path) -> Path:
    """Run a lesson and write its recording.

    Parameters
    ----------
    script : Path
    folder : Path
        Gets ``NN_name.json``, and the figures in ``NN_name/``.
    run : Run
        The machine.
    project : Path
        Paths into this folder are shortened in the output.

    Returns
    -------
    Path
        The file. An earlier recording of this lesson stays until the new one is complete.

    Raises
    ------
    RecordingError
        A cell failed; the error names it.
    """
    script = script.absolute()  # the lesson runs in its own folder
    plt.rcdefaults()  # as in a build of the site: `reset_modules` in conf.py
    torch_state.reset({}, script.name)
    plt.close("all")  # those of a lesson that failed
    main = ModuleType("__main__")
    pictures: dict[str, bytes] = {}
    cells = []
    with surroundings(script, main):
        for cell in read_cells(script):
            result = run_cell(cell, script, main)
            figures = tuple(draw(number, pictures) for number in plt.get_fignums())
            plt.close("all")
            cells.append(recorded(cell, result, figures, project))
    data = sources(vars(main))
    torch_state.reset({}, script.name)
    return write(Recording(script.stem, run, tuple(sorted(data)), tuple(cells)), pictures, folder)


@contextlib.contextmanager
def surroundings(script: Path, main: ModuleType) -> Iterator[None]:
    """Set up the process as if the lesson ran as a script in its own folder."""
    before, path, argv, folder = sys.modules["__main__"], sys.path[:], sys.argv[:], Path.cwd()
    sys.modules["__main__"], sys.argv[:] = main, [str(script)]
    sys.path.append(str(script.parent))
    os.chdir(script.parent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PracticeWarning)  # "a real GPU is used", which the box says
            yield
    finally:
        os.chdir(folder)
        sys.modules["__main__"], sys.path[:], sys.argv[:] = before, path, argv


@dataclass(frozen=True)
class CellRun:
    """A cell's output, the HTML of its last expression, its seconds, and its peak GPU memory in bytes."""

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
    """Return the text or the HTML of a value; HTML comes first, as in sphinx-gallery."""
    if value is None:
        return "", ""
    html = value._repr_html_() if hasattr(value, "_repr_html_") else None
    return ("", html) if isinstance(html, str) else (f"\n{value!r}", "")


def finish_gpu_work() -> None:
    if gpu_in_use():
        torch.cuda.synchronize()


def gpu_in_use() -> bool:
    """Return whether the lesson has initialized CUDA, which a query would do, too."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def recorded(cell: Cell, result: CellRun, figures: tuple[Figure, ...], project: Path) -> RecordedCell:
    ansi = r"\x1B(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])"  # colours of a terminal
    text, html = (re.sub(ansi, "", without_paths(part, project)) for part in (result.text, result.html))
    return RecordedCell(
        hash=cell.hash,
        code=cell.first_line,
        stdout=lines_of(text.expandtabs()),
        html=lines_of(html),
        figures=figures,
        seconds=round(result.seconds, 4),
        peak_memory=result.peak_memory,
    )


def draw(number: int, pictures: dict[str, bytes]) -> Figure:
    """Draw an open figure at double resolution, and describe it."""
    figure, file = plt.figure(number), io.BytesIO()
    figure.savefig(file, format="webp", dpi=2 * figure.dpi, pil_kwargs={"lossless": True})
    picture = file.getvalue()
    sha256 = hashlib.sha256(picture).hexdigest()
    name = f"{len(pictures) + 1:02}-{sha256[:8]}.webp"
    pictures[name] = picture
    return Figure(name, sha256, described(figure), round(figure.get_figwidth() * figure.dpi))
