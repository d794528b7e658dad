"""The process in which a script is tried: it runs as ``python script.py`` would run it, and is watched."""

from __future__ import annotations

import builtins
import functools
import os
import pickle
import random
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from gpulesson_tools.porting import instrument
from gpulesson_tools.porting.facts import NO_INPUT, NO_NETWORK, NO_WRITING, OVER, Run
from gpulesson_tools.programs.arguments import Program
from gpulesson_tools.programs.execution import Finished, execute

_SURROUNDINGS = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "") | {
    "MPLBACKEND": "agg",
    "TORCHDYNAMO_DISABLE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "WANDB_MODE": "disabled",
}
_OURS = f"{Path(__file__).parents[1]}{os.sep}"


@dataclass(frozen=True)
class Loops:
    """How the loops of a script run."""

    short: bool = False  # they end early
    without: tuple[str, ...] = ()  # statements left out then, because they need all that whole loops make


WHOLE = Loops()


@dataclass(frozen=True)
class Request:
    """What to run."""

    place: str  # a folder for this run alone, with "copy", a copy of the script's folder, and "tmp"
    program: Program  # seen from `here`
    here: str  # the folder in which it is started, seen from the copy
    gpu: bool  # on the practice GPU
    loops: Loops
    seconds: float  # after this time the next backward pass ends the script
    watch: str = ""  # what is noted besides: "faults" or "memory" for a review, or a "film"
    rounds_up: bool = False  # products are rounded in another way


class NoInput(RuntimeError):
    """The script waits for an answer to input()."""


def main(send: Callable[[bytes], None], request: Request) -> None:
    """Run a script, and send what came of it."""
    place = Path(request.place)
    for number, name in ((0, os.devnull), (1, place / "out"), (2, place / "err")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    run = _run(request)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    run.output, run.errors = ((place / name).read_text("utf-8", "replace") for name in ("out", "err"))
    send(pickle.dumps(run))


def _run(request: Request) -> Run:
    place = Path(request.place)
    folder = place / "copy"
    os.environ |= _SURROUNDINGS | dict.fromkeys(("TMPDIR", "TEMP", "IPYTHONDIR"), str(place / "tmp"))
    tempfile.tempdir = None
    os.chdir(folder / request.here)
    if "matplotlib" in sys.modules:
        sys.modules["matplotlib"].rcParams["backend"] = "agg"
    import numpy
    import torch

    from gpulesson_tools.porting import observe
    from gpulesson_tools.porting.tracer import Tracer
    from gpulesson_tools.programs.hooks import Hooks
    from practice_gpu import practice_gpu
    from practice_gpu.device.generators import drawing_from_the_host

    sys.dont_write_bytecode = True
    torch.backends.mps.is_available = lambda: False  # type: ignore[assignment]  # the CPU it is, where the practice GPU is not
    torch.set_num_threads(1)  # sums in the same order in every run, however busy the machine is
    _guard(place)
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(0)  # a script that sets none is to draw the same numbers on both devices
    numpy.random.bit_generator.randbits = random.Random(0).getrandbits  # type: ignore[attr-defined]  # so do its generators
    if request.watch == "memory":
        return Run(evidence=observe.memory(lambda: execute(request.program, folder)))
    with ExitStack() as surroundings:
        tracer = Tracer(folder, request.seconds, request.rounds_up)
        listeners: list[Any] = [tracer, *([observe.Observer(tracer)] if request.watch == "faults" else ())]
        if request.gpu:
            gpu: Any = surroundings.enter_context(practice_gpu("4096 GiB", force=True))
            draws = surroundings.enter_context(drawing_from_the_host(gpu))
        instrument.install(lambda: (tracer.passes, tracer.batches))
        run = tracer.run
        SourceFileLoader.source_to_code = _compiling(folder, request.loops, run.lines)  # type: ignore[method-assign]
        film: Any = nullcontext()
        if request.watch == "film":
            from gpulesson_tools.porting.filming import Filming  # no other run needs what it imports

            film = Filming(folder, gpu, run)
            listeners.append(film)
        try:
            with Hooks(*listeners), film:
                execute(request.program, folder)
        except Finished:
            run.stopped = OVER
        except SystemExit as end:
            run.stopped = "" if end.code in (0, None) else f"it ended itself: sys.exit({end.code!r})"
        except BaseException as error:
            failure = tracer.failure(error)
            run.failure = replace(failure, text=_traceback(error).replace(f"{folder}{os.sep}", ""))
        for each in listeners:
            each.finish()
        run.draws = draws() if request.gpu else 0
        run.shortened = request.loops.short
    return run


def _traceback(error: BaseException) -> str:
    """Return an error's traceback without the frames of this package."""
    from practice_gpu.tracebacks import trim

    trim(error)
    whole = traceback.TracebackException.from_exception(error)
    part: Any = whole
    while part is not None:
        part.stack[:] = [frame for frame in part.stack if not frame.filename.startswith(_OURS)]
        part = part.__cause__ or part.__context__
    return "".join(whole.format())


def _compiling(folder: Path, loops: Loops, lines: dict[str, set[int]]) -> Any:
    """Return what compiles the script's own files, and notes in `lines` which of them run."""
    usual, own = SourceFileLoader.source_to_code, f"{folder}{os.sep}"

    def source_to_code(loader: Any, data: Any, path: Any, **options: Any) -> Any:
        if not str(path).startswith(own):
            return usual(loader, data, path, **options)
        ran = lines.setdefault(str(path).removeprefix(own).replace(os.sep, "/"), set())
        return instrument.compiled(bytes(data), str(path), loops.short, ran, loops.without)

    return source_to_code


def _guard(place: Path) -> None:
    """Refuse input, the network, and what would be written outside of the run's own folder."""
    import torch

    def no_input(*_: Any) -> str:
        raise NoInput(NO_INPUT)

    builtins.input = no_input
    here, leave = os.getpid(), os._exit

    def leave_with_a_record(status: int) -> None:
        if os.getpid() != here or threading.current_thread() is not threading.main_thread():
            leave(status)  # a process that the script has started
        raise SystemExit(status)

    os._exit = leave_with_a_record  # type: ignore[assignment]
    write = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
    devices = "/dev/null", "/dev/tty", "/dev/std", "/dev/fd", "/dev/shm/pym-", "/proc/self/"
    own = (f"{place}{os.sep}", f"{os.path.realpath(os.devnull)}{os.sep}", *devices)

    def check(path: Any) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            where = os.path.realpath(os.fsdecode(path))
            if not f"{where}{os.sep}".startswith(own):
                raise PermissionError(f"{NO_WRITING}: {where}")

    def before(event: str, values: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.getaddrinfo"):
            host = values[0] if event == "socket.getaddrinfo" else values[1]
            host = host[0] if isinstance(host, tuple) else host if event == "socket.getaddrinfo" else None
            if host not in (None, "127.0.0.1", "localhost", "::1"):
                raise ConnectionError(NO_NETWORK)
        elif event == "open" and values[2] & write:
            check(values[0])
        elif event in _WRITING:
            for path in values[_WRITING[event]]:
                check(path)

    sys.addaudithook(before)
    owners: tuple[Any, ...] = torch, torch.jit, torch.jit._script.RecursiveScriptModule
    for owner in owners:  # they open files by themselves
        owner.save = _checking(owner.save, check)


def _checking(save: Any, check: Any) -> Any:
    @functools.wraps(save)
    def checked(*args: Any, **kwargs: Any) -> None:
        check(kwargs["f"] if "f" in kwargs else args[1])
        save(*args, **kwargs)

    return checked


_ONE = ("remove", "mkdir", "rmdir", "truncate", "chmod", "chown", "utime", "setxattr", "removexattr")
_WRITING = (
    {f"os.{name}": slice(1) for name in _ONE}
    | dict.fromkeys(("shutil.rmtree", "sqlite3.connect"), slice(1))
    | dict.fromkeys(("os.rename", "os.link"), slice(2))
    | {"os.symlink": slice(1, 2)}
)
"""Events of Python that change files, and which of their values are paths."""
