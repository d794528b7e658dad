"""The process that a learner's program runs in: bounds, observers, the practice GPU, and the program.

Started by :mod:`gpulesson.exercises.process.run` alone. What was seen is written to a file, from which the
parent reads it; nothing that the program prints can be taken for it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

from gpulesson.exercises.process.leftovers import MARK, end_when_closed

_OURS = str(Path(__file__).parents[1]) + os.sep


def main(job_file: str, watched: int = -1) -> None:
    """Run one job.

    Parameters
    ----------
    job_file : str
        JSON: ``program`` (the copy to run), ``folder`` (private: ``started``, ``stacks``, ``result.json``),
        ``gpu`` (False: a machine without one), ``exercise``, ``seconds``, ``memory`` (bytes), ``beside``.
    watched : int
        An end of a pipe: the program is ended when the other end is closed.
    """
    if watched >= 0:
        end_when_closed(watched, os.environ[MARK])
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    folder, owner = Path(job["folder"]), os.getpid()
    try:
        import torch
    except BaseException as error:  # a broken installation raises anything
        _write(folder, {"status": "no-torch", "message": f"{type(error).__name__}: {error}"})
        return
    torch.set_num_threads(1)
    from gpulesson.exercises.exercise import find
    from gpulesson.exercises.watch import observer as watch
    from gpulesson.practice import PracticeWarning, practice_gpu

    warnings.simplefilter("ignore", PracticeWarning)
    with watch.observed() as observer:
        try:
            gpu: Any = practice_gpu() if job["gpu"] else nullcontext()
            opened = gpu.__enter__()
        except RuntimeError as error:  # a PracticeError, or a real GPU that is full, or another's
            _write(folder, {"status": "no-practice-gpu", "message": str(error)})
            return
        if opened is not None:
            watch.attach(observer, opened)
        _bound_memory(job["memory"], opened)
        stacks = (folder / "stacks").open("w")
        if os.name == "posix":  # a program that is stopped gets this signal, says where it was, and ends
            faulthandler.register(signal.SIGUSR1, stacks, chain=True)
        else:
            faulthandler.dump_traceback_later(job["seconds"], file=stacks)
        (folder / "started").touch()
        outcome = _run(job["program"], job["beside"], watch.error_seen)
        if os.getpid() != owner:  # a process that the program forked has come here as well
            os._exit(0)
        faulthandler.cancel_dump_traceback_later()
        if os.name == "posix":
            faulthandler.unregister(signal.SIGUSR1)
        _unbound_memory()
        space = outcome.pop("globals")
        trace = observer.trace()
        trace.program = job["program"]
        for name, value in outcome.items():
            setattr(trace, name, value)
        if opened is not None:
            trace.device, trace.simulated = opened.name, opened.simulated
            trace.device_memory = torch.cuda.max_memory_allocated()  # asks no GPU: an error may have lost it
        probe = find(job["exercise"]).probe if job["exercise"] else None
        if probe is not None and trace.error is None:
            try:
                probe(trace, observer, space)
            except Exception as error:  # it looks at the learner's objects, and calls the learner's functions
                trace.status = "error"
                trace.error = watch.error_seen(error, job["program"])
        sys.stdout.flush()
        _write(folder, {"status": "ran", "trace": trace.to_dict()})
    sys.stderr.flush()
    os._exit(0)  # threads that the program left running do not hold it up


def _run(program: str, beside: str, describe: Callable[..., Any]) -> dict[str, Any]:
    """Run the program as ``python program`` would; say how it ended."""
    sys.argv = [program]
    sys.path.insert(0, str(Path(program).parent))
    sys.path.append(beside)  # modules of the learner's own, next to the file
    os.chdir(Path(program).parent)
    from gpulesson.practice.tracebacks import trim

    space: dict[str, Any] = {}
    try:
        space = runpy.run_path(program, run_name="__main__")
    except SystemExit as request:
        code = request.code
        status = code if isinstance(code, int) else 0 if code is None else 1
        seen = describe(request, program)
        return {
            "status": "exit",
            "exit_code": status,
            "exit_at": seen.site,
            "globals": _globals(request, program),
        }
    except BaseException as error:
        trim(error)
        shown = traceback.TracebackException(type(error), error, _first_entry(error, program))
        watchers = [frame for frame in shown.stack if frame.filename.startswith(_OURS)]
        shown.stack = traceback.StackSummary.from_list([f for f in shown.stack if f not in watchers])
        print("".join(shown.format()), end="", file=sys.stderr)
        return {"status": "error", "error": describe(error, program), "globals": _globals(error, program)}
    return {"status": "finished", "globals": space}


def _globals(error: BaseException, program: str) -> dict[str, Any]:
    """Return the program's variables, from the frame that the error passed through."""
    entry = _first_entry(error, program)
    return {} if entry is None else dict(entry.tb_frame.f_globals)


def _first_entry(error: BaseException, program: str) -> TracebackType | None:
    """Return where a traceback enters the program: what runs it is nobody's business."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename != program:
        entry = entry.tb_next
    return entry


def _bound_memory(limit: int, gpu: Any) -> None:
    """Have large allocations fail, with the line that makes them; a real GPU's driver maps too much."""
    if sys.platform != "linux" or (gpu is not None and not gpu.simulated):
        return
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _unbound_memory() -> None:
    if sys.platform == "linux":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _write(folder: Path, result: dict[str, Any]) -> None:
    part = folder / "result.part"
    part.write_text(json.dumps(result, default=str), encoding="utf-8")
    part.replace(folder / "result.json")
