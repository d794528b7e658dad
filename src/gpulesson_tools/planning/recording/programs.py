"""Programs: recorded in a process of their own, so that what they change, start or break ends with it.

Functions are recorded in this process.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulesson_tools.planning.recording.record import Record

_CHILD = "gpulesson_tools.planning.recording.child"
CAPACITY = "4096 GiB"
"""Memory of the practice GPU that programs are recorded on: more than any GPU has, so that they go on."""


@dataclass(frozen=True)
class Request:
    """
    What to record.

    Attributes
    ----------
    program : tuple of str
        A script with its arguments, or ``-m``, a module and its arguments.
    steps : int
        How many steps of the optimizer.
    batch_size : tuple of int, optional
        The batch size of the loaders to change, and the one that they get.
    dry : bool
        Take the shapes only and compute nothing where values do not matter.
    """

    program: tuple[str, ...]
    steps: int
    batch_size: tuple[int, int] | None = None
    dry: bool = False


@dataclass(frozen=True)
class Outcome:
    """
    What came of it.

    Attributes
    ----------
    record : Record
        Up to the last step that was asked for, or up to the program's end.
    error : str
        The last line of the error that ended the program; "" if none did.
    status : int
        The program's exit status, where it ended by itself.
    """

    record: Record
    error: str = ""
    status: int = 0


class ProgramFailed(RuntimeError):
    """The program could not be recorded, and the message says why."""


def record_program(request: Request, *, show: bool = True) -> Outcome:
    """
    Run a program on the practice GPU, in a process of its own, until it has taken some steps.

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
        folder = Path(name)
        (folder / "request").write_bytes(pickle.dumps(request))
        command = [sys.executable, "-m", _CHILD, name]
        shown = {"stdout": sys.stderr if _is_file(sys.stderr) else None}
        hidden = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        done: Any = subprocess.run(command, **(shown if show else hidden), check=False)
        if not (folder / "outcome").exists():
            raise ProgramFailed(_no_answer(request, done.returncode))
        outcome: Outcome = pickle.loads((folder / "outcome").read_bytes())  # our own file
        return outcome


def _is_file(stream: Any) -> bool:
    try:
        return bool(stream.fileno() >= 0)
    except (AttributeError, OSError):  # a notebook's
        return False


def _no_answer(request: Request, status: int) -> str:
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
