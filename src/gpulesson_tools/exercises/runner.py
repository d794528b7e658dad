"""A fresh process for what a learner has written: within bounds of time and memory, and ended in any case.

The process that asks never runs a learner's file. What comes back is JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gpulesson_tools.exercises.contract import Stopped
from gpulesson_tools.programs.process import PRELOADED, Process

SECONDS = 10.0
"""Of processor time that a learner's file may take, by default."""
MEMORY = 4 * 2**30
"""Bytes of main memory that it may take."""
IMPORTING = 300.0
"""Seconds on the clock that importing PyTorch may take."""
WAITING = 3.0
"""It may take this many times its seconds on the clock: a busy machine, or a program that waits."""


class FreshProcess:
    """``function(send, *arguments)``, called in a fresh process; it sends what JSON can say."""

    def __init__(self, function: Callable[..., None], *arguments: Any, seconds: float = SECONDS) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="gpulesson-", ignore_cleanup_errors=True)
        with _apart_from_the_learner(self.folder.name):
            self.process = Process(
                _main, function, arguments, self.folder.name, seconds, folder=self.folder.name
            )
        self._seconds, self._ends = seconds, time.monotonic() + IMPORTING

    def results(self) -> list[Any]:
        """Wait; return what it has sent, and at last how it ended: ``"ended"``, ``"late"`` or ``"lost"``."""
        found, how = [], ""
        try:
            while not how:
                message = json.loads(self.process.receive(max(0.0, self._ends - time.monotonic())))
                if message == "begun":
                    self._ends = time.monotonic() + WAITING * self._seconds + 2  # its own limit comes first
                elif message == "ended":
                    how = "ended"
                else:
                    found.append(message)
        except TimeoutError:
            how = "late"
        except (EOFError, OSError, ValueError):
            how = "lost"
        finally:
            self.end()
        return [*found, how]

    def end(self) -> None:
        """End it, and what it has started."""
        self.process.end()
        self.folder.cleanup()


@contextlib.contextmanager
def _apart_from_the_learner(folder: str) -> Iterator[None]:
    """Have what is started meanwhile import nothing of the learner's.

    A Python that is started looks for modules first in the folder where it starts.
    """
    here = os.getcwd()  # noqa: PTH109
    os.chdir(folder)
    try:
        with installed_modules_first(here):
            yield
    finally:
        os.chdir(here)


@contextlib.contextmanager
def installed_modules_first(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Leave out, for a while, a folder and that of the program from where modules are looked for."""
    before = sys.path[:]
    program = getattr(sys.modules["__main__"], "__file__", None)
    left_out = {os.path.realpath(each) for each in (folder, Path(program or "").parent)}
    sys.path[:] = [each for each in before if each and os.path.realpath(each) not in left_out]
    sys.path.append(str(Path(__file__).parents[2]))  # this package may be there
    try:
        yield
    finally:
        sys.path[:] = before


def _main(
    send: Callable[[bytes], None],
    function: Callable[..., None],
    arguments: Any,
    folder: str,
    seconds: float,
) -> None:
    """Run in the process: no terminal, its own folder, bounds."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    sys.stdin, sys.stdout, sys.stderr = (open(os.devnull, mode) for mode in ("r", "w", "w"))  # noqa: PTH123, SIM115
    os.chdir(folder)
    tempfile.tempdir = folder
    os.environ.pop("GPULESSON_DEVICE", None)
    os.environ |= {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    preload()
    sys.modules["torch"].set_num_threads(1)  # the models are tiny, and many may be checked at once
    send(b'"begun"')
    with bounded(seconds, MEMORY):
        function(lambda result: send(json.dumps(result).encode()), *arguments)
    send(b'"ended"')


def preload() -> None:
    """Import what nearly every file needs, before the time of the learner's functions begins."""
    for name in PRELOADED:
        importlib.import_module(name)


@contextlib.contextmanager
def bounded(seconds: float, memory: int) -> Iterator[None]:
    """Raise `Stopped` in what runs longer, at its line, and have large allocations fail.

    The seconds are of processor time; on the clock it is `WAITING` times as many. Not on Windows, and in the
    main thread only. The memory is that beyond what is in use now, and limited on Linux only.
    """

    def stop(number: int, frame: Any) -> None:
        if _opens_or_closes_a_gpu(frame):
            return  # half of it would stay; the timer comes again
        of_what = "of work" if number == signal.SIGPROF else "on the clock"
        raise Stopped(f"it was stopped after {timers[number][1]:g} seconds {of_what}")

    timed = hasattr(signal, "SIGPROF") and threading.current_thread() is threading.main_thread()
    timers: dict[int, tuple[int, float]] = {}
    if timed:
        timers[signal.SIGPROF] = signal.ITIMER_PROF, seconds
        timers[signal.SIGALRM] = signal.ITIMER_REAL, WAITING * seconds
    with contextlib.ExitStack() as undo:
        for number, (timer, limit) in timers.items():
            undo.callback(signal.signal, number, signal.signal(number, stop))
            signal.setitimer(timer, limit, 1)  # again, each second: a bare `except` has kept the first
            undo.callback(signal.setitimer, timer, 0)
        if sys.platform == "linux":
            import resource

            before = resource.getrlimit(resource.RLIMIT_DATA)
            status = Path("/proc/self/status").read_text()
            used = 1024 * int(status.partition("VmData:")[2].split()[0])
            most = used + memory if before[1] == resource.RLIM_INFINITY else min(used + memory, before[1])
            resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
            undo.callback(resource.setrlimit, resource.RLIMIT_DATA, before)
        yield


def _opens_or_closes_a_gpu(frame: types.FrameType | None) -> bool:
    while frame is not None:
        inside = frame.f_globals.get("__name__") == "practice_gpu.interface"
        if inside and frame.f_code.co_name in ("_enter", "__exit__"):
            return True
        frame = frame.f_back
    return False


def in_processes(*calls: Callable[[], Any]) -> list[Any]:
    """Call functions at once, each in a fork of this process, which has not computed yet.

    Return what they returned, as far as JSON can say it; None for one that has ended before.
    """
    if not hasattr(os, "fork"):
        raise OSError("this check needs processes that fork: it runs on Linux, on macOS and in WSL")
    context, processes, results = multiprocessing.get_context("fork"), [], list[Any]()
    for call in calls:
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_send_result, args=(send, call), daemon=True)
        process.start()
        send.close()
        processes.append((process, receive))
    try:
        for _, receive in processes:
            try:
                results.append(json.loads(receive.recv_bytes()))
            except EOFError:
                results.append(None)
    finally:  # also after the time limit, which a signal raises here
        for process, _ in processes:
            process.kill()
            process.join()
    return results


def _send_result(send: Connection, call: Callable[[], Any]) -> None:
    send.send_bytes(json.dumps(call(), default=str).encode())
    os._exit(0)
