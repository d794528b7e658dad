"""The commands ``start``, ``check``, ``submissions`` and ``lessons`` of ``python -m gpulesson``."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpulesson.exercises import progress
from gpulesson.exercises.checker import TIME_LIMIT, UsageError, check, named_in
from gpulesson.exercises.exercise import Exercise, exercises, find
from gpulesson.exercises.findings import Finding, times
from gpulesson.exercises.report import Report
from gpulesson.exercises.starters import copy_starter
from gpulesson.exercises.submissions import check_folder, is_program

NOTHING_TO_CHECK = 2
"""Exit status."""


class Stopped(SystemExit):
    """A signal has ended the command; its exit status is the one that a shell gives it."""


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Have Ctrl-C, SIGTERM and SIGHUP end the program under check, and then the command, in one line."""

    def stop(number: int, frame: Any) -> None:
        for name in handled:
            signal.signal(name, signal.SIG_IGN)  # the first one is enough
        raise Stopped(128 + number)

    names = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    handled = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {name: signal.signal(name, stop) for name in handled}
    try:
        yield
    except Stopped:
        print("\ngpulesson: stopped", file=sys.stderr)
        raise
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def add(commands: Any) -> None:
    """Add the commands to a parser's subparsers."""
    parser = commands.add_parser("start", help="copy an exercise's starter into this folder")
    parser.add_argument("number", metavar="NN", help="the exercise's number")
    parser = commands.add_parser(
        "check",
        help="run an exercise and say what is wrong, where, and why",
        description="Run an exercise on the practice GPU, or on a real one, and look at what it did. "
        "Exit status: 0 passed, 1 not yet, 2 nothing to check.",
    )
    parser.add_argument("what", nargs="+", metavar="[NN] FILE", help="the exercise's number, and your file")
    parser.add_argument("--hint", action="store_true", help="show the next hint, and check nothing")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--watch", action="store_true", help="check again whenever the file is saved")
    _add_time_limit(parser)
    parser = commands.add_parser(
        "submissions",
        help="check a folder of files, one for each learner, and write the reports beside them",
        description="Check every Python file of a folder. Prints a line for each, and writes its report "
        "beside it, as JSON. Exit status: 0 all were checked, 1 a check itself went wrong, 2 nothing to "
        "check.",
    )
    parser.add_argument("number", metavar="NN", help="the exercise's number")
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "-j", "--jobs", type=int, default=1, metavar="N", help="programs that run at once (default: 1)"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a table with a row for each file")
    parser.add_argument(
        "--reports", type=Path, metavar="FOLDER", help="where the reports go (default: beside the files)"
    )
    _add_time_limit(parser)
    commands.add_parser("lessons", help="list the lessons and exercises, with your progress")


def _add_time_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--time-limit",
        type=float,
        default=TIME_LIMIT,
        metavar="S",
        help="seconds of processor time for a program (default: %(default)g)",
    )


def run_check(options: argparse.Namespace) -> int:
    """Run the command ``check``; return its exit status."""
    if len(options.what) > 2:
        return _usage(f"give a number and one file, or the file alone; found {' '.join(options.what)}")
    *number, file = options.what
    if options.hint:
        return _hint(number[0] if number else None, file)
    if not number and file.isdigit():
        return _usage(f"{file} is a number; give your file, too: python -m gpulesson check {file} my_loop.py")
    given = number[0] if number else None
    with stopped_by_signals():
        saved = _saved_at(file)  # before the check: what is saved during it is checked next
        status = _checked_once(file, given, options)
        while options.watch and status != NOTHING_TO_CHECK:
            saved = _saved_after(saved, file)
            status = _checked_once(file, given, options)
    return status


def _checked_once(file: str, number: str | None, options: argparse.Namespace) -> int:
    """Check a file and print the answer; return the exit status."""
    try:
        with _progress_line(file) as tell:
            report = check(file, number, time_limit=options.time_limit, tell=tell)
    except UsageError as error:
        return _usage(str(error))
    first = next((finding.kind for finding in report.failures), "")
    task = report.exercise
    if task is not None and not progress.note_check(task.number, report.passed, first):
        print(f"(Your progress could not be written to {progress.progress_file()}.)", file=sys.stderr)
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    text = json.dumps(report.to_dict(), indent=1) if options.json else report.text(colour=coloured)
    print(_printable(text), flush=True)
    return 0 if report.passed else 1


@contextlib.contextmanager
def _progress_line(file: str) -> Iterator[Callable[[float], object] | None]:
    """While a program runs, say on the terminal for how long; elsewhere say nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        yield lambda seconds: print(
            f"\rrunning {file} … {seconds:.0f} s ", end="", file=sys.stderr, flush=True
        )
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _saved_after(before: int | None, file: str) -> int:
    """Wait until a file is saved again, or comes back; return when that was."""
    print(f"\nWaiting for {file} to be saved. Ctrl-C ends this.\n", flush=True)
    while (saved := _saved_at(file)) in (before, None):
        time.sleep(0.2)
    assert saved is not None
    return saved


def _saved_at(file: str) -> int | None:
    try:
        return Path(file).stat().st_mtime_ns
    except OSError:
        return None


def run_start(options: argparse.Namespace) -> int:
    """Run the command ``start``; return its exit status."""
    try:
        exercise = find(options.number)
        path = copy_starter(exercise, Path())
    except FileExistsError as error:
        return _usage(
            f"{error.filename} is here already, perhaps with your work; rename or move it, then start again",
            "start",
        )
    except (ValueError, OSError) as error:
        return _usage(str(error), "start")
    print(_printable(f"Exercise {exercise.number}, {exercise.title}: {path} is yours to edit.\n"))
    print(f"  1. Open {path}. Its first lines say what to do.")
    many = f"-m gpulesson practice --nproc {exercise.processes} " if exercise.processes > 1 else ""
    print(f"  2. Run it:    python {many}{path}")
    print(f"  3. Check it:  python -m gpulesson check {path}")
    return 0


def _hint(number: str | None, file: str) -> int:
    """Show the next hint of an exercise, and remember that."""
    if number is None and file.isdigit():
        number = file
    try:
        exercise = named_in(file) if number is None else find(number)
    except ValueError as error:
        return _usage(f"{error}; for a hint: python -m gpulesson check 04 --hint")
    if exercise is None:
        return _usage(f"{file} names no exercise; give its number: python -m gpulesson check 04 --hint")
    entry = progress.load().get(exercise.number, progress.Progress())
    shown = entry.hints
    # the hints before that one are about what the last check has found to be right
    count = min(max(shown + 1, exercise.hint_for.get(entry.found, 1)), len(exercise.hints))
    print(_printable(f"Hint {count} of {len(exercise.hints)}: {exercise.hints[count - 1]}"))
    if shown >= len(exercise.hints):
        print("That was the last hint. The solution is at the end of the lesson's page: click to open it.")
    progress.note_hint(exercise.number, count)
    return 0


def _usage(message: str, command: str = "check") -> int:
    print(f"gpulesson {command}: {message}", file=sys.stderr)
    return 2


def run_submissions(options: argparse.Namespace) -> int:
    """Run the command ``submissions``; return its exit status. Nobody's progress is noted."""
    broken, rows = False, []
    faults: Counter[str] = Counter()
    try:
        reports = check_folder(
            options.folder, options.number, jobs=options.jobs, time_limit=options.time_limit
        )
        if options.reports is not None:
            options.reports.mkdir(parents=True, exist_ok=True)
    except (UsageError, OSError) as error:
        return _usage(str(error), "submissions")
    for path in sorted(options.folder.iterdir()):
        if not is_program(path) and path.suffix != ".json":
            why = "a hidden file" if path.name.startswith(".") else "not a Python file"
            print(_printable(f"{path.name:<24} skipped: {why}"), flush=True)
    with stopped_by_signals(), contextlib.closing(reports):
        for file, report in reports:
            if isinstance(report, Report):
                name = file.name.removesuffix(".py") + ".json"
                report = _written((options.reports or file.parent) / name, report)
            if isinstance(report, Report):
                said = ", ".join(map(_said, report.failures)) or "passed"
                result = "passed" if report.passed else "not yet"
                rows.append([file.name, result, *map(_short, report.failures)])
                faults.update({found.kind for found in report.failures})
            else:
                broken = True
                said = f"not checked: {type(report).__name__}: {report}"
                rows.append([file.name, "not checked", str(report)])
            print(_printable(f"{file.name.removesuffix('.py'):<24} {said}"), flush=True)
    passed = sum(row[1] == "passed" for row in rows)
    print(f"\n{passed} of {len(rows)} passed")
    for kind, count in sorted(faults.items(), key=lambda pair: (-pair[1], pair[0])):
        print(_printable(f"{count} of {len(rows)}: {kind}"))
    if options.csv is not None:
        try:
            with options.csv.open("w", encoding="utf-8", newline="") as table:
                csv.writer(table).writerows([["file", "result", "found"], *rows])
        except OSError as error:
            broken = bool(_usage(f"the table cannot be written: {error}", "submissions"))
    return int(broken)


def _said(found: Finding) -> str:
    return f"{found.kind} ({found.place})" if found.place else found.kind


def _short(found: Finding) -> str:
    """Return a finding as the table has it: "missing-eval:12", in a notebook "missing-eval:cell 4:3"."""
    cell = f"cell {found.cell}:" if found.cell else ""
    return f"{found.kind}:{cell}{found.line}"


def _written(path: Path, report: Report) -> Report | OSError:
    """Write a report as JSON; return what went wrong, if it cannot be."""
    try:
        path.write_text(json.dumps(report.to_dict(), indent=1), encoding="utf-8")
    except OSError as error:
        return error
    return report


def run_lessons() -> int:
    """Run the command ``lessons``."""
    states = progress.load()
    for exercise in exercises():
        print(_printable(f"{exercise.number}  {exercise.lesson}"))
        print(_printable(f"    {_state(exercise, states.get(exercise.number))}"))
    passed = sum(bool(entry.passed) for entry in states.values())
    print(
        f"\n{passed} of {len(exercises())} exercises passed. Your progress is in {progress.progress_file()}"
    )
    return 0


def _state(exercise: Exercise, entry: progress.Progress | None) -> str:
    mark, note = "[ ]", ""
    if entry is not None and entry.passed:
        mark, note = "[x]", f", passed on {entry.passed}"
    elif entry is not None and entry.checks:
        note = f", checked {times(entry.checks)}"
    if entry is not None and entry.hints:
        note += f", {entry.hints} of {len(exercise.hints)} hints"
    return f"{mark} {exercise.title} ({exercise.difficulty}{note})"


def _printable(text: str) -> str:
    """Return the text as far as the terminal can show it."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, errors="replace").decode(encoding)
