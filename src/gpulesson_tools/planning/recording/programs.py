"""Programs: each recorded in a fresh process, so that what they change, start or break ends with it.

Functions are recorded in this process.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from gpulesson_tools.planning.recording import child
from gpulesson_tools.planning.recording.child import CAPACITY, Outcome, Request
from gpulesson_tools.planning.recording.record import Record
from gpulesson_tools.programs.process import Process

PRELOADED = ("gpulesson_tools.planning.recording.recorder", "practice_gpu.session")


class ProgramFailed(RuntimeError):
    """The program could not be recorded, and the message says why."""


def record_program(request: Request, *, show: bool = True) -> Outcome:
    """
    Run a program on the practice GPU, in a fresh process, until it has taken some steps.

    Parameters
    ----------
    request : Request
    show : bool
        Show what the program prints, on standard error.

    Raises
    ------
    ProgramFailed
        The process ended without an answer: it was killed, or ended Python itself.
    """
    with tempfile.TemporaryDirectory(prefix="gpulesson-") as name:
        process = Process(child.main, request, _output(show), folder=name, preload=PRELOADED)
        try:
            outcome: Outcome = pickle.loads(process.receive())  # our own process
            return outcome
        except EOFError:
            raise ProgramFailed(_no_answer(request, process.status())) from None
        finally:
            process.end()


def _output(show: bool) -> Connection | bool:
    """Return standard error, which is duplicated for the process; a notebook's has no file."""
    if show and os.name == "posix":
        with suppress(AttributeError, OSError):
            return Connection(os.dup(sys.stderr.fileno()), readable=False)
        return False
    return show


def _no_answer(request: Request, status: int | None) -> str:
    name = " ".join(request.program)
    if status == -9:
        return (
            f"{name} was killed, most likely because this machine's own memory is too small to compute its "
            "steps: give dry=True (--dry), which takes shapes only, or a smaller batch"
        )
    return f"{name} ended its process with exit status {status}, before it had taken its steps"


def record_function(function: Callable[[], object], steps: int, *, dry: bool = False) -> Record:
    """
    Run a function on the practice GPU, in this process, until it has taken some steps.

    Parameters
    ----------
    function : callable
        Called without arguments. What it raises comes out.
    steps : int
        How many steps of the optimizer.
    dry : bool
        As in :class:`Request`.
    """
    from gpulesson_tools.planning.recording.cuda_rules import memory_as_on_cuda
    from gpulesson_tools.planning.recording.recorder import Finished, Recorder
    from practice_gpu import practice_gpu
    from practice_gpu.sizes import parse_size

    gpu: Any
    with memory_as_on_cuda(), practice_gpu(CAPACITY, force=True) as gpu:
        memory = gpu.ledger.allocators[0]
        before = memory.capacity, memory.allowed
        memory.capacity = memory.allowed = parse_size(CAPACITY)  # it may be one that was open before
        recorder = Recorder(gpu, steps, dry=dry)
        try:
            with suppress(Finished), recorder:
                function()
        finally:
            memory.capacity, memory.allowed = before
    return recorder.record
