"""The process that a learner's program runs in: bounds, observers, the practice GPU, and the program.

Started by :mod:`gpulesson.exercises.process.run` alone. What was seen is written to a file, from which the
parent reads it; nothing that the program prints can be taken for it. Nor can a file that it writes: the
result is sealed with a key that the parent has made for this run. It comes in the job file, which is gone
before the program begins.

What that does not keep out: the program runs in this very process. One that walks up the stack of its caller
finds the key, and one that replaces functions of this package decides what they see. It has to be written for
that purpose, and nothing inside a process can prevent it. Where a result matters, read the programs.
"""

from __future__ import annotations

import faulthandler
import hashlib
import hmac
import json
import os
import re
import runpy
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

from gpulesson.exercises.process.leftovers import MARK, end_when_closed

_HOST = "127.0.0.1"
_LOOK = 0.02
"""Seconds from one look to the next."""
_kept: list[Any] = []
"""The store, which has to live as long as the process."""


def main(job_file: str, watched: int = -1) -> None:
    """Run one job.

    Parameters
    ----------
    job_file : str
        JSON: ``program`` (the copy to run), ``folder`` (private: ``started``, ``stacks``, ``result.json``),
        ``gpu`` (False: a machine without one), ``exercise``, ``seconds``, ``memory`` (bytes), ``beside``,
        ``key`` (hexadecimal), ``rank`` (None, or ``number``, ``of`` and ``folder`` of one of several
        processes). The file is removed.
    watched : int
        An end of a pipe: the program is ended when the other end is closed.
    """
    if watched >= 0:
        end_when_closed(watched, os.environ[MARK])
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    Path(job_file).unlink()
    folder, owner, key = Path(job["folder"]), os.getpid(), bytes.fromhex(job.pop("key"))
    try:
        import torch
    except BaseException as error:  # a broken installation raises anything
        _write(folder, key, {"status": "no-torch", "message": f"{type(error).__name__}: {error}"})
        return
    torch.set_num_threads(1)
    rank = job["rank"]
    if rank is not None:
        if not torch.distributed.is_available():
            message = "this PyTorch was built without torch.distributed"
            _write(folder, key, {"status": "no-practice-gpu", "message": message})
            return
        _join(**rank)
    from gpulesson.exercises import calls
    from gpulesson.exercises.exercise import find
    from gpulesson.exercises.watch import observer as watch
    from gpulesson.practice import PracticeWarning, practice_gpu

    warnings.simplefilter("ignore", PracticeWarning)
    with watch.observed() as observer:
        try:
            gpu: Any = practice_gpu() if job["gpu"] else nullcontext()
            if rank is not None:
                gpu = practice_gpu(count=rank["of"], force=True)  # as many on any machine
            opened = gpu.__enter__()
        except RuntimeError as error:  # a PracticeError, or a real GPU that is full, or another's
            _write(folder, key, {"status": "no-practice-gpu", "message": str(error)})
            return
        if opened is not None:
            watch.attach(observer, opened)
        _bound_memory(job["memory"], opened)
        stacks = (folder / "stacks").open("w")
        if os.name == "posix":  # a program that is stopped gets this signal, says where it was, and ends
            faulthandler.register(signal.SIGUSR1, stacks, chain=True)
        else:
            faulthandler.dump_traceback_later(job["seconds"], file=stacks)
        calls.beside = job["beside"]
        if rank is not None:
            _begin_together(rank["number"], rank["of"])
        (folder / "started").touch()
        outcome = _run(job["program"], job["beside"], watch.error_seen)
        if os.getpid() != owner:  # a process that the program forked has come here as well
            os._exit(0)
        space = outcome.pop("globals")
        with _unbound_memory():
            trace = observer.trace()
            trace.program = job["program"]
        for name, value in outcome.items():
            setattr(trace, name, value)
        if opened is not None:
            trace.device, trace.simulated = opened.name, opened.simulated
            trace.device_memory = torch.cuda.max_memory_allocated()  # asks no GPU: an error may have lost it
        task = find(job["exercise"]) if job["exercise"] else None
        if task is not None and task.probe is not None and (trace.error is None or task.function):
            try:
                task.probe(trace, observer, space)  # within the same bounds: it calls the learner's functions
            except calls.Failed:
                pass
            except BaseException as error:  # and looks at the learner's objects, which may do anything
                if trace.error is None:
                    trace.status, trace.error = "error", watch.error_seen(error, job["program"])
        if os.getpid() != owner:
            os._exit(0)
        faulthandler.cancel_dump_traceback_later()
        if os.name == "posix":
            faulthandler.unregister(signal.SIGUSR1)
        sys.stdout.flush()
        with _unbound_memory():
            _write(folder, key, {"status": "ran", "trace": trace.to_dict()})
    sys.stderr.flush()
    os._exit(0)  # threads that the program left running do not hold it up


def _join(number: int, of: int, folder: str) -> None:
    """Tell this process which of several it is, as torchrun does.

    The first one keeps the store by which they find one another, at a port that the system has chosen.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = Path(folder, "port")
    if number == 0:
        _kept.append(TCPStore(_HOST, 0, is_master=True, wait_for_workers=False, use_libuv=os.name != "nt"))
        part = port.with_suffix(".part")
        part.write_text(str(_kept[0].port))
        part.replace(port)
    while not port.exists():
        time.sleep(_LOOK)  # as long as the parent waits for the beginning
    if number:
        _kept.append(TCPStore(_HOST, int(port.read_text()), use_libuv=os.name != "nt"))
    os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(number))
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(of))
    os.environ |= {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0"}
    os.environ |= {"MASTER_ADDR": _HOST, "MASTER_PORT": port.read_text()}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # no program makes a store of its own


def _begin_together(number: int, of: int) -> None:
    """
    Wait for the other processes: on a busy machine one may be ready long before another.

    The parent bounds how long. The first process goes last: its program may end it, and the store with it.
    """
    (store,) = _kept
    store.add("ready", 1)
    while store.add("ready", 0) < of:
        time.sleep(_LOOK)
    if number:
        store.add("gone", 1)
    while not number and store.add("gone", 0) < of - 1:
        time.sleep(_LOOK)


def _run(program: str, beside: str, describe: Callable[..., Any]) -> dict[str, Any]:
    """Run the program as ``python program`` would; say how it ended."""
    sys.argv = [program]
    sys.path.insert(0, str(Path(program).parent))
    sys.path.append(beside)  # modules of the learner's own, next to the file
    os.chdir(Path(program).parent)
    space: dict[str, Any] = {}
    try:
        space = runpy.run_path(program, run_name="__main__")
    except SystemExit as request:
        code = request.code
        status = int(code) if isinstance(code, int) else 0 if code is None else 1
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)  # as Python does
        seen = describe(request, program)
        return {
            "status": "exit",
            "exit_code": status,
            "exit_at": seen.site,
            "globals": _globals(request, program),
        }
    except BaseException as error:
        shown = traceback.format_exception(type(error), error, _first_entry(error, program))
        print(own_lines("".join(shown)), end="", file=sys.stderr)
        return {"status": "error", "error": describe(error, program), "globals": _globals(error, program)}
    return {"status": "finished", "globals": space}


def own_lines(text: str) -> str:
    """Leave the libraries' lines out of a printed traceback, so that it ends in a line of the learner's.

    Also out of the tracebacks of the errors that it came from, and of one that a loader's worker sent.
    """
    from gpulesson.practice.events import is_library

    kept, inside, library = [], False, False
    for line in text.splitlines(keepends=True):
        if line.endswith("Traceback (most recent call last):\n"):
            inside, library = True, False
        elif inside and not line.startswith("  "):  # the error itself
            inside = library = False
        elif inside and (entry := re.match(r'  File "(.+)", line \d+', line)):
            library = is_library(entry[1])
        if not library:
            kept.append(line)
    return "".join(kept)


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


@contextmanager
def _unbound_memory() -> Iterator[None]:
    """While it is open, what this process itself needs is not counted as the program's."""
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def sealed(key: bytes, content: bytes) -> bytes:
    """Return what only a holder of the key can write beside `content`."""
    return hmac.new(key, content, hashlib.sha256).hexdigest().encode()


def _write(folder: Path, key: bytes, result: dict[str, Any]) -> None:
    content = json.dumps(result, default=str).encode()
    part = folder / "result.part"
    part.write_bytes(sealed(key, content) + b"\n" + content)
    part.replace(folder / "result.json")
