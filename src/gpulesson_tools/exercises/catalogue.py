"""Which exercises there are, their starters, and how far the learner has come; none of it needs PyTorch."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from gpulesson._files import whole_file

_HERE = Path(__file__).parent


class UsageError(ValueError):
    """The check was asked for something that is not there; the message says what, and what there is."""


@dataclass(frozen=True)
class Exercise:
    """One exercise: the two digits of its lesson, and the title in the first line of its starter."""

    number: str
    title: str

    @property
    def starter(self) -> str:
        """Name of the file that it begins with; no lesson and no solution has it."""
        return f"exercise_{self.number}.py"

    def text(self) -> str:
        """Return what the starter holds."""
        return (_folder() / self.starter).read_text(encoding="utf-8")

    def tasks(self) -> Sequence[Any]:
        """Return what is to be written, a ``Task`` for each; this imports PyTorch."""
        (module,) = _HERE.glob(f"e{self.number}_*.py")
        tasks: Sequence[Any] = import_module(f"{__package__}.{module.stem}").TASKS
        return tasks


def shipped(packed: str, kept: str) -> Path:
    """Return what a wheel has packed beside this module, and the project's folder has somewhere else."""
    path = _HERE / packed
    return path if path.exists() else _HERE.parents[2] / kept


def _folder() -> Path:
    return shipped("starters", "examples/exercises")


@cache
def exercises() -> tuple[Exercise, ...]:
    """Return all exercises, in the order of the lessons."""
    found = []
    for path in sorted(_folder().glob("exercise_*.py")):
        first = re.match(r'"""Exercise \d+: (.+?)[.:?"]', path.read_text(encoding="utf-8"))
        assert first, f"{path} does not begin with its number and title"
        found.append(Exercise(path.stem[-2:], first[1][:1].upper() + first[1][1:]))
    return tuple(found)


def find(number: str | int) -> Exercise:
    """Return an exercise by its number, ``4``, ``"4"`` or ``"04"``.

    Raises
    ------
    UsageError
        There is no such exercise; the message says which there are.

    Examples
    --------
    >>> find(4).starter
    'exercise_04.py'
    """
    wanted = str(number).strip().zfill(2)
    for exercise in exercises():
        if exercise.number == wanted:
            return exercise
    numbers = ", ".join(exercise.number for exercise in exercises())
    raise UsageError(f"there is no exercise {number}: the numbers are {numbers}")


@dataclass
class Progress:
    """How far a learner has come with one exercise."""

    checks: int = 0
    passed: str = ""
    """The day on which it was passed first, as ``2026-01-31``; empty until then."""
    said: dict[str, int] = field(default_factory=dict)
    """What is wrong now, and how often the learner was told: the words go further each time."""


def progress_file() -> Path:
    """Return the file: the one that ``GPULESSON_PROGRESS`` names, else one in the user's data folder."""
    if named := os.environ.get("GPULESSON_PROGRESS"):
        return Path(named).expanduser()
    if sys.platform == "win32":
        folder = Path(os.environ.get("APPDATA") or Path.home())
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return folder / "gpulesson" / "progress.json"


def progress() -> dict[str, Progress]:
    """Read the file, by the exercise's number; what cannot be read counts as nothing yet.

    A damaged file is put aside, and an earlier version's entries are read as far as they go.
    """
    path = progress_file()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))["exercises"]
        return {str(number): _entry(**entry) for number, entry in content.items()}
    except OSError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        with contextlib.suppress(OSError):
            path.replace(path.with_name(f"{path.name}.damaged"))
        return {}


def _entry(checks: int = 0, passed: str = "", said: object = None, **_: object) -> Progress:
    counts = said if isinstance(said, dict) else {}
    return Progress(int(checks), str(passed), {str(kind): int(count) for kind, count in counts.items()})


def note(number: str, found: Sequence[str], passed: bool, hint: bool = False) -> tuple[dict[str, int], bool]:
    """Count one check of an exercise, in which this was `found` wrong; `hint` counts for one check more.

    Return how often each was shown, this time included, and False if that could not be written.
    """
    entries = progress()
    entry = entries.setdefault(number, Progress())
    entry.checks += 1
    entry.said = {kind: entry.said.get(kind, 0) + 1 + hint for kind in found}
    if passed and not entry.passed:
        entry.passed = date.today().isoformat()
    content = {"exercises": {each: asdict(entries[each]) for each in sorted(entries)}}
    try:
        with whole_file(progress_file()) as file:
            file.write(json.dumps(content, indent=1).encode())
    except OSError:
        return entry.said, False
    return entry.said, True
