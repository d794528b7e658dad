"""The process in which a program is recorded."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from gpulesson_tools.planning.recording.record import Record
from gpulesson_tools.programs.execution import execute

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


def main(send: Callable[[bytes], None], request: Request, output: Connection | bool) -> None:
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

    send(pickle.dumps(Outcome(*_recorded(request, end))))


def _recorded(request: Request, ignored: Any) -> tuple[Record, str, int]:
    from gpulesson_tools.planning.recording.batches import sizes_changed
    from gpulesson_tools.planning.recording.cuda_rules import memory_as_on_cuda
    from gpulesson_tools.planning.recording.recorder import Finished, Recorder
    from practice_gpu import practice_gpu
    from practice_gpu.device.events import is_library
    from practice_gpu.tracebacks import trim

    error, status = "", 0
    with ExitStack() as surroundings:
        surroundings.enter_context(memory_as_on_cuda())
        gpu: Any = surroundings.enter_context(practice_gpu(CAPACITY, force=True))
        if request.batch_size is not None:
            surroundings.enter_context(sizes_changed(*request.batch_size))
        recorder = Recorder(gpu, request.steps, ignored, dry=request.dry)
        try:
            with recorder:
                execute(request.program)
        except Finished:
            pass
        except SystemExit as request_to_end:
            code = request_to_end.code
            status = code if isinstance(code, int) else int(code is not None)
        except BaseException as failure:
            trim(failure)
            entry = failure.__traceback__
            while entry is not None and is_library(entry.tb_frame.f_code.co_filename):
                entry = entry.tb_next  # ours
            traceback.print_exception(type(failure), failure, entry)
            error, status = traceback.format_exception_only(failure)[-1].strip(), 1
    return recorder.record, error, status
