"""The signals with which a cluster asks a run to stop, held until the run reaches a step."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

_GRACE = 1
"""Seconds to wait for a signal that has ended the loader's workers already."""


class StopSignals:
    """Holds SIGTERM and SIGUSR1 while a loop runs; before and after it, they have their usual effect.

    Attributes
    ----------
    number : int
        The signal that came, or 0.
    """

    def __init__(self, loop_runs: Callable[[], bool]) -> None:
        self.number = 0
        self._loop_runs = loop_runs
        self._process = os.getpid()
        self._before: dict[int, Any] = {}  # their handlers
        self._child: Any = None  # the handler of SIGCHLD, while it is held
        if threading.current_thread() is threading.main_thread():  # other threads may not set handlers
            for name in ("SIGTERM", "SIGUSR1"):
                if number := getattr(signal, name, None):
                    self._before[number] = signal.getsignal(number)
                    signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._loop_runs() and os.getpid() == self._process:
            self.number = number
            self.hold_child_signal()
        elif callable(before := self._before[number]):
            before(number, frame)
        elif before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def hold_child_signal(self) -> None:
        """Keep a worker's end from interrupting a step, as torch would: the loader reports it later."""
        child = getattr(signal, "SIGCHLD", None)
        while child and self._before:
            with suppress(RuntimeError):  # torch's handler, for a worker that has ended in this moment
                if (before := signal.getsignal(child)) == signal.SIG_DFL:
                    break
                self._child = before
                signal.signal(child, signal.SIG_DFL)

    def came_with_an_error(self, workers: bool) -> bool:
        """Return whether a signal came; it may end the loader's workers before it reaches this process."""
        until = time.monotonic() + (_GRACE if workers and self._before else 0)
        while not self.number and time.monotonic() < until:
            time.sleep(0.01)
        return bool(self.number)

    def give_back(self) -> None:
        """Restore the handlers; after a signal, not that of SIGCHLD: torch's raises when a worker ends."""
        if self.number:
            self.hold_child_signal()
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()
        if self._child is not None and not self.number:
            signal.signal(signal.SIGCHLD, self._child)

    def pass_on(self, error: BaseException | None) -> None:
        """Raise the signal that came, unless the run has already stopped for it."""
        if self.number and not isinstance(error, SystemExit):
            if raised := sys.exc_info()[1]:  # which might not be printed any more
                traceback.print_exception(raised)
            signal.raise_signal(self.number)
