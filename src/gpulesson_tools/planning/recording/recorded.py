"""Record a program in a fresh process, with which ends all that it starts; or a function in this process."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from gpulesson_tools.planning.recording.record import Record
from gpulesson_tools.programs.arguments import Program
from gpulesson_tools.programs.execution import Finished, execute
from gpulesson_tools.programs.process import Process

CAPACITY = "4096 GiB"
"""Memory of the practice GPU that programs are recorded on: more than any GPU has, so that they go on."""
PRELOADED = ("gpulesson_tools.planning.recording.recorder", "practice_gpu.session")


class ProgramFailed(RuntimeError):
    """The program could not be recorded, and the message says why."""


@dataclass(frozen=True)
class Outcome:
    record: Record  # up to the last step that was asked for, or up to the program's end
    error: str = ""  # the last line of the error that ended the program
    status: int = 0  # its exit status, where it ended by itself


def record_program(
    program: Program,
    steps: int,
    *,
    batch_size: tuple[int, int] | None = None,
    dry: bool = False,
    show: bool = True,
) -> Outcome:
    """Run a program on the practice GPU, in a fresh process, until it has taken some steps.

    Parameters
    ----------
    program : Program
    steps : int
        How many steps of the optimizer.
    batch_size : tuple of int, optional
        The batch size of the loaders to change, and the one that they get.
    dry : bool
        Take the shapes only, and compute nothing where values do not matter.
    show : bool
        Show what the program prints, on standard error.

    Raises
    ------
    ProgramFailed
        The process ended without an answer: it was killed, or ended Python itself.
    """
    with tempfile.TemporaryDirectory(prefix="gpulesson-") as folder:
        options = program, steps, batch_size, dry, _output(show)
        process = Process(_main, *options, folder=folder, preload=PRELOADED)
        try:
            outcome: Outcome = pickle.loads(process.receive())  # our own process
            return outcome
        except EOFError:
            raise ProgramFailed(_no_answer(program, process.status())) from None
        finally:
            process.end()


def record_function(function: Callable[[], object], steps: int, *, dry: bool = False) -> Record:
    """Run a function on the practice GPU, in this process, until it has taken some steps."""
    from gpulesson_tools.planning.recording.cuda_rules import memory_as_on_cuda
    from gpulesson_tools.planning.recording.recorder import Recorder
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


def _output(show: bool) -> Connection | bool:
    """Return standard error, which is duplicated for the process; a notebook's has no file."""
    if show and os.name == "posix":
        with suppress(AttributeError, OSError):
            return Connection(os.dup(sys.stderr.fileno()), readable=False)
        return False
    return show


def _no_answer(program: Program, status: int | None) -> str:
    name = " ".join(program.words)
    if status == -9:
        return (
            f"{name} was killed, most likely because this machine's own memory is too small to compute its "
            "steps: give dry=True (--dry), which takes shapes only, or a smaller batch"
        )
    return f"{name} ended its process with exit status {status}, before it had taken its steps"


# -- in the fresh process


def _main(
    send: Callable[[bytes], None],
    program: Program,
    steps: int,
    batch_size: tuple[int, int] | None,
    dry: bool,
    output: Connection | bool,
) -> None:
    """Record a program, and send the outcome; what it prints goes to `output`, if there is one."""
    if isinstance(output, Connection):
        shown = output.fileno()
    else:
        shown = 2 if output else os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(shown, number)
    leave = os._exit

    def end(record: Record) -> None:
        send(pickle.dumps(Outcome(record)))
        sys.stdout.flush()
        leave(0)

    send(pickle.dumps(_outcome(program, steps, batch_size, dry, end)))


def _outcome(
    program: Program,
    steps: int,
    batch_size: tuple[int, int] | None,
    dry: bool,
    ignored: Callable[[Record], None],
) -> Outcome:
    from gpulesson_tools.planning.recording.batches import sizes_changed
    from gpulesson_tools.planning.recording.cuda_rules import memory_as_on_cuda
    from gpulesson_tools.planning.recording.recorder import Recorder
    from practice_gpu import practice_gpu
    from practice_gpu.device.events import is_library
    from practice_gpu.tracebacks import trim

    error, status = "", 0
    with ExitStack() as surroundings:
        surroundings.enter_context(memory_as_on_cuda())
        gpu: Any = surroundings.enter_context(practice_gpu(CAPACITY, force=True))
        if batch_size is not None:
            surroundings.enter_context(sizes_changed(*batch_size))
        recorder = Recorder(gpu, steps, ignored, dry=dry)
        try:
            with recorder:
                execute(program)
        except Finished:
            pass
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException as failure:
            trim(failure)
            entry = failure.__traceback__
            while entry is not None and is_library(entry.tb_frame.f_code.co_filename):
                entry = entry.tb_next  # ours
            traceback.print_exception(type(failure), failure, entry)
            error, status = traceback.format_exception_only(failure)[-1].strip(), 1
    return Outcome(recorder.record, error, status)
