"""The process in which a program is recorded: ``python -m gpulesson_tools.planning.recording.child FOLDER``.

In the folder it finds what to do (:class:`gpulesson_tools.planning.recording.programs.Request`), and it
leaves there what came of it (:class:`gpulesson_tools.planning.recording.programs.Outcome`).
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and sys.path[0] == os.getcwd():  # noqa: PTH109  # `python -m` puts it there
    del sys.path[0]

import pickle
import runpy
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gpulesson_tools.planning.recording.programs import CAPACITY, Outcome, Request
from gpulesson_tools.planning.recording.record import Record


def main(folder: Path) -> int:
    """Do what the request in a folder asks for."""
    request: Request = pickle.loads((folder / "request").read_bytes())  # the parent's

    def leave(record: Record, error: str = "", status: int = 0) -> None:
        (folder / "unfinished").write_bytes(pickle.dumps(Outcome(record, error, status)))
        (folder / "unfinished").replace(folder / "outcome")

    def end(record: Record) -> None:
        leave(record)
        sys.stdout.flush()
        os._exit(0)

    leave(*_recorded(request, end))
    return 0


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
                _run(request.program)
        except Finished:
            pass
        except SystemExit as request_to_end:
            code = request_to_end.code
            status = code if isinstance(code, int) else int(code is not None)
        except BaseException as failure:
            trim(failure)
            entry = failure.__traceback__
            while entry is not None and is_library(entry.tb_frame.f_code.co_filename):
                entry = entry.tb_next  # ours, and runpy's
            traceback.print_exception(type(failure), failure, entry)
            error, status = traceback.format_exception_only(failure)[-1].strip(), 1
    return recorder.record, error, status


def _run(program: tuple[str, ...]) -> None:
    """Run a program as Python's command line does."""
    if program[0] == "-m":
        sys.argv = [*program[1:]]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*program]
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(str(Path(program[0]).absolute()), run_name="__main__")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
