"""Runs of a script, each in a fresh process, in a copy of its folder that is set back before each."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpulesson_tools.porting.child import WHOLE, Loops, Request, main
from gpulesson_tools.porting.facts import DIED, Run
from gpulesson_tools.programs.arguments import Program
from gpulesson_tools.programs.process import Process

SKIPPED = frozenset((".git", "__pycache__", "node_modules"))
LARGEST = 8 << 30
"""Bytes that are copied at most."""
LARGE = frozenset(("torchvision", "pandas", "sklearn", "scipy", "matplotlib"))
PRELOADED = ("gpulesson_tools.porting.observe", "practice_gpu.session")


class NoTrial(Exception):
    """The script cannot be tried; the message says why."""


class Runs:
    """Runs one script, as often as wished; the reader's folder is only read. Use it as a context manager.

    Parameters
    ----------
    script : Path
        Need not exist if its text is given.
    program : Program
        How it is started.
    limit : float
        Seconds, after which a run is ended.
    root : Path, optional
        The folder that is copied; by default the current one.
    text : bytes, optional
        That of the script, if it is not a file.
    here : Path, optional
        The folder in which it is started; by default the current one.

    Attributes
    ----------
    root : Path
    name : str
        The script, seen from there.
    texts : dict of str to bytes
        All files of Python, by their path from `root`, as they were at the beginning.

    Raises
    ------
    NoTrial
        If the script or the current folder is not in `root`, or `root` is too large to be copied.
    """

    def __init__(
        self,
        script: Path,
        program: Program,
        limit: float,
        root: Path | None = None,
        text: bytes | None = None,
        here: Path | None = None,
    ) -> None:
        script, here = script.resolve(), (here or Path.cwd()).resolve()
        self.root = (root or here).resolve()
        if not (script.is_relative_to(self.root) and here.is_relative_to(self.root)):
            raise NoTrial(
                f"it is tried in a copy of {self.root}, and not both the script and the folder you are in "
                "are in there. Go to the folder in which you start the script, or name one above both: "
                "--root FOLDER"
            )
        self.name = script.relative_to(self.root).as_posix()
        name = program.name if program.is_module else os.path.relpath(script, here)
        self._program, self._limit = program._replace(name=name), limit
        self._here = here.relative_to(self.root).as_posix()
        self._folders, self._files = _contents(self.root)
        self.texts = {
            path: (self.root / path).read_bytes()
            for path in self._files
            if path.endswith(".py") and os.access(self.root / path, os.R_OK)
        }
        if text is not None:
            self.texts[self.name] = text
        self._copied: dict[str, tuple[int, ...]] = {}
        self._preload = [*PRELOADED, *_libraries(self.texts.values())]

    def __enter__(self) -> Runs:
        self._place = Path(tempfile.mkdtemp(prefix="gpulesson-")).resolve()
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._place, onerror=_again)

    def run(
        self,
        texts: Mapping[str, bytes],
        *,
        gpu: bool,
        loops: Loops = WHOLE,
        watch: str = "",
        rounds_up: bool = False,
    ) -> Run:
        """Run the script once, with other texts for some files; the options are those of a `Request`."""
        try:
            self._set_back(texts)
        except OSError as error:
            raise NoTrial(f"its folder cannot be copied: {error}") from None
        place = str(self._place)
        request = Request(place, self._program, self._here, gpu, loops, self._limit / 2, watch, rounds_up)
        process = Process(main, request, folder=place, preload=self._preload)
        try:
            run: Run = pickle.loads(process.receive(self._limit))  # our own process
            return run
        except TimeoutError:
            why = "endless"
        except EOFError:
            status = process.status()
            why = "endless" if status is None else f"{DIED} {status}"
        finally:
            process.end()
        errors = self._place / "err"
        return Run(stopped=why, errors=errors.read_text("utf-8", "replace") if errors.exists() else "")

    def _set_back(self, texts: Mapping[str, bytes]) -> None:
        """Make the copy what the reader's folder is, with other texts for some files."""
        copy = self._place / "copy"
        for each in self._place.iterdir():
            if each != copy:
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        for folder in ("copy", "tmp", *(f"copy/{each}" for each in self._folders)):
            place = self._place / folder
            if place.is_symlink() or place.is_file():
                place.unlink()
            place.mkdir(exist_ok=True)
        for where, folders, files in os.walk(copy):
            at = Path(where).relative_to(copy)
            for name in [*folders, *files]:
                path, place = (at / name).as_posix(), Path(where, name)
                if path in self._folders:
                    continue
                if place.is_dir() and not place.is_symlink():
                    shutil.rmtree(place)
                    folders.remove(name)
                elif _state(place) != self._copied.get(path):
                    place.unlink()
        given = {**self.texts, **texts}
        for path in {*self._files, *given}:
            place = copy / path
            if path in given:
                place.write_bytes(given[path])
            elif not place.exists():
                with suppress(PermissionError):
                    shutil.copy2(self.root / path, place)
            if place.exists():
                self._copied[path] = _state(place)


def _state(path: Path) -> tuple[int, ...]:
    state = path.lstat()
    return state.st_ino, state.st_mode, state.st_size, state.st_mtime_ns


def _contents(root: Path) -> tuple[list[str], list[str]]:
    """Return the folders, from the outside in, and the files of a folder, also those behind links."""
    folders, files, size = [], [], 0
    space = min(LARGEST, shutil.disk_usage(tempfile.gettempdir()).free)
    for where, below, names in os.walk(root, followlinks=True):
        paths = [Path(where, each) for each in below if each not in SKIPPED]
        below[:] = sorted(each.name for each in paths if not (each / "pyvenv.cfg").exists())
        at = Path(where).relative_to(root)
        if any((root / each).samefile(where) for each in at.parents):  # a link to a folder that it is in
            below.clear()
        folders += [(at / each).as_posix() for each in below]
        for path in filter(Path.is_file, (Path(where, each) for each in names)):
            files.append((at / path.name).as_posix())
            size += path.stat().st_size
            if size > space:
                raise NoTrial(
                    f"it is tried in a copy of {root}, which holds more than {space / 1e9:.0f} GB. Put the "
                    "script into a separate folder, with the data that it needs, or a part of them"
                )
    return folders, files


def _libraries(texts: Iterable[bytes]) -> Iterator[str]:
    """Yield the modules of large libraries that sources import: a run need not import them again."""
    for line in re.findall(rb"(?m)^\s*(?:import|from)\s+([\w.]+)", b"\n".join(texts)):
        module = line.decode()
        if module.split(".")[0] in LARGE:
            yield module


def _again(function: Any, path: str, _: Any) -> None:
    """Remove what could not be removed because its folder was made read-only."""
    with suppress(OSError):
        Path(path).parent.chmod(0o700)
        Path(path).chmod(0o700)
        function(path)
