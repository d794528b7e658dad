"""Runs of a script, each in a process of its own and in a copy of its folder."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpulesson.porting.child import Request, main
from gpulesson.porting.facts import Record

SKIPPED = frozenset((".git", ".nox", ".tox", ".venv", "__pycache__", "node_modules", "venv", "env"))
_CAN_FORK = os.name == "posix" and sys.platform != "darwin"
PRELOADED = ["torch", "numpy", "torch._dynamo", "gpulesson.porting.record", "gpulesson.practice.session"]
_MANY = 20_000
"""Folders that are looked through for a script's own files; of more, what is left is taken as data."""


class Runs:
    """
    Runs one script, as often as wished.

    Parameters
    ----------
    script : Path
        Need not exist if its text is given.
    arguments : tuple of str
    limit : float
        Seconds, after which a run is ended.
    text : bytes, optional
        That of the script, if it is no file.

    Attributes
    ----------
    root : Path
        The folder that is copied: the current one if the script is in it, else the script's.
    name : str
        The script, seen from there.
    """

    def __init__(
        self, script: Path, arguments: tuple[str, ...], limit: float, text: bytes | None = None
    ) -> None:
        script = script.resolve()
        here = Path.cwd().resolve()
        self.root = here if script.is_relative_to(here) else script.parent
        self.name = script.relative_to(self.root).as_posix()
        self.short = True
        self._given = {} if text is None else {self.name: text}
        self._arguments, self._limit = arguments, limit
        self._entries = _entries(self.root)
        self._context: Any = multiprocessing.get_context("forkserver" if _CAN_FORK else "spawn")
        if _CAN_FORK:
            self._context.set_forkserver_preload(PRELOADED)

    def run(
        self, texts: Mapping[str, bytes], *, gpu: bool, more: tuple[str, ...] = (), review: str = ""
    ) -> Record:
        """
        Run the script once.

        Parameters
        ----------
        texts : mapping of str to bytes
            Files that differ from the reader's, by their path from :attr:`root`.
        gpu : bool
            On the practice GPU; else with the CPU alone.
        more : tuple of str
            Further arguments of the script.
        review : str
            What a review asks for: ``"faults"`` or ``"memory"``.
        """
        with tempfile.TemporaryDirectory(prefix="gpulesson-port-") as name:
            folder, outcome = Path(name).resolve() / "copy", Path(name, "outcome")
            self._copy(folder, texts)
            soft = self._limit / (2 if self.short else 4)
            request = Request(str(folder), self.name, self._arguments + more, gpu, self.short, soft, review)
            process = self._context.Process(target=main, args=(request, str(outcome)))
            process.start()
            try:
                process.join(self._limit)
                ended = process.exitcode is not None
            finally:
                _end(process.pid)
                process.join()
            if outcome.exists():
                record: Record = pickle.loads(outcome.read_bytes())  # our own file
                return record
            printed = outcome.with_suffix(".txt")
            output = printed.read_text("utf-8", "replace") if printed.exists() else ""
            why = f"its process ended with status {process.exitcode}" if ended else "endless"
            return Record(stopped=why, output=output)

    def own_texts(self) -> list[bytes]:
        """Return the texts of the script and of all files of Python in the folder."""
        paths = [path for path, kind in self._entries if kind == "text"]
        return [*self._given.values(), *map(self.read, paths)]

    def read(self, path: str) -> bytes:
        """Return the text of a file as the reader has it."""
        return self._given.get(path) or (self.root / path).read_bytes()

    def _copy(self, folder: Path, texts: Mapping[str, bytes]) -> None:
        """Copy the script's own files; the others are links until something is written there."""
        folder.mkdir()
        for path, kind in self._entries:
            target = folder / path
            if kind == "folder":
                target.mkdir(exist_ok=True)
            elif kind == "text":
                target.write_bytes((self.root / path).read_bytes())
            else:
                _link(self.root / path, target)
        for path, text in {**self._given, **texts}.items():
            (folder / path).write_bytes(text)


def _link(source: Path, target: Path) -> None:
    try:
        target.symlink_to(source)
    except OSError:  # Windows asks for a permission
        shutil.copytree(source, target) if source.is_dir() else shutil.copy2(source, target)


def _entries(root: Path) -> list[tuple[str, str]]:
    """Return what is in a folder: ``"text"`` of Python, a ``"folder"`` with some, or ``"data"``."""
    found: list[tuple[str, str]] = []
    looked = 0

    def look(folder: Path, at: str) -> bool:
        nonlocal looked
        looked += 1
        place, own = len(found), False
        if at:
            found.append((at, "folder"))
        for each in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path = f"{at}/{each.name}" if at else each.name
            if each.name in SKIPPED:
                continue
            if each.is_dir(follow_symlinks=False) and looked < _MANY:
                own |= look(Path(each.path), path)
            else:
                python = each.name.endswith(".py") and each.is_file()
                own |= python
                found.append((path, "text" if python else "data"))
        if at and not own:
            del found[place:]
            found.append((at, "data"))
        return own

    with suppress(PermissionError):
        look(root, "")
    return found


def _end(process: int | None) -> None:
    """End a process and what it has started."""
    if process is not None and hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)
