"""The learner's progress: a small file in the user's own folder, which no damage can make fatal."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from filelock import FileLock

_PATIENCE = 10
"""Seconds to wait for another check that writes its progress."""


@dataclass
class Progress:
    """How far a learner has come with one exercise.

    Attributes
    ----------
    checks : int
        How often it was checked.
    hints : int
        How many hints were shown.
    passed : str
        The day on which it was passed first, as ``2026-01-31``; empty until then.
    """

    checks: int = 0
    hints: int = 0
    passed: str = ""
    found: str = ""
    """The kind of the first fault that the last check found."""


def progress_file() -> Path:
    """Return the file: the one that ``GPULESSON_PROGRESS`` names, else one in the user's data folder.

    Returns
    -------
    Path
        It need not exist.
    """
    if named := os.environ.get("GPULESSON_PROGRESS"):
        return Path(named).expanduser()
    if sys.platform == "win32":
        folder = Path(os.environ.get("APPDATA") or Path.home())
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return folder / "gpulesson" / "progress.json"


def load() -> dict[str, Progress]:
    """Read the file; what cannot be read counts as nothing yet, and a damaged file is put aside.

    Returns
    -------
    dict of str to Progress
        By the exercise's number.
    """
    path = progress_file()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(number): _entry(entry) for number, entry in content["exercises"].items()}
    except OSError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        with contextlib.suppress(OSError):
            path.replace(path.with_name(f"{path.name}.damaged"))
        return {}


def _entry(content: dict[str, Any]) -> Progress:
    counts = int(content["checks"]), int(content["hints"])
    return Progress(*counts, str(content["passed"]), str(content.get("found", "")))


def save(progress: dict[str, Progress]) -> bool:
    """Write the file at once and as a whole.

    Returns
    -------
    bool
        False if the folder does not allow it.
    """
    path = progress_file()
    content = {"exercises": {number: asdict(progress[number]) for number in sorted(progress)}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        Path(part).replace(path)
    except OSError:
        return False
    return True


def note_check(number: str, passed: bool, found: str = "") -> bool:
    """Count one check of an exercise, and note what it found first; False: that cannot be written."""
    with _alone():
        progress = load()
        entry = progress.setdefault(number, Progress())
        entry.checks += 1
        entry.found = found
        if passed and not entry.passed:
            entry.passed = date.today().isoformat()
        return save(progress)


def note_hint(number: str, hints: int) -> bool:
    """Remember how many hints were shown; return False if that could not be written."""
    with _alone():
        progress = load()
        progress.setdefault(number, Progress()).hints = hints
        return save(progress)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let other checks wait meanwhile, so that neither writes over what the other has noted."""
    lock = FileLock(f"{progress_file()}.lock", timeout=_PATIENCE)
    with contextlib.ExitStack() as held:
        # a folder that cannot be written: `save` says so; or another check holds the lock for long
        with contextlib.suppress(OSError):
            progress_file().parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(lock)
        yield
