"""End a learner's program with all that it has started, also when the check itself is killed."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

MARK = "GPULESSON_RUN"
"""Environment variable of a program, which its processes inherit: the folder of this run."""


def end_group(pid: int, mark: str) -> None:
    """Kill a process group, and on Linux every process that has left it and carries its mark.

    Parameters
    ----------
    pid : int
        Leader of the group.
    mark : str
        Value of the variable `MARK`. A process that has cleared its environment is not found.
    """
    for other in marked(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(other, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # at last: the caller may be in it


def marked(mark: str) -> list[int]:
    """Find the processes that carry a mark; on a system without ``/proc`` none."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def end_when_closed(pipe: int, mark: str) -> None:
    """End this process group when the other end of a pipe is closed, which also the death of its owner does.

    A process of its own waits for that, as no signal and no busy program can keep it from waiting. It is no
    child of the program: a program that waits for its children does not wait for it.

    Parameters
    ----------
    pipe : int
        The end to read from.
    mark : str
        See `end_group`.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(pipe)
        return
    if os.fork():
        os._exit(0)
    try:
        os.closerange(0, pipe)  # who waits for the end of the program's output does not wait for this
        os.closerange(pipe + 1, 256)
        while True:
            with contextlib.suppress(InterruptedError):
                if not os.read(pipe, 1):
                    break
        end_group(os.getpgid(0), mark)
    finally:
        os._exit(0)
