"""A process that has imported PyTorch once, and forks for every program: none pays for that import again.

The warm process itself runs no program. For each it forks a *keeper*, which forks the program and waits for
its end; so any number of programs can run at once. When the process that asked for them ends, the keepers
end their programs. Works where there is `os.fork`, and where forking after an import is safe: not on Windows,
not on macOS.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from practice_gpu.processes.environment import without_practice_gpu

POSSIBLE = os.name == "posix" and sys.platform != "darwin"
"""Whether this system can have a warm process."""
PRELOADED = ("torch", "torch._dynamo", "sklearn.datasets", "sklearn.model_selection")
"""What most programs of the exercises import, the optimizer's own import of the compiler included."""
START_SECONDS = 600
"""How long importing the modules may take, on the clock."""
_BEGIN = f"import sys; sys.path[0] = {str(Path(__file__).parent)!r}; from warm import serve; serve(0)"
_MESSAGE = 2**20
_keepers: set[int] = set()
"""In the warm process: what waits for each program's end."""


class WarmProcess:
    """Starts functions in forks of one process that has imported what they need.

    Parameters
    ----------
    preload : sequence of str
        The modules. One that cannot be imported is left for the program to fail on.
    environment : mapping, optional
        The environment variables while they are imported; by default those of this process.

    Raises
    ------
    OSError
        This system cannot fork safely: ``POSSIBLE`` of this module says whether it can.

    Examples
    --------
    >>> with WarmProcess(preload=["json"]) as warm:  # doctest: +SKIP
    ...     child = warm.start("os:getcwd", folder="/tmp")
    ...     child.wait()
    0
    """

    def __init__(
        self, preload: Sequence[str] = PRELOADED, environment: Mapping[str, str] | None = None
    ) -> None:
        if not POSSIBLE:
            raise OSError(f"a warm process needs a system that forks safely; this is {sys.platform}")
        self._lock = threading.Lock()
        self._started: WeakSet[ForkedProcess] = WeakSet()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MESSAGE)
        # read when NumPy and PyTorch are imported: one thread each, since many programs may run at once
        surroundings = {"OMP_NUM_THREADS": "1", **without_practice_gpu(environment or os.environ)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BEGIN], stdin=theirs.fileno(), env=surroundings
            )
        self._control.send(json.dumps(list(preload)).encode())

    def start(
        self,
        function: str,
        *arguments: Any,
        folder: str | os.PathLike[str],
        environment: Mapping[str, str] | None = None,
        stderr: bool = False,
    ) -> ForkedProcess:
        """Fork, and call a function in the fork, as the leader of a process group and session of its own.

        Parameters
        ----------
        function : str
            ``"package.module:name"``. What it returns is the exit status, as with ``sys.exit``.
        *arguments
            What JSON can say.
        folder : path
            The working folder.
        environment : mapping, optional
            All environment variables; by default those of this process.
        stderr : bool
            Standard error has a pipe of its own; by default it goes where standard output goes.

        Returns
        -------
        ForkedProcess

        Raises
        ------
        OSError
            The warm process has ended, or does not answer.
        """
        message = json.dumps(
            {
                "function": function,
                "arguments": arguments,
                "folder": os.fspath(folder),
                "environment": dict(os.environ if environment is None else environment),
            }
        ).encode()
        pipes = [os.pipe() for _ in range(3 if stderr else 2)]
        with self._lock:  # so that none starts while `close` ends those that have
            try:
                socket.send_fds(self._control, [message], [write for _, write in pipes])
            except OSError:
                for read, _ in pipes:
                    os.close(read)
                raise
            finally:
                for _, write in pipes:
                    os.close(write)
            process = ForkedProcess(*(read for read, _ in pipes))
            self._started.add(process)
        return process

    def close(self) -> None:
        """End the warm process, and the programs that still run."""
        with self._lock:
            self._control.close()
            started = list(self._started)
        for process in started:
            if process.returncode is None:
                process.kill()
        self._process.wait()

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
        Its standard output; with standard error, unless that has a pipe of its own.
    stderr : binary file or None
    returncode : int or None
        None while it runs; negative: the signal that ended it.
    """

    def __init__(self, status: int, stdout: int, stderr: int | None = None) -> None:
        self.stdout = os.fdopen(stdout, "rb")
        self.stderr = None if stderr is None else os.fdopen(stderr, "rb")
        self.returncode: int | None = None
        self._status = os.fdopen(status, "rb", buffering=0)
        self._ended = threading.Event()
        answered, _, _ = select.select([self._status], [], [], START_SECONDS)
        first = self._status.readline() if answered else b""
        if not first:
            self._close()
            how = "has ended" if answered else f"has not answered for {START_SECONDS} seconds"
            raise OSError(f"the warm process {how}; make another one")
        self.pid = int(first)
        threading.Thread(target=self._follow, daemon=True).start()

    def _close(self) -> None:
        for pipe in (self._status, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()

    def _follow(self) -> None:
        with self._status:
            line = self._status.readline()
        self.returncode = int(line) if line else -signal.SIGKILL  # its keeper was killed, too
        self._ended.set()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, at most `timeout` seconds; return the exit status.

        Raises
        ------
        subprocess.TimeoutExpired
            It is still running.
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Read all its output and wait for its end; after `timeout` seconds it is killed, with its group.

        Raises
        ------
        subprocess.TimeoutExpired
            It took longer.
        """
        parts: list[bytes] = [b"", b""]

        def read(place: int, pipe: Any) -> None:
            with pipe:
                parts[place] = pipe.read()

        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in enumerate(pipes)]
        for reader in readers:
            reader.start()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        for reader in readers:
            reader.join()
        return parts[0], parts[1]

    def kill(self) -> None:
        """Kill it, and what it has started."""
        _end_group(self.pid)
        self.wait()


# -- in the warm process


def serve(control_number: int) -> None:
    """Import the modules, then fork for every message, until the other side closes the socket."""
    control = socket.socket(fileno=os.dup(control_number))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    control.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2 * _MESSAGE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    # a fork cannot use a GPU whose driver its parent has started: have PyTorch ask NVML what there is
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for name in json.loads(control.recv(_MESSAGE)):
        with contextlib.suppress(BaseException):  # a broken installation raises anything
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork does not touch, and so copy, what all of them share
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        message, pipes, *_ = socket.recv_fds(control, _MESSAGE, 3)
        if not message:  # also when the other side was killed
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for keeper in _keepers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(keeper, signal.SIGTERM)
            _reap(wait=True)
            os._exit(0)  # not through the libraries' own ends, of which some talk
        keeper = os.fork()
        if keeper:
            _keepers.add(keeper)
        else:
            try:
                control.close()
                _keep(json.loads(message), *pipes)
            finally:
                os._exit(1)
        for pipe in pipes:
            os.close(pipe)


def _reap(*_: object, wait: bool = False) -> None:
    """Take note of the keepers that have ended: their processor time then counts as that of children."""
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, 0 if wait else os.WNOHANG)[0]:
            _keepers.discard(pid)


def _keep(job: dict[str, Any], status: int, stdout: int, stderr: int | None = None) -> None:
    """Fork the program, wait, and say how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    program = os.fork()
    if program == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        os.setsid()
        os.write(status, f"{os.getpid()}\n".encode())  # from here on it can be killed as a group
        os.close(status)
        _become(job, stdout, stderr)
    signal.signal(signal.SIGTERM, lambda *_: _end_group(program))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    for pipe in (stdout, stderr):
        if pipe is not None:
            os.close(pipe)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(null, number)  # who waits for the end of the warm process's output waits for no keeper
    _, ended = os.waitpid(program, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def _become(job: dict[str, Any], stdout: int, stderr: int | None) -> None:
    """Be the program: standard streams, a folder and an environment of its own."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, pipe in ((1, stdout), (2, stdout if stderr is None else stderr)):
            os.dup2(pipe, number)
        sys.stdout = sys.__stdout__ = _stream(1)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = _stream(2)  # type: ignore[misc]
        os.chdir(job["folder"])
        os.environ.clear()
        os.environ.update(job["environment"])
        # what an interpreter reads when it starts, or a library when it is imported
        time.tzset()
        sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
        tempfile.tempdir = None
        sys.argv = ["-c"]
        os.closerange(3, max(stdout, stderr or 0) + 1)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()  # as in a fresh process: not where the warm one stands
        module, _, name = job["function"].partition(":")
        result = getattr(importlib.import_module(module), name)(*job["arguments"])
        code = result if isinstance(result, int) else 0
    except SystemExit as request:
        code = request.code if isinstance(request.code, int) else 0 if request.code is None else 1
        if isinstance(request.code, str):
            print(request.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        end_as_an_interpreter_does()
        os._exit(code)


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _stream(number: int) -> io.TextIOWrapper:
    """Open a standard stream that keeps nothing back, as ``python -u`` does."""
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


def end_as_an_interpreter_does() -> None:
    """Wait for the threads, remove temporary folders and the like, and write out what was printed."""
    ends: list[Callable[[], object]] = [threading._shutdown, atexit._run_exitfuncs]  # type: ignore[attr-defined]
    for end in [*ends, sys.stdout.flush, sys.stderr.flush]:
        with contextlib.suppress(Exception):
            end()


@contextlib.contextmanager
def warm_process(preload: Sequence[str] = PRELOADED) -> Iterator[WarmProcess | None]:
    """Yield a warm process where this system can have one, else None."""
    if not POSSIBLE:
        yield None
        return
    with WarmProcess(preload) as warm:
        yield warm
