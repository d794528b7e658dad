"""Check an exercise: a file in fresh processes, or the functions of a notebook where they are."""

from __future__ import annotations

import io
import json
import linecache
import os
import re
import sys
import tokenize
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpulesson._files import printable, read_file
from gpulesson_tools.exercises import catalogue, contract, reading, report
from gpulesson_tools.exercises.catalogue import Exercise, UsageError, find
from gpulesson_tools.exercises.reading import Finding
from gpulesson_tools.exercises.report import Answer, Report
from gpulesson_tools.exercises.runner import (
    IMPORTING,
    MEMORY,
    SECONDS,
    FreshProcess,
    bounded,
    installed_modules_first,
    preload,
)

_MOST = 2**20
"""Bytes that a file may have: a longer one was written by no learner."""
_START = "python -m gpulesson start"
_CHECKED = "GPULESSON_CHECKED"
"""Set in the process that runs a learner's file: a check in it does nothing."""


def check(what: str | int | os.PathLike[str], /, hint: bool = False, **functions: Any) -> Report | None:
    """Check the functions of an exercise, or a file with them, on the practice GPU.

    Parameters
    ----------
    what : int, str or path
        The exercise's number; or a file, ``.py`` or ``.ipynb``.
    hint : bool
        Say at the first check how to fix what is wrong.
    **functions
        In a notebook: the functions, by the names that the exercise gives them.

    Returns
    -------
    Report
        Prints as text, and shows itself in a notebook.

    Raises
    ------
    UsageError
        There is no such exercise or file, or the exercise has no function of such a name.

    Examples
    --------
    >>> check(4, train_step=train_step, accuracy=accuracy)  # doctest: +SKIP
    """
    if os.environ.get(_CHECKED):
        return None  # the last cell of a notebook that is itself being checked
    if isinstance(what, os.PathLike) or (isinstance(what, str) and what.endswith((".py", ".ipynb"))):
        return noted(begin(what).report(), hint)
    return noted(check_functions(find(what), functions), hint)


def noted(found: Report, hint: bool = False) -> Report:
    """Count a check in the learner's progress; its words then know how often they were said."""
    said, written = catalogue.note(found.exercise.number, found.kinds, found.passed, hint)
    if not written:
        where = catalogue.progress_file()
        print(f"(Your progress could not be written to {printable(where)}.)", file=sys.stderr)
    return replace(found, said=said)


def check_functions(exercise: Exercise, functions: dict[str, Any]) -> Report:
    """Check functions in this process; where an exercise needs several, the cells that define them."""
    with installed_modules_first(Path.cwd()):
        tasks = exercise.tasks()
        preload()
    names = [task.name for task in tasks]
    if unknown := [name for name in functions if name not in names]:
        raise UsageError(f"exercise {exercise.number} has no {unknown[0]}: it asks for {', '.join(names)}")
    code = {name: each.__code__ for name, each in functions.items() if hasattr(each, "__code__")}
    if any(task.apart for task in tasks):
        return replace(Check(exercise, _cells_of(functions), Path("cell.py")).report(), file="")
    import torch

    found, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)  # the models are tiny
    try:
        for place, task in enumerate(tasks):
            file = code[task.name].co_filename if task.name in code else ""
            with bounded(SECONDS, MEMORY):
                found[task.name] = contract.facts_of(task, functions.get(task.name), tasks[:place], file)
        answers = []
        for each in report.answers(tasks, found):
            text = _cell(code[each.name].co_filename) if each.name in code else ""
            slips = reading.slips(text, [each.name], {each.name: functions.get(each.name)})
            answers.append(report.with_slips(each, slips[each.name]))
        return Report(exercise, "", tuple(answers), notes=tuple(_notes(Path.cwd(), "a new notebook")))
    finally:
        torch.set_num_threads(threads)


def _cell(file: str) -> str:
    return "".join(linecache.getlines(file))


def _cells_of(functions: dict[str, Any]) -> str:
    """Return the cells that define functions, and before them an import of each module that they use."""
    written = [function for function in functions.values() if hasattr(function, "__code__")]
    lines = set()
    for function in written:
        for name in contract.called(function.__code__):
            value = function.__globals__.get(name)
            module = getattr(value, "__module__", None) or ""
            if isinstance(value, types.ModuleType):
                lines.add(f"import {value.__name__} as {name}\n")
            elif module != "__main__" and getattr(sys.modules.get(module), name, None) is value is not None:
                lines.add(f"from {module} import {name}\n")
    cells = dict.fromkeys(function.__code__.co_filename for function in written)
    return "".join(sorted(lines)) + "\n".join(map(_cell, cells))


class Check:
    """A running check of a file's text; `cells` are the lines before those of a notebook's cells."""

    def __init__(
        self, exercise: Exercise, text: str, path: Path, cells: Sequence[int] = (), seconds: float = SECONDS
    ) -> None:
        self.exercise, self.file, self._cells = exercise, path.name, cells
        self._running = FreshProcess(_observe, exercise.number, text, str(path.absolute()), seconds=seconds)

    def report(self) -> Report:
        """Wait, and return what was found."""
        *messages, how = self._running.results()
        facts = dict(messages)
        stopped = self._findings(facts.pop("stopped", ()))
        slips, notes = facts.pop("slips", {}), facts.pop("notes", ())
        unseen = _UNSEEN[how]
        if not facts.pop("loaded", False):
            stopped = stopped or (report.error({"error": unseen}, "The file stops"),)
            unseen = ""
        *found, how = FreshProcess(_judge, self.exercise.number, facts, unseen, seconds=IMPORTING).results()
        if how != "ended":
            raise OSError("the check itself did not come to its end: check again")
        answers = []
        for each in found:
            answer = Answer(**each | {"findings": self._findings(each["findings"])})
            answers.append(report.with_slips(answer, self._findings(slips.get(answer.name, ()))))
        return Report(self.exercise, printable(self.file), tuple(answers), stopped, tuple(notes))

    def end(self) -> None:
        """End it before its time."""
        self._running.end()

    def _findings(self, found: Sequence[dict[str, Any]]) -> tuple[Finding, ...]:
        return tuple(self._placed(Finding(**each)) for each in found)

    def _placed(self, finding: Finding) -> Finding:
        """Say in which cell of a notebook a line is."""
        if not (self._cells and finding.line):
            return finding
        cell = max(index for index, start in enumerate(self._cells) if start < finding.line)
        place = f"cell {cell + 1}, line {finding.line - self._cells[cell]}"
        return Finding(finding.kind, f"{place}: {finding.says}", finding.fix)


_UNSEEN = {
    "ended": "",
    "lost": "the process ended: by os._exit, for want of memory, or by a crash",
    "late": "Stopped: it was stopped, as it took too long",
}


def begin(file: str | os.PathLike[str], exercise: str | int | None = None, seconds: float = SECONDS) -> Check:
    """Begin to check a file, with a limit in seconds of processor time.

    The exercise is the one that is named in the file's name or in its first lines ("Exercise 4"), by default.
    """
    path = Path(file)
    text, cells = _content(path)
    found = _named(path.name, text) if exercise is None else find(exercise)
    return Check(found, text, path, cells, seconds)


def _observe(send: Callable[[Any], None], number: str, text: str, file: str) -> None:
    """Run a learner's file, call its functions, and send their facts."""
    os.environ[_CHECKED] = "1"
    folder = Path(file).parent
    sys.path.append(str(folder))  # last: the learner's own modules, which must never hide another
    sys.argv = [file]
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    if not text.strip():
        says = "The file is empty. Has your editor saved it?"
        send(["stopped", [asdict(Finding("empty", says, f"Save it, or start again: {_START} {number}"))]])
        return
    module = types.ModuleType("submission")
    module.__file__ = file
    sys.modules["submission"] = module
    try:
        exec(compile(text, file, "exec", dont_inherit=True), vars(module))
    except BaseException as error:
        send(["stopped", [asdict(report.error(contract.exception(error, file), "The file stops"))]])
        return
    finally:
        notes = _notes(folder, f"python {Path(file).name}")
        if text.split() == catalogue.find(number).text().split():
            notes.append("This is the starter as it came. If you have written more, save the file.")
        send(["notes", notes])
    send(["loaded", True])
    for name in [name for name in sys.modules if name.startswith("gpulesson_tools.exercises")]:
        del sys.modules[name]  # the file may have changed them
    from gpulesson_tools.exercises.catalogue import find
    from gpulesson_tools.exercises.contract import facts_of, was_stopped
    from gpulesson_tools.exercises.reading import changed, slips

    tasks = find(number).tasks()
    read = slips(text, [task.name for task in tasks if not task.value], vars(module))
    send(["slips", {name: [asdict(each) for each in found] for name, found in read.items()}])
    others = changed(text, find(number).text(), [*(task.name for task in tasks), "main"])
    notes += [f"{name} is not as it came. The check works with the starter's own." for name in others]
    send(["notes", notes])
    for place, task in enumerate(tasks):
        facts = facts_of(task, getattr(module, task.name, None), tasks[:place], file)
        send([task.name, facts])
        if was_stopped(facts[0]):
            break  # its time is over


def _notes(folder: Path, runs: str) -> list[str]:
    """Name the files of a folder that are in the way of modules."""
    return [
        f"Rename {printable(name)}, which is beside it: a module has that name. The check takes the module, "
        f"and {printable(runs)} takes the file."
        for name in reading.hiding(folder)[:3]
    ]


def _judge(send: Callable[[Any], None], number: str, found: dict[str, Any], unseen: str) -> None:
    """Compare the facts of a learner's functions with the reference's, and send the answers."""
    for answer in report.answers(find(number).tasks(), found, unseen):
        send(asdict(answer))


def _content(path: Path) -> tuple[str, Sequence[int]]:
    """Return a file's program; of a notebook with the number of the line before each cell's first."""
    try:
        content = read_file(path, _MOST)
    except OSError as error:
        raise UsageError(f"{printable(path)} cannot be read: {error}") from None
    if content is None:
        raise UsageError(f"there is no file {printable(path)} (looked for in {printable(Path.cwd())})")
    name, text = printable(path.name), _decoded(content)
    if text is None:
        line = re.split("[\0\ufffd]", content.decode(errors="replace"))[0].count("\n") + 1
        raise UsageError(
            f"{name} is not a text in UTF-8, from line {line} on: save it again in your editor as plain text "
            "with the encoding UTF-8"
        )
    try:
        cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
        sources = ["".join(cell["source"]) for cell in cells]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if path.suffix != ".ipynb":
            return text, ()
        raise UsageError(
            f"{name} is not a notebook: {printable(error)}. If it is a program, name it {path.stem}.py"
        ) from None
    if path.suffix != ".ipynb":
        raise UsageError(
            f"{name} holds a notebook, and not a program: name it {path.stem}.ipynb, and check that"
        )
    lines: list[str] = []
    starts = []
    for source in sources:
        starts.append(len(lines))
        if source.startswith("%%") and not source.startswith(("%%time", "%%capture")):
            continue  # another language, or a file
        lines += [re.sub(r"^(\s*)[%!].*", r"\1pass", line) for line in source.split("\n")]  # for IPython only
    return "\n".join(lines) + "\n", starts


def _decoded(content: bytearray) -> str | None:
    """Return the text that Python reads, or None."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, ValueError):
        return None
    return None if "\0" in text else text


def _named(name: str, text: str) -> Exercise:
    """Find the exercise that a file names."""
    first, name = "\n".join(text.split("\n")[:5]), printable(name)
    found = re.match(r"(?:exercise_|solution_)?(\d\d)[_.]", name) or re.search(
        r"\b[Ee]xercise (\d+)\b", first
    )
    if ".. overview::" in text:
        raise UsageError(f"{name} is a lesson, not an exercise: {_START} {name[:2]} gives you its starter")
    if not found:
        command = f"python -m gpulesson check 04 {name}"
        raise UsageError(f"{name} names no exercise; give its number: {command}")
    return find(found[1])
