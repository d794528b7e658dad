"""A function in a fresh process: it ends with all it has started, and with the process that asked for it.

On Linux a server of `multiprocessing` imports PyTorch once and forks for each process; elsewhere each process
imports it again, since on macOS a fork that computes may crash.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any

PRELOADED = ("torch", "torch._dynamo", "torch.utils.data", "numpy")
"""What nearly every program needs; the optimizers import the compiler at their first step."""


class Process:
    """``function(send, *arguments)`` in a fresh process, where ``send`` takes the bytes of a message.

    It starts at once, as the leader of its own session.

    Parameters
    ----------
    function : callable
        Of a module that can be imported.
    *arguments
        What can be pickled.
    folder : str
        Removed if the process that asked for this one ends first.
    preload : sequence of str
        Modules that the server imports besides :data:`PRELOADED`, when it starts.
    """

    def __init__(
        self, function: Callable[..., None], *arguments: Any, folder: str, preload: Sequence[str] = ()
    ) -> None:
        context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        self._receive, send = context.Pipe(duplex=False)
        if sys.platform == "linux":
            context.set_forkserver_preload([*PRELOADED, function.__module__, *preload])
        try:
            self._process = self._start(context, send, folder, function, arguments)
        except (EOFError, ConnectionError):  # a module fails while it is preloaded: it is left to the program
            context.set_forkserver_preload([*PRELOADED])
            self._process = self._start(context, send, folder, function, arguments)
        send.close()

    @staticmethod
    def _start(context: Any, *arguments: Any) -> Any:
        process = context.Process(target=_main, args=(dict(os.environ), *arguments))
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # a script without a guard would run once more
        try:
            process.start()
        finally:
            sys.modules["__main__"] = main
        return process

    def receive(self, seconds: float | None = None) -> bytes:
        """Wait for the next message.

        Raises
        ------
        TimeoutError
            If none comes within `seconds`.
        EOFError
            If the process ended without one.
        """
        ready = wait([self._receive, self._process.sentinel], seconds)
        if not ready:
            raise TimeoutError(f"no message within {seconds:g} seconds")
        if self._receive in ready or self._receive.poll():
            try:
                message: bytes = self._receive.recv_bytes()
            except OSError:
                raise EOFError("the process ended within a message") from None
            return message
        raise EOFError("the process ended without a message")

    def status(self, seconds: float = 10) -> int | None:
        """Wait for its end; return its exit status, minus the number of the signal that ended it, or None."""
        self._process.join(seconds)
        status: int | None = self._process.exitcode
        return status

    def end(self) -> None:
        """End it, and, but for Windows, what it has started."""
        _end_group(self._process.pid)
        self._process.kill()
        self._process.join()
        self._receive.close()


def _main(
    environment: dict[str, str],
    send: Connection,
    folder: str,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    leave = os._exit  # a program may put something else in its place
    os.environ.clear()
    os.environ.update(environment)  # the server's is older
    if os.name == "posix":
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    multiprocessing.set_start_method(None, force=True)  # the program's own processes start as usual
    multiprocessing.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]  # the parent's
    function(send.send_bytes, *arguments)
    send.close()
    leave(0)  # not through what a program leaves open


def _end_with_parent(folder: str) -> None:
    """Wait until the process that asked for this one has ended; then nobody needs it, nor its folder."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        if hasattr(os, "fork"):
            group = os.getpgid(0)
            if os.fork() == 0:  # the last one ends the others, and removes what they left
                os.setsid()
                _end_group(group)
                shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


def _end_group(leader: int) -> None:
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
