"""The commands ``start``, ``check``, ``submissions`` and ``lessons`` of ``python -m gpulesson``."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpulesson._files import printable, whole_file
from gpulesson_tools.exercises import catalogue
from gpulesson_tools.exercises.catalogue import UsageError, exercises, find
from gpulesson_tools.exercises.checker import Check, begin, noted
from gpulesson_tools.exercises.report import Report
from gpulesson_tools.exercises.runner import SECONDS

NOTHING_TO_CHECK = 2
"""Exit status."""


def start(words: Sequence[str], prog: str) -> int:
    """Copy a starter into this folder; a file that is there already may be the learner's work, and stays."""
    parser = argparse.ArgumentParser(prog=prog)
    _add_number(parser)
    return _run(_start, parser, words)


def check(words: Sequence[str], prog: str) -> int:
    """Check a file, once or whenever it is saved."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Call the functions of an exercise on the practice GPU, and look at what they did. "
        "Exit status: 0 passed, 1 not yet, 2 nothing to check.",
    )
    parser.add_argument("what", nargs="+", metavar="[NN] FILE", help="the exercise's number, and your file")
    parser.add_argument("--hint", action="store_true", help="say at once how to fix what is wrong")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--watch", action="store_true", help="check again whenever the file is saved")
    _add_time_limit(parser)
    return _run(_check, parser, words)


def submissions(words: Sequence[str], prog: str) -> int:
    """Check a folder; nobody's progress is noted."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Check every Python file and notebook of a folder. Prints a line for each, and writes "
        "its report beside it, as JSON. Exit status: 0 all were checked, 1 one could not be, 2 nothing was.",
    )
    _add_number(parser)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="files at once (default: 1)")
    table = "write a table with a row for each function of each file"
    parser.add_argument("--csv", type=Path, metavar="FILE", help=table)
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="where the reports go")
    _add_time_limit(parser)
    return _run(_submissions, parser, words)


def lessons(words: Sequence[str], prog: str) -> int:
    """List the exercises, and which are passed."""
    return _run(_lessons, argparse.ArgumentParser(prog=prog), words)


def _add_number(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", metavar="NN", help="the exercise's number")


def _add_time_limit(parser: argparse.ArgumentParser) -> None:
    limit = "seconds of processor time for a file (default: %(default)g)"
    parser.add_argument("--time-limit", type=float, default=SECONDS, metavar="S", help=limit)


def _run(
    command: Callable[[argparse.Namespace], int], parser: argparse.ArgumentParser, words: Sequence[str]
) -> int:
    """Run a command with the rest of the command line; return its exit status."""
    options = parser.parse_args(words)
    try:
        return command(options)
    except (UsageError, ValueError, OSError, ImportError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return NOTHING_TO_CHECK
    except KeyboardInterrupt:
        print(f"\n{parser.prog}: stopped", file=sys.stderr)
        return 128 + signal.SIGINT


def _check(options: argparse.Namespace) -> int:
    *numbers, file = options.what
    if len(numbers) > 1:
        raise UsageError(f"give a number and one file, or the file alone; found {' '.join(options.what)}")
    if file.isdigit():
        starter = f"exercise_{file.zfill(2)}.py"
        if numbers or not Path(starter).is_file():
            raise UsageError(f"{file} is a number; give your file: python -m gpulesson check {starter}")
        file = starter
    number = numbers[0] if numbers else None
    while True:
        if sys.stderr.isatty():
            print("Checking …", file=sys.stderr)
        saved = _saved_at(file)  # before the check: what is saved during it is checked next
        report = noted(begin(file, number, _positive(options.time_limit)).report(), options.hint)
        coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        _print(json.dumps(report.to_dict(), indent=1) if options.json else report.text(colour=coloured))
        if not options.watch:
            return 0 if report.passed else 1
        _print(f"\nWaiting for {printable(file)} to be saved. Ctrl-C ends this.\n")
        while _saved_at(file) in (saved, 0):
            time.sleep(0.2)


def _saved_at(file: str) -> int:
    try:
        return Path(file).stat().st_mtime_ns
    except OSError:
        return 0


def _start(options: argparse.Namespace) -> int:
    exercise = find(options.number)
    path = Path(exercise.starter)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(exercise.text())
    except FileExistsError:
        raise UsageError(
            f"{path} is here already, perhaps with your work; rename it, then start again"
        ) from None
    many = "-m gpulesson practice --nproc 2 " if "--nproc" in exercise.text() else ""
    _print(
        f"Exercise {exercise.number}, {exercise.title}: {path} is yours to edit.\n\n"
        f"  1. Open {path}. Its first lines say what to do.\n"
        f"  2. Check it as often as you like: python -m gpulesson check {path}\n"
        f"  3. See what it does:              python {many}{path}"
    )
    return 0


def _lessons(options: argparse.Namespace) -> int:
    states = catalogue.progress()
    for exercise in exercises():
        entry = states.get(exercise.number, catalogue.Progress())
        state = f", passed on {entry.passed}" if entry.passed else ""
        if entry.checks and not entry.passed:
            state = f", checked {entry.checks} time{'s' * (entry.checks > 1)}"
        _print(f"[{'x' if entry.passed else ' '}] {exercise.number}  {exercise.title}{state}")
    passed, file = sum(bool(entry.passed) for entry in states.values()), printable(catalogue.progress_file())
    _print(f"\n{passed} of {len(exercises())} passed. Your progress is in {file}")
    return 0


def check_folder(
    folder: str | os.PathLike[str], exercise: str | int, *, jobs: int = 1, seconds: float = SECONDS
) -> Iterator[tuple[Path, Report | Exception]]:
    """Check the files of a class, and yield each report as soon as those before it are there.

    Parameters
    ----------
    folder : path
        Its files ``*.py`` and ``*.ipynb`` are checked, in the order of their names; no hidden ones, no links.
    exercise : str or int
        The number.
    jobs : int
        How many files run at once.
    seconds : float
        Of processor time, for each.

    Yields
    ------
    tuple of Path and Report
        The file, and the answer; or the exception that kept this file from being checked.

    Raises
    ------
    UsageError
        There is no such folder or exercise, no such file in it, or a number is not positive.

    Examples
    --------
    >>> for file, report in check_folder("submissions", 4, jobs=2):  # doctest: +SKIP
    ...     print(file.stem, report.passed)
    ada True
    """
    number = find(exercise).number
    _positive(seconds)
    if jobs < 1:
        raise UsageError(f"jobs is {jobs}; give 1 or more")
    if not Path(folder).is_dir():
        raise UsageError(f"there is no folder {printable(folder)} (looked for in {printable(Path.cwd())})")
    files = deque(path for path in sorted(Path(folder).iterdir()) if is_program(path))
    if not files:
        raise UsageError(
            f"there is no Python file or notebook in {printable(folder)}; put one for each learner into it"
        )
    running: deque[tuple[Path, Check | Exception]] = deque()
    try:
        while files or running:
            while files and len(running) < jobs:
                running.append((files[0], _begun(files.popleft(), number, seconds)))
            file, check = running.popleft()
            try:
                yield file, check.report() if isinstance(check, Check) else check
            except Exception as error:  # a full disk, for instance: the others go on
                yield file, error
    finally:
        for _, check in running:
            if isinstance(check, Check):
                check.end()


def _begun(file: Path, number: str, seconds: float) -> Check | Exception:
    try:
        return begin(file, number, seconds)
    except Exception as error:
        return error


def is_program(path: Path) -> bool:
    """Return whether a file of a folder is one to check."""
    regular = path.is_file() and not path.is_symlink()
    return regular and path.suffix in (".py", ".ipynb") and not path.name.startswith(".")


def _submissions(options: argparse.Namespace) -> int:
    rows: list[Sequence[str]] = [("file", "function", "state", "found", "says")]
    passed = total = broken = 0
    faults: Counter[str] = Counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    reports = options.reports or options.folder
    for path in sorted(options.folder.iterdir()) if options.folder.is_dir() else ():
        if not is_program(path) and path.suffix != ".json":
            _print(f"{printable(path.name):<24} skipped: not a Python file or notebook")
    for file, found in check_folder(
        options.folder, options.number, jobs=options.jobs, seconds=options.time_limit
    ):
        total += 1
        try:
            if not isinstance(found, Report):
                raise found
            _write(reports / f"{file.stem}.json", json.dumps(found.to_dict(), indent=1))
        except Exception as error:
            broken = 1
            said = f"not checked: {type(error).__name__}: {printable(error)}"
            rows.append((file.name, "", "not checked", type(error).__name__, printable(error)))
        else:
            rows += [(file.name, *row) for row in _rows(found)]
            passed += found.passed
            faults.update(set(found.kinds))
            done = sum(each.state == "done" for each in found.answers)
            said = "passed" if found.passed else f"{done} of {len(found.answers)}: {', '.join(found.kinds)}"
        _print(f"{printable(file.stem):<24} {said}")
    _print(f"\n{passed} of {total} passed")
    for kind, count in sorted(faults.items(), key=lambda pair: (-pair[1], pair[0])):
        _print(f"{count} of {total}: {kind}")
    if options.csv is not None:
        table = io.StringIO(newline="")
        csv.writer(table).writerows(rows)
        _write(options.csv, table.getvalue())
    return broken


def _rows(report: Report) -> Iterator[Sequence[str]]:
    """Yield what a table says of each function: its name, its state, what was found, and in words."""
    others = {"done": "It is right.", "missing": "It is not there yet."}
    found = [
        (each.name, each.state, each.findings, others.get(each.state, f"It {each.does}."))
        for each in report.answers
    ]
    for name, state, findings, sentence in [("", "stopped", report.stopped, "")] if report.stopped else found:
        says = " ".join(each.says.replace("\n", " ") for each in findings)
        yield name, state, "; ".join(each.kind for each in findings), says or sentence


def _write(path: Path, text: str) -> None:
    """Write a file whole, into its own folder: a link of that name is replaced, and not followed."""
    if path.is_symlink():
        path.unlink()
    with whole_file(path) as file:
        file.write(text.encode())


def _positive(seconds: float) -> float:
    if not seconds > 0:
        raise UsageError(f"the time limit is {seconds:g} seconds; give more than 0")
    return seconds


def _print(text: str) -> None:
    """Print as far as the terminal can show it."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, errors="replace").decode(encoding), flush=True)
