"""The process in which a script is tried: it runs as ``python script.py`` would run it, and is watched."""

from __future__ import annotations

import builtins
import multiprocessing
import os
import pickle
import random
import re
import shutil
import sys
import threading
import traceback
import types
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FrameType
from typing import Any

NO_INPUT = "nobody is there to answer input()"
NO_NETWORK = "the script is tried without a network"


@dataclass(frozen=True)
class Request:
    """
    What to run.

    Attributes
    ----------
    folder : str
        A copy of the script's folder, for this run alone.
    script : str
        The script, seen from there.
    arguments : tuple of str
    gpu, short : bool
        On the practice GPU; with loops that end early.
    seconds : float
        After so long the next backward pass ends the script.
    review : str
        ``"faults"``, ``"memory"``: what a review asks for; "" if none does.
    """

    folder: str
    script: str
    arguments: tuple[str, ...]
    gpu: bool
    short: bool
    seconds: float
    review: str = ""


class NoInput(RuntimeError):
    """The script waits for an answer to input()."""


def main(request: Request, outcome: str) -> None:
    """Run a script, and leave what was noted in a file."""
    if hasattr(os, "setsid"):
        os.setsid()  # so that what it starts can be ended with it
    printed = Path(outcome).with_suffix(".txt")
    for number, place in ((1, printed), (2, printed.with_suffix(".err"))):
        os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT), number)
    record = _recorded(request)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    record.output = printed.read_text("utf-8", "replace")
    unfinished = Path(outcome).with_suffix(".unfinished")
    unfinished.write_bytes(pickle.dumps(record))
    unfinished.replace(outcome)
    os._exit(0)  # not through what a script leaves open


def _recorded(request: Request) -> Any:
    os.environ |= {"MPLBACKEND": "agg", "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    os.chdir(request.folder)
    multiprocessing.set_start_method(None, force=True)  # what it starts begins as ever, not as this process
    import numpy
    import torch

    from gpulesson.porting import observe, shorten
    from gpulesson.porting.facts import Record
    from gpulesson.porting.record import Finished, Watch
    from gpulesson.practice import practice_gpu
    from gpulesson.practice.device.generators import drawing_from_the_host
    from gpulesson.practice.tracebacks import trim

    sys.dont_write_bytecode = True
    torch.backends.mps.is_available = lambda: False  # type: ignore[assignment]  # the CPU it is, where the practice GPU is not
    torch.set_num_threads(1)  # sums in the same order in every run, however busy the machine is
    folder = Path(request.folder)
    _guard(folder)
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(0)  # a script that sets none is to draw the same numbers on both devices
    if request.review == "memory":
        return Record(evidence=observe.memory(lambda: _run(request)))
    with ExitStack() as surroundings:
        watch = (observe.Observer if request.review else Watch)(folder, request.seconds)
        if request.gpu:
            gpu: Any = surroundings.enter_context(practice_gpu("4096 GiB", force=True))
            draws = surroundings.enter_context(drawing_from_the_host(gpu))
        shorten.install(lambda: (watch.passes, watch.batches))
        SourceFileLoader.source_to_code = _compiling(folder, request.short)  # type: ignore[method-assign]
        lines = _note_lines(folder)
        record = watch.record
        try:
            with watch:
                _run(request)
        except Finished:
            record.stopped = "its time was over"
        except SystemExit as end:
            record.stopped = "" if end.code in (0, None) else f"it ended itself: sys.exit({end.code!r})"
        except BaseException as error:
            record.failure = watch.failure(error, "")
            trim(error)
            entry = error.__traceback__
            while entry is not None and entry.tb_frame.f_code.co_filename == __file__:
                entry = entry.tb_next
            text = "".join(traceback.format_exception(type(error), error, entry))
            record.failure = replace(record.failure, text=text.replace(f"{folder}{os.sep}", ""))
        finally:
            sys.settrace(None)
        record.draws = draws() if request.gpu else 0
        record.lines = lines
        record.shortened = request.short
    return record


def _run(request: Request) -> None:
    path = Path(request.folder, request.script)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=str(path), __builtins__=builtins)
    sys.modules["__main__"] = module
    sys.argv = [request.script, *request.arguments]
    start, package = path.parent, ""
    if re.search(rb"^\s*from\s+\.", path.read_bytes(), re.MULTILINE):  # as python -m package.script does
        while (start / "__init__.py").exists() and start != Path(request.folder):
            start, package = start.parent, f"{start.name}.{package}".rstrip(".")
        module.__dict__.update(__package__=package)
    sys.path.insert(0, str(start))
    code = SourceFileLoader("__main__", str(path)).source_to_code(path.read_bytes(), str(path))
    exec(code, module.__dict__)


def _compiling(folder: Path, short: bool) -> Any:
    from gpulesson.porting import shorten

    usual = SourceFileLoader.source_to_code

    def source_to_code(loader: Any, data: Any, path: Any, **options: Any) -> Any:
        if short and str(path).startswith(f"{folder}{os.sep}"):
            return shorten.compiled(bytes(data), str(path))
        return usual(loader, data, path, **options)

    return source_to_code


def _note_lines(folder: Path) -> dict[str, set[int]]:
    """Note from now on which lines of the script's files run."""
    lines: dict[str, set[int]] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(f"{folder}{os.sep}"):
            return None
        seen = lines.setdefault(name.removeprefix(f"{folder}{os.sep}").replace(os.sep, "/"), set())

        def local(frame: FrameType, event: str, _: Any) -> Any:
            seen.add(frame.f_lineno)
            return local

        return local

    sys.settrace(trace)
    threading.settrace(trace)
    return lines


def _guard(folder: Path) -> None:
    """Refuse input and the network; what is written goes into the run's own folder."""
    import torch

    def no_input(*_: Any) -> str:
        raise NoInput(NO_INPUT)

    builtins.input = no_input
    write = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
    busy = False

    def before(event: str, values: tuple[Any, ...]) -> None:
        nonlocal busy
        if busy:
            return
        if event == "socket.connect" and isinstance(values[1], tuple):
            if values[1][0] not in ("127.0.0.1", "localhost", "::1"):
                raise ConnectionError(NO_NETWORK)
        elif event == "socket.getaddrinfo" and values[0] not in (None, "localhost", "127.0.0.1", "::1"):
            raise ConnectionError(NO_NETWORK)
        if (event == "open" and values[2] & write) or event in _WRITING:
            busy = True
            try:
                for path in values[: 2 if event == "os.rename" else 1]:
                    if isinstance(path, str | bytes | os.PathLike):
                        _make_own(folder, Path(os.fsdecode(path)))
            finally:
                busy = False

    sys.addaudithook(before)
    save = torch.save

    def save_own(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, str | os.PathLike):
            before("open", (f, "w", os.O_WRONLY))  # PyTorch opens files by itself
        save(obj, f, *args, **kwargs)

    torch.save = save_own


_WRITING = frozenset(
    ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "sqlite3.connect")
)


def _make_own(folder: Path, path: Path) -> None:
    """Put a copy in the place of each link on the way to a file of the run's folder."""
    path = Path(os.path.abspath(path))  # noqa: PTH100  # a link is not to be followed
    if not path.is_relative_to(folder):
        return
    current = folder
    for part in path.relative_to(folder).parts:
        current /= part
        if current.is_symlink():
            target = current.resolve()
            current.unlink()
            if target.is_dir():
                current.mkdir()
                for each in target.iterdir():
                    (current / each.name).symlink_to(each)
            elif target.exists():
                shutil.copy2(target, current)
