"""A process that has imported PyTorch once, and forks for every program: none pays for that import again.

It is a fork server of `multiprocessing`; what it forks here is a whole program, with its own standard
streams, working folder, environment, process group and session. When the process that asked for them ends, so
do the server and the programs. On Linux alone: elsewhere, forking after an import is not safe.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

from practice_gpu.processes.environment import without_practice_gpu

POSSIBLE = sys.platform == "linux"
"""Whether this system can have a warm process."""
PRELOADED = ("torch", "torch._dynamo", "sklearn.datasets", "sklearn.model_selection")
"""What most programs of the exercises import, the optimizer's own import of the compiler included."""
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class WarmProcess:
    """Starts functions in forks of one process that has imported what they need.

    Parameters
    ----------
    preload : sequence of str
        The modules. One that cannot be imported is left for the program to fail on.
    environment : mapping, optional
        The environment variables while they are imported; by default those of this process.
    """

    def __init__(
        self, preload: Sequence[str] = PRELOADED, environment: Mapping[str, str] | None = None
    ) -> None:
        if not POSSIBLE:
            raise OSError(f"a warm process needs a system that forks safely; this is {sys.platform}")
        self._lock = threading.Lock()
        self._started: WeakSet[ForkedProcess] = WeakSet()
        self._server = forkserver.ForkServer()
        self._server.set_forkserver_preload([*preload, __name__])
        # one thread each, since many programs may run at once; and a fork cannot use a GPU whose driver its
        # parent has started: PyTorch is to ask NVML what there is
        settings = {"OMP_NUM_THREADS": "1", **without_practice_gpu(environment or os.environ)}
        settings["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        paths = str(Path(__file__).parent), settings.get("PYTHONPATH")
        settings["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with patch.dict(os.environ, settings, clear=True):
            self._server.ensure_running()

    def start(
        self,
        function: str,
        *arguments: Any,
        folder: str | os.PathLike[str],
        environment: Mapping[str, str] | None = None,
        stderr: bool = False,
    ) -> ForkedProcess:
        """Fork, and call `function`, ``"package.module:name"``, in the fork.

        What it returns is the exit status, as with ``sys.exit``. `environment` is all of it, by default that
        of this process. With `stderr`, standard error has its own pipe; else it goes where output goes.
        """
        program = _Program(
            function, arguments, os.fspath(folder), dict(os.environ if environment is None else environment)
        )
        with self._lock:  # so that none starts while `close` ends those that have
            process = ForkedProcess(self._server, program, stderr)
            self._started.add(process)
        return process

    def close(self) -> None:
        """End the programs that still run, and the server."""
        with self._lock:
            for process in self._started:
                if process.returncode is None:
                    process.kill()
            os.kill(self._server._forkserver_pid, signal.SIGKILL)  # the libraries' own ends take seconds
            self._server._stop()

    def __enter__(self) -> WarmProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ForkedProcess:
    """A program in a fork; like :class:`subprocess.Popen` as far as it goes.

    Attributes
    ----------
    pid : int
        Of the program, and of its process group and session.
    stdout : binary file
        Its standard output; with standard error, unless that has its own pipe.
    returncode : int or None
        None before :meth:`wait`; negative: the signal that ended it.
    """

    def __init__(self, server: forkserver.ForkServer, program: _Program, stderr: bool) -> None:
        pipes = [os.pipe() for _ in range(2 if stderr else 1)]
        self.returncode: int | None = None
        self._pipes = [os.fdopen(read, "rb") for read, _ in pipes]
        self.stdout = self._pipes[0]
        self._lock = threading.Lock()
        try:
            status, data = server.connect_to_new_process([write for _, write in pipes])
        finally:
            for _, write in pipes:
                os.close(write)
        self._status = os.fdopen(status, "rb", buffering=0)
        with os.fdopen(data, "wb") as pipe:
            pickle.dump({}, pipe)  # of this process the program is to know nothing
            pickle.dump(program, pipe)
        self.pid: int = forkserver.read_signed(status)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status at its end; raise `subprocess.TimeoutExpired` after so long."""
        with self._lock:
            if self.returncode is None:
                if not wait([self._status], timeout):
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
                try:
                    self.returncode = forkserver.read_signed(self._status.fileno())
                except EOFError:
                    self.returncode = -signal.SIGKILL  # the server was killed, and the program with it
                self._status.close()
            return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Read all its output and wait for its end; after `timeout` seconds, or Ctrl-C, it is killed."""
        with ThreadPoolExecutor(2) as pool:
            outputs = [pool.submit(pipe.read) for pipe in self._pipes]
            try:
                self.wait(timeout)
            except BaseException:
                self.kill()
                raise
        for pipe in self._pipes:
            pipe.close()
        return outputs[0].result(), outputs[1].result() if outputs[1:] else b""

    def kill(self) -> None:
        """Kill it, and what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has ended, or does not lead its group yet
                os.kill(self.pid, signal.SIGKILL)
        self.wait()


@dataclass
class _Program:
    """What the server unpickles in a fork, in the place of a process object of `multiprocessing`."""

    function: str
    arguments: tuple[Any, ...]
    folder: str
    environment: dict[str, str]

    def _bootstrap(self, parent_sentinel: int) -> int:
        """Be the program, and return its exit status, with which the server's fork ends."""
        code = 1
        try:
            self._settle()
            module, _, name = self.function.partition(":")
            result = getattr(importlib.import_module(module), name)(*self.arguments)
            code = result if isinstance(result, int) else 0
        except SystemExit as request:
            code = request.code if isinstance(request.code, int) else 0 if request.code is None else 1
            if isinstance(request.code, str):
                print(request.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            _end_as_an_interpreter_does()
        return code

    def _settle(self) -> None:
        """Make of the fork what an interpreter is that has just started."""
        os.setsid()
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.freeze()  # a collection does not touch, and so copy, what all forks share
        output, *error = forkserver.get_inherited_fds()
        for number, target in enumerate((os.open(os.devnull, os.O_RDWR), output, *error, output)[:3]):
            os.dup2(target, number)
        os.closerange(3, 64)  # the server does not end while a fork holds on to one of its pipes
        for shared, new in (
            (forkserver._forkserver, forkserver.ForkServer()),
            (resource_tracker._resource_tracker, resource_tracker.ResourceTracker()),
        ):
            vars(shared).update(vars(new))
        sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = sys.__stdout__ = _stream(1)
        sys.stderr = sys.__stderr__ = _stream(2)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        # what an interpreter reads when it starts, or a library when it is imported
        time.tzset()
        sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
        tempfile.tempdir = None
        sys.path[:] = filter(None, sys.path)  # not the folder where it is
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # as in a fresh process: not where the warm one stands


def _stream(number: int) -> io.TextIOWrapper:
    """Open a standard stream that keeps nothing back, as ``python -u`` does."""
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


def _end_as_an_interpreter_does() -> None:
    """Wait for the threads, remove temporary folders and the like, and write out what was printed."""
    ends: list[Callable[[], object]] = [threading._shutdown, atexit._run_exitfuncs]
    for end in [*ends, sys.stdout.flush, sys.stderr.flush]:
        with contextlib.suppress(Exception):
            end()


def warm_process(
    preload: Sequence[str] = PRELOADED,
) -> contextlib.AbstractContextManager[WarmProcess | None]:
    """Return a warm process where this system can have one, else a context without."""
    return WarmProcess(preload) if POSSIBLE else contextlib.nullcontext()
