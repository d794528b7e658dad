"""Check an exercise: run the learner's file, judge what it did, and answer like a teacher."""

from __future__ import annotations

import io
import os
import re
import tokenize
from pathlib import Path

from gpulesson.exercises import catalog, diagnose, judging, reading, runner
from gpulesson.exercises.catalog import Exercise
from gpulesson.exercises.findings import Finding, Source
from gpulesson.exercises.report import Report
from gpulesson.exercises.trace import Site, Trace

TIME_LIMIT = 120.0
"""Seconds that a program may take, by default."""
MEMORY_LIMIT = 4 * 2**30
"""Bytes of main memory that it may take, by default."""

_CELL = "cell.py"
_RULES = {
    "places": judging.places,
    "kinds": judging.kinds,
    "resuming": judging.resuming,
    "stopwatch": judging.stopwatch,
    "feeding": judging.feeding,
    "lean": judging.lean,
    "larger batch": judging.larger_batch,
}
"""The rules that belong to one demand alone."""


class UsageError(ValueError):
    """The check was asked for something that is not there; the message says what, and what there is."""


def check(
    program: str | os.PathLike[str],
    exercise: str | int | None = None,
    *,
    time_limit: float = TIME_LIMIT,
    memory_limit: int = MEMORY_LIMIT,
) -> Report:
    """Run a program on the practice GPU, or on a real one if there is one, and judge what it did.

    It runs in a process and an empty folder of its own, within bounds of time and memory. That guards
    against mistakes, not against malice: it is this machine, and whoever wrote the program may do on it what
    you may.

    Parameters
    ----------
    program : path or str
        A file; or, from a notebook, the source text itself (any string with a line break).
    exercise : str or int, optional
        Its number. By default the one that the file's name begins with, or that its docstring names
        (``"Exercise 4"``); if neither does, the program is judged as a training loop of your own.
    time_limit : float
        Seconds.
    memory_limit : int
        Bytes of main memory, of the program and its children; on macOS of the program alone, and on Windows
        nothing watches it.

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
    >>> report = check("04_training_loop.py")  # doctest: +SKIP
    >>> report.passed  # doctest: +SKIP
    False
    >>> [finding.kind for finding in report.findings]  # doctest: +SKIP
    ['model-on-cpu', 'missing-eval', 'mean-of-batch-means']
    """
    if time_limit <= 0 or memory_limit <= 0:
        raise UsageError(f"the limits are {time_limit} seconds and {memory_limit} bytes; give more than 0")
    name, beside, content = _content(program)
    source, unreadable = _decoded(name, content)
    task = _task(exercise, name, source)
    if unreadable is not None:
        return Report(task, name, (unreadable,))
    number = "" if task is None else task.number
    limits = {"seconds": time_limit, "memory": memory_limit}
    outcome = runner.run(content, name, exercise=number, beside=beside, **limits)  # type: ignore[arg-type]
    trace = outcome.trace
    if trace is None:
        findings = [_unfinished(outcome, source, time_limit, memory_limit)]
        return Report(task, name, tuple(findings), output=outcome.output)
    without = None
    if task is not None and "any machine" in task.demands and trace.error is None:
        without = runner.run(content, name, exercise=number, beside=beside, gpu=False, **limits).trace  # type: ignore[arg-type]
    found = judge(trace, source, task, without)
    return Report(
        task,
        name,
        tuple(found),
        trace.device,
        trace.simulated,
        facts(trace),
        trace.steps > 0,
        outcome.output,
    )


def judge(
    trace: Trace, source: Source, task: Exercise | None, without_gpu: Trace | None = None
) -> list[Finding]:
    """Apply the rules that an exercise asks for, the failures first.

    Parameters
    ----------
    trace : Trace
        Of the run.
    source : Source
        The learner's file.
    task : Exercise, optional
        None: a training loop of the learner's own.
    without_gpu : Trace, optional
        Of a second run, on a machine without a GPU.
    """
    demands = frozenset({"free"}) if task is None else task.demands
    found = [*diagnose.error(trace, source), *diagnose.answers(trace, source), *diagnose.steps(trace, source)]
    if trace.error is None:
        found += _finished(trace, source, demands, without_gpu)
        failed = any(finding.severity == "failure" for finding in found)
        if not failed and "training" in demands:
            found += diagnose.training(trace, source)
        if not failed and trace.steps and demands & {"training", "free"}:
            found += diagnose.falling(trace, source)
    if not any(finding.severity == "failure" for finding in found):
        found += diagnose.ending(trace, source)
    return sorted(found, key=lambda finding: finding.severity == "advice")


def _finished(
    trace: Trace, source: Source, demands: frozenset[str], without_gpu: Trace | None
) -> list[Finding]:
    """Apply the rules for a program that was not stopped by an error."""
    found: list[Finding] = []
    if demands & {"device", "free"}:
        found += diagnose.devices(trace, source)
    found += diagnose.modes(trace, source, always="modes" in demands)
    found += [
        finding
        for finding in diagnose.memory(trace, source)
        if finding.kind != "gradients-while-judging" or demands & {"accuracy", "free"}
    ]
    if "accuracy" in demands and trace.steps and not trace.argmaxes:
        found += judging.accuracy(trace, source)
    for demand, rule in _RULES.items():
        if demand in demands:
            found += rule(trace, source)
    if "any machine" in demands:
        found += judging.any_machine(trace, without_gpu, source)
    elif demands & {"accuracy", "kinds", "free"}:
        found += _written_down(source)
    return found


def _written_down(source: Source) -> list[Finding]:
    line = reading.literal_device(source.lines, "cuda")
    what = "Here the device is written down; on a machine without such a GPU this line stops the program."
    return [source.advice("hard-coded-cuda", line, what)] if line else []


def facts(trace: Trace) -> tuple[str, ...]:
    """Say in a few lines what the program did, whether right or wrong."""
    lines = []
    for model in trace.models:
        if model.stepped:
            lines.append(f"{model.name}: parameters on {', '.join(model.devices)}")
    if trace.steps:
        by = ", ".join(f"{opt.steps} by {opt.name}" for opt in trace.optimizers if opt.steps)
        lines.append(f"training steps: {by}")
    if len(trace.values) >= 4:
        first, last = reading.ends(trace.values)
        lines.append(f"training loss: {first:.4g} in the first tenth of the steps, {last:.4g} in the last")
    if trace.steps and any(trace.reads):
        waits = sum(read.count for read in trace.reads)
        lines.append(f"values fetched from the GPU: {waits} times in {trace.steps} steps")
    return tuple(lines)


def _content(program: str | os.PathLike[str]) -> tuple[str, str, bytes]:
    """Return the file's name, its folder, and its bytes."""
    if isinstance(program, str) and "\n" in program:
        return _CELL, str(Path.cwd()), program.encode("utf-8")
    path = Path(program)
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name the Python file in it")
    try:
        return path.name, str(path.resolve().parent), path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"there is no file {path} (looked for in {Path.cwd()})") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _decoded(name: str, content: bytes) -> tuple[Source, Finding | None]:
    """Read the text as Python would."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return Source(name, content.decode(encoding).splitlines()), None
    except (SyntaxError, UnicodeDecodeError, LookupError):
        source = Source(name, content.decode("utf-8", errors="replace").splitlines())
        line = reading.first_line(source.lines, "\N{REPLACEMENT CHARACTER}")
        return source, source.failure("not-text", line, "The file is not text in UTF-8.")


def named_in(file: str) -> Exercise | None:
    """Return the exercise that a file names: by its name or, if it can be read, in its first lines.

    Parameters
    ----------
    file : str
        Its path; there need not be such a file yet.
    """
    try:
        name, _, content = _content(file)
    except UsageError:
        return _task(None, Path(file).name, Source(file, []))
    return _task(None, name, _decoded(name, content)[0])


def _task(exercise: str | int | None, name: str, source: Source) -> Exercise | None:
    """Find the exercise: the one that was named, or that the file names."""
    if exercise is not None:
        try:
            return catalog.find(exercise)
        except ValueError as error:
            raise UsageError(str(error)) from None
    named = re.match(r"(\d\d)_", name) or re.search(
        r"\bexercise (\d+)\b", "\n".join(source.lines[:5]), flags=re.IGNORECASE
    )
    try:
        return catalog.find(named[1]) if named else None
    except ValueError:
        return None


def _unfinished(outcome: runner.Outcome, source: Source, seconds: float, memory: int) -> Finding:
    """Say why there is nothing to judge."""
    site: Site = outcome.site
    if outcome.status == "time":
        return source.failure("time", site, f"It was stopped after {seconds:g} seconds, on this line.")
    if outcome.status == "memory":
        return source.failure("memory", site, f"It was stopped when it had taken {memory / 2**30:.3g} GiB.")
    if outcome.status == "vanished":
        code = outcome.returncode
        how = f"with status {code}" if code >= 0 else f"by signal {-code}"
        return source.failure("vanished", 0, f"The process ended {how} before the program was through.")
    what = {
        "no-torch": f"Python cannot import torch: {outcome.message}",
        "no-practice-gpu": f"The practice GPU cannot be used: {outcome.message}",
        "slow-start": f"Importing PyTorch took more than {runner.START_SECONDS} seconds.",
    }[outcome.status]
    return source.failure(outcome.status, 0, what)
