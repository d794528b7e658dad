"""Check an exercise: run the learner's file, look at what it did, and answer like a teacher."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import tokenize
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath

from gpulesson.exercises.demands import Demand, checklist
from gpulesson.exercises.exercise import COMMON, Exercise, Rule, find
from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural, times
from gpulesson.exercises.process import ranks, run
from gpulesson.exercises.process.warm import START_SECONDS, WarmProcess
from gpulesson.exercises.report import Report
from gpulesson.exercises.rules import (
    causes,
    definitions,
    devices,
    endings,
    errors,
    memory,
    models,
    source_text,
    steps,
)
from gpulesson.exercises.trace import Site, Trace

TIME_LIMIT = 120.0
"""Seconds of processor time that a program may take, by default."""
MEMORY_LIMIT = 4 * 2**30
"""Bytes of main memory that it may take, by default."""

_CELL = "cell.py"
_LESSON = ".. overview::"
"""A line that every lesson has."""
_ANY_PROGRAM = (endings.raised, causes.not_called, causes.split_order, models.answers, steps.order)
"""Rules that are asked also when an error has stopped the program."""
_OWN_LOOP = (devices.trained_on, *COMMON, memory.gradients_while_evaluating, devices.written_down)
"""Rules for a training loop of the learner's own, which belongs to no exercise."""


class UsageError(ValueError):
    """The check was asked for something that is not there; the message says what, and what there is."""


def check(
    program: str | os.PathLike[str],
    exercise: str | int | None = None,
    *,
    time_limit: float = TIME_LIMIT,
    memory_limit: int = MEMORY_LIMIT,
    warm: WarmProcess | None = None,
    tell: Callable[[float], object] | None = None,
) -> Report:
    """Run a program on the practice GPU, or on a real one if there is one, and look at what it did.

    It runs in a process and an empty folder of its own, within bounds of time and memory. That guards
    against mistakes, not against malice: it is this machine, and the program's author may do on it what
    you may.

    Parameters
    ----------
    program : path or str
        A file; or, from a notebook, the source text itself (any string with a line break).
    exercise : str or int, optional
        Its number. By default the one that the file's name begins with, or that its docstring names
        (``"Exercise 4"``); if neither does, the program is checked as a training loop of your own.
    time_limit : float
        Seconds of processor time, of the program and its children; on macOS of the program alone. A program
        that waits as long, and computes nothing, is stopped as well. On Windows seconds on the clock.
    memory_limit : int
        Bytes of main memory, of the program and its children; on macOS of the program alone, and on Windows
        nothing watches it.
    warm : WarmProcess, optional
        Starts the program with PyTorch imported already, for those who check many.
    tell : callable, optional
        Called while the program runs, with the seconds since it was started.

    Returns
    -------
    Report
        Prints as text, and shows itself in a notebook.

    Raises
    ------
    UsageError
        There is no such file or no such exercise, or a limit is not positive.

    Examples
    --------
    >>> report = check("exercise_04.py")  # doctest: +SKIP
    >>> report.passed  # doctest: +SKIP
    False
    >>> [finding.kind for finding in report.findings]  # doctest: +SKIP
    ['model-on-cpu', 'missing-eval', 'mean-of-batch-means']
    """
    require_positive(time_limit, memory_limit)
    name, beside, content, cells = _content(program)
    source, unreadable = _decoded(name, content)
    shown = str(Path(name).with_suffix(".ipynb")) if cells else name
    if _LESSON in source.lines:
        raise UsageError(
            f"{name} is a lesson, not an exercise: python -m gpulesson start {name[:2]} gives you its starter"
        )
    source = replace(source, beside=beside, cells=cells)
    task = _task(exercise, name, source)
    if unreadable is not None:
        return Report(task, shown, (unreadable,))
    number = "" if task is None else task.number
    options = {
        "data": [] if task is not None and task.starts_empty else named_beside(source, Path(beside)),
        "exercise": number,
        "beside": beside,
        "seconds": time_limit,
        "memory": memory_limit,
        "tell": tell,
    }
    if task is None or task.processes == 1:
        outcome = run.run(content, name, **options, warm=warm)  # type: ignore[arg-type]
    else:
        outcome = ranks.joined(ranks.run_ranks(task.processes, content, name, **options, warm=warm))  # type: ignore[arg-type]
    trace = outcome.trace
    if trace is None:
        waited = time_limit if task is None or task.processes == 1 else min(time_limit, ranks.WAIT)
        findings = [_unfinished(outcome, source, time_limit, waited, memory_limit)]
        return Report(task, shown, tuple(findings), output=readable(source.in_cells(outcome.output)))
    if task is not None and task.without_gpu and trace.error is None:
        trace.without_gpu = run.run(content, name, **options, gpu=False, warm=warm).trace  # type: ignore[arg-type]
    return Report(
        task,
        shown,
        *apply_rules(trace, source, task),
        *_computed_on(trace, task),
        () if task is not None and task.function else facts(trace),  # there the check's own calls count
        trace.steps > 0,
        readable(source.in_cells(outcome.output)),
    )


def readable(output: str) -> str:
    """Return what a program printed without colours, and without PyTorch's advice to load any file."""
    plain = re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", output)
    advice = r"Weights only load failed\..*(?:\n\t.*|\n\s*$|\nCheck the documentation of torch\.load.*)*"
    return re.sub(advice, lambda found: errors.first_line(found[0]), plain, flags=re.MULTILINE)


def named_beside(source: Source, folder: Path) -> list[Path]:
    """Find the files and folders next to a program that it names in a string: its data."""
    constants = (node.value for node in source_text.all_nodes(source.lines) if isinstance(node, ast.Constant))
    texts = {text for text in constants if isinstance(text, str) and text.isprintable() and len(text) < 256}
    names = {PurePath(text).parts[0] for text in texts if PurePath(text).parts}
    found = [folder / name for name in sorted(names - {"..", os.sep})]
    return [path for path in found if path.exists() and path.suffix != ".py"]


def require_positive(time_limit: float, memory_limit: int) -> None:
    """Raise UsageError unless both limits are more than 0."""
    if time_limit <= 0 or memory_limit <= 0:
        raise UsageError(
            f"both limits must be more than 0; found {time_limit:g} seconds and {memory_limit} bytes"
        )


def apply_rules(
    trace: Trace, source: Source, task: Exercise | None
) -> tuple[tuple[Finding, ...], tuple[Demand, ...]]:
    """Apply the rules that an exercise takes; return what they found, the failures first, and the checklist.

    Parameters
    ----------
    trace : Trace
        Of the run.
    source : Source
        The learner's file.
    task : Exercise, optional
        None: a training loop of the learner's own.
    """
    rules, last = (_OWN_LOOP, (steps.loss_falls,)) if task is None else (task.rules, task.last)
    found: dict[Rule, list[Finding]] = {}

    def asked_of(rule: Rule) -> list[Finding]:
        return [_as_asked(finding, task) for finding in rule(trace, source)]

    def apply(*some: Rule) -> None:
        found.update({rule: asked_of(rule) for rule in some})

    apply(*_ANY_PROGRAM)
    if trace.error is None:
        apply(*rules)
        for rule in last:
            if not _failed(found):
                apply(rule)
    elif task is not None and (task.processes > 1 or _stopped_by_its_own_test(trace, source, task)):
        raised = found.pop(endings.raised)
        seen = {**found, **{rule: asked_of(rule) for rule in rules}}
        found = seen if _failed(seen) else {endings.raised: raised, **found}  # more than an assertion says
    if _failed(found):
        apply(causes.value_not_called, causes.missing_return)
    else:
        apply(endings.exited)
    findings = causes.first([finding for some in found.values() for finding in some])
    asked = [*_ANY_PROGRAM, causes.value_not_called, *rules, *last]
    if found.get(causes.missing_return):
        asked.insert(1, causes.missing_return)
    ended = trace.error is None or bool(task and _stopped_by_its_own_test(trace, source, task))
    if task and task.without_gpu:
        ended = ended and _ends_without_gpu(trace)
    demands = checklist(asked, found, task, trained=trace.steps > 0, shown=findings, to_the_end=ended)
    return tuple(sorted(findings, key=lambda finding: finding.severity == "advice")), demands


def _as_asked(finding: Finding, task: Exercise | None) -> Finding:
    """Return a finding as the exercise takes it: what a step asks for is no mere advice."""
    asked = task is not None and finding.kind in task.asked_for
    return replace(finding, severity="failure") if asked else finding


def _ends_without_gpu(trace: Trace) -> bool:
    without = trace.without_gpu
    return without is not None and without.error is None and not without.exit_code


def _stopped_by_its_own_test(trace: Trace, source: Source, task: Exercise) -> bool:
    """Tell whether the check could call the learner's function, and an error outside of it ended the file."""
    if trace.error is None or not task.function or not trace.facts.get("called"):
        return False
    inside = definitions.span(source.lines, task.function)
    return not any(site.line in inside for site in trace.error.lines)


def _failed(found: dict[Rule, list[Finding]]) -> bool:
    return any(finding.is_failure for findings in found.values() for finding in findings)


def _computed_on(trace: Trace, task: Exercise | None) -> tuple[str, bool]:
    """Return what the program computed on, and whether that was the practice GPU.

    An exercise need not ask for the GPU: then a training on the CPU is called so.
    """
    places = {place for model in trace.models if model.stepped for place in model.devices}
    if task is not None and devices.trained_on not in task.rules and places == {"cpu"}:
        return "CPU", False
    return trace.device, trace.simulated


def facts(trace: Trace) -> tuple[str, ...]:
    """Say in a few lines what the program did, whether right or wrong."""
    lines = []
    places = Counter((model.name, ", ".join(model.devices)) for model in trace.models if model.stepped)
    for (name, place), count in places.items():
        lines.append(f"{name}{f' ({count} of them)' if count > 1 else ''}: parameters on {place}")
    if trace.steps:
        taken = Counter((opt.steps, opt.name) for opt in trace.optimizers if opt.steps)
        by = [
            f"{number} by {name}" if count == 1 else f"{number} by each of {count} {name} optimizers"
            for (number, name), count in taken.items()
        ]
        runs = sum(taken.values())
        told = ", ".join(by) if len(by) < 4 else f"{trace.steps:,} in all, by {runs} optimizers"
        lines.append(f"training steps: {told}")
    if len(trace.values) >= 4 and sum(opt.steps > 0 for opt in trace.optimizers) < 2:
        first, last = steps.ends(trace.values)
        lines.append(f"training loss: {first:.4g} in the first tenth of the steps, {last:.4g} in the last")
    if trace.steps and any(trace.reads):
        waits = sum(read.count for read in trace.reads)
        lines.append(f"values fetched from the GPU: {times(waits)} in {plural(trace.steps, 'step')}")
    return tuple(lines)


def _content(program: str | os.PathLike[str]) -> tuple[str, str, bytes, tuple[int, ...]]:
    """Return the program's name, its folder, its bytes, and the lines before the cells of a notebook."""
    if isinstance(program, str) and "\n" in program:
        return _CELL, str(Path.cwd()), program.encode("utf-8"), ()
    path = Path(program)
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give the Python file in it")
    try:
        content = path.read_bytes()
        if path.suffix == ".ipynb":
            return f"{path.stem}.py", str(path.resolve().parent), *notebook_code(path.name, content)
        return path.name, str(path.resolve().parent), content, ()
    except FileNotFoundError:
        raise UsageError(f"there is no file {path} (looked for in {Path.cwd()})") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


_RUNS_PYTHON = ("capture", "prun", "time", "timeit")
"""Of the commands for a whole cell, ``%%time`` and so on, those that run it as it is."""


def notebook_code(name: str, content: bytes) -> tuple[bytes, tuple[int, ...]]:
    """Return the code of a notebook, in the order of its cells, as one program; and where the cells begin.

    A comment with the cell's number stands above each cell: the numbers of these lines come back. Lines for
    the notebook alone, which begin with ``%``, ``!`` or ``?``, become comments: a cell keeps its lines. So
    does a whole cell in another language, such as ``%%bash``.

    Raises
    ------
    UsageError
        It is no notebook.
    """
    try:
        cells = json.loads(content)["cells"]
        codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{name} cannot be read as a notebook: {type(error).__name__}: {error}") from None
    lines: list[str] = []
    cells = []
    for number, code in enumerate(codes, 1):
        lines.append(f"# cell {number}")
        cells.append(len(lines))
        magic = re.match(r"\s*%%(\w*)", code)
        if magic and magic[1] not in _RUNS_PYTHON:
            lines += [f"# {line}" for line in code.splitlines()]
        else:
            lines += [re.sub(r"^(\s*)([%!?].*)$", r"\1pass  # \2", line) for line in code.splitlines()]
    return "\n".join([*lines, ""]).encode(), tuple(cells)


def _decoded(name: str, content: bytes) -> tuple[Source, Finding | None]:
    """Read the text as Python would."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return Source(name, content.decode(encoding).splitlines()), None
    except (SyntaxError, UnicodeDecodeError, LookupError):
        source = Source(name, content.decode("utf-8", errors="replace").splitlines())
        line = source_text.first_line(source.lines, "\N{REPLACEMENT CHARACTER}")
        return source, source.failure(endings.NOT_TEXT, line, "The file is not text in UTF-8.")


def named_in(file: str) -> Exercise | None:
    """Return the exercise that a file names: by its name or, if it can be read, in its first lines.

    Parameters
    ----------
    file : str
        Its path; there need not be such a file yet.
    """
    try:
        name, _, content, _ = _content(file)
    except UsageError:
        return _task(None, Path(file).name, Source(file, []))
    return _task(None, name, _decoded(name, content)[0])


def _task(exercise: str | int | None, name: str, source: Source) -> Exercise | None:
    """Find the exercise: the one that was named, or that the file names."""
    if exercise is not None:
        try:
            return find(exercise)
        except ValueError as error:
            raise UsageError(str(error)) from None
    named = re.match(r"(?:exercise_|solution_)?(\d\d)[_.]", name) or re.search(
        r"\bexercise (\d+)\b", "\n".join(source.lines[:5]), flags=re.IGNORECASE
    )
    try:
        return find(named[1]) if named else None
    except ValueError:
        return None


def _unfinished(outcome: run.Outcome, source: Source, seconds: float, waited: float, memory: int) -> Finding:
    """Say why there is nothing to look at."""
    site, code = outcome.site, outcome.returncode
    here = ", on this line" if site.line else ""
    how = f"with status {code}" if code >= 0 else f"by signal {-code}"
    ways: dict[str, tuple[Diagnosis, Site | int, str]] = {
        "time": (endings.TIME, site, f"It was stopped after {seconds:g} seconds of work{here}."),
        "idle": (endings.IDLE, site, f"It waited for {waited:g} seconds{here}, and was stopped."),
        "memory": (endings.MEMORY, site, f"It was stopped when it used {memory / 2**30:.3g} GiB of memory."),
        "vanished": (endings.VANISHED, 0, f"The process ended {how}, before the end of the program."),
        "no-torch": (endings.NO_TORCH, 0, f"Python cannot import torch: {outcome.message}"),
        "no-practice-gpu": (
            endings.NO_PRACTICE_GPU,
            0,
            f"The check found no GPU that it can use: {outcome.message}",
        ),
        "slow-start": (
            endings.SLOW_START,
            0,
            f"Importing PyTorch took more than {START_SECONDS} seconds.",
        ),
    }
    return source.failure(*ways[outcome.status])
