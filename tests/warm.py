"""A process that has imported PyTorch once, and forks for every program: none pays for that import again.

It is a fork server of `multiprocessing`, whose forks become whole programs with their own streams, folder,
environment and session. When the process that started the server ends, so do the server and the programs.
This needs Linux: elsewhere, forking after an import is not safe.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

from practice_gpu.processes.environment import without_practice_gpu

POSSIBLE = sys.platform == "linux"
"""Whether this system can have a warm process."""
PRELOADED = ("torch", "torch._dynamo", "sklearn.datasets", "sklearn.model_selection")
"""What most programs of the exercises import, the optimizer's own import of the compiler included."""
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class WarmProcess(contextlib.AbstractContextManager["WarmProcess"]):
    """Starts functions in forks of one process that has imported what they need.

    Parameters
    ----------
    preload : sequence of str
        The modules. If the import of one fails, the program that imports it will fail.
    environment : mapping, optional
        The environment variables during these imports; by default those of this process.
    """

    def __init__(
        self, preload: Sequence[str] = PRELOADED, environment: Mapping[str, str] | None = None
    ) -> None:
        self._server = forkserver.ForkServer()
        self._server.set_forkserver_preload([*preload, __name__])
        # one thread each, since many programs may run at once; and a fork cannot use a GPU whose driver its
        # parent has started, so PyTorch must ask NVML which GPUs exist
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
        stderr: int = subprocess.STDOUT,
    ) -> ForkedProcess:
        """Fork, and call `function`, ``"package.module:name"``, in the fork.

        Its result is the exit status, as with ``sys.exit``; `stderr` is as in :class:`subprocess.Popen`.
        `environment` replaces that of this process.
        """
        variables = dict(os.environ if environment is None else environment)
        return ForkedProcess(
            self._server, _Program(function, arguments, os.fspath(folder), variables), stderr
        )

    def __exit__(self, *_: object) -> None:
        os.kill(self._server._forkserver_pid, signal.SIGKILL)  # the libraries' exits take seconds
        self._server._stop()


class ForkedProcess(subprocess.Popen[str]):
    """A program in a fork; the server is its parent, and reports its exit status."""

    def __init__(self, server: forkserver.ForkServer, program: _Program, stderr: int) -> None:
        self._server, self._program = server, program
        super().__init__(
            [program.function], stdout=subprocess.PIPE, stderr=stderr, encoding="utf-8", errors="replace"
        )

    def _execute_child(self, *given: Any) -> None:
        *_, output, _, errors = pipes = given[10:16]
        try:
            status, data = self._server.connect_to_new_process([output, errors])
        finally:
            self._close_pipe_fds(*pipes)
        self._status = os.fdopen(status, "rb", buffering=0)
        with os.fdopen(data, "wb") as pipe:
            pickle.dump({}, pipe)  # multiprocessing's data, which the program does not need
            pickle.dump(self._program, pipe)
        self.pid = forkserver.read_signed(status)
        self._child_created = True

    def _wait(self, timeout: float | None) -> int:
        with self._waitpid_lock:
            if self.returncode is None:
                if not wait([self._status], timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                try:
                    self.returncode = forkserver.read_signed(self._status.fileno())
                except EOFError:
                    self.returncode = -signal.SIGKILL  # the server was killed, and the program with it
                self._status.close()
            return self.returncode

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def communicate(self, *arguments: Any, **options: Any) -> tuple[str, str]:
        """Read all its output and wait for its end; after a timeout or Ctrl-C, kill it."""
        try:
            return super().communicate(*arguments, **options)
        except BaseException:
            self.kill()
            raise

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
    """What the server unpickles in a fork, instead of a process object of `multiprocessing`."""

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
            code = request.code if isinstance(request.code, int) else int(request.code is not None)
            if isinstance(request.code, str):
                print(request.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        # end as an interpreter does: threads, exit handlers, output
        for end in threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush:
            with contextlib.suppress(Exception):
                end()
        return code

    def _settle(self) -> None:
        """Give the fork the state of an interpreter that has just started."""
        os.setsid()
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.freeze()  # so that a collection does not touch, and copy, what all forks share
        for number, target in enumerate([os.open(os.devnull, os.O_RDWR), *forkserver.get_inherited_fds()]):
            os.dup2(target, number)
        os.closerange(3, 64)  # the server does not end while a fork has one of its pipes
        for shared, new in (
            (forkserver._forkserver, forkserver.ForkServer()),
            (resource_tracker._resource_tracker, resource_tracker.ResourceTracker()),
        ):
            vars(shared).update(vars(new))
        sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = sys.__stdout__ = _unbuffered(1)
        sys.stderr = sys.__stderr__ = _unbuffered(2)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        # what an interpreter reads when it starts, or a library when it is imported
        time.tzset()
        sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
        tempfile.tempdir = None
        sys.path[:] = filter(None, sys.path)  # without the server's folder
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # as in a fresh process


def _unbuffered(number: int) -> io.TextIOWrapper:
    """Open a standard stream as ``python -u`` does."""
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


def warm_process(
    preload: Sequence[str] = PRELOADED,
) -> contextlib.AbstractContextManager[WarmProcess | None]:
    """Return a warm process where this system can have one, else a context without."""
    return WarmProcess(preload) if POSSIBLE else contextlib.nullcontext()
