"""The event log: every copy between the host and a device, and every time the host waits, by line of code."""

import linecache
import os
import sys
import sysconfig
import textwrap
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import torch

from practice_gpu import errors

TO_DEVICE = "host to device"
TO_HOST = "device to host"
BETWEEN = "device to device"
WAIT = "wait"
WIDTH = 86
"""Columns of the report, which is shown on pages and in terminals."""

_TORCH = str(Path(torch.__file__).parent) + os.sep
_OURS = str(Path(__file__).parents[1]) + os.sep
_PATHS = sysconfig.get_paths()
_LIBRARIES = (
    *(_PATHS[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(torch.__file__).parents[1]) + os.sep,
    str(Path(__file__).parents[2]) + os.sep,  # what is installed beside it
    "<frozen ",
)


@dataclass(frozen=True)
class Event:
    """What one line of code did, summed over all the times it ran.

    Attributes
    ----------
    kind : str
        ``"host to device"``, ``"device to host"``, ``"device to device"``; or ``"wait"``, if nothing is
        copied.
    call : str
        What was called: ``.to()``, ``.item()``, ``print``, ``torch.cuda.synchronize()``, …
    filename : str
        File of the line.
    line : int
        Number of the line, from 1.
    count : int
        How often.
    nbytes : int
        Bytes copied, in all.
    waits : int
        How often the host had to wait for the device.
    """

    kind: str
    call: str
    filename: str
    line: int
    count: int
    nbytes: int
    waits: int

    @property
    def source(self) -> str:
        """The text of the line, where it can be found."""
        return linecache.getline(self.filename, self.line).strip()


class EventLog:
    """Sums of copies and waits, keyed by what was called and where."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str, int], list[int]] = {}
        self._warned: dict[str | tuple[str, type[Warning], int], int] = {}
        self.debug_mode = 0
        """``torch.cuda.set_sync_debug_mode``: 0 nothing, 1 warn, 2 raise."""
        self.listener: Callable[[str, str, int, bool], None] | None = None
        """Called with `kind`, `call`, `nbytes` and `waits` of every :meth:`record`, before the debug mode
        warns or raises and before the sums change; the user's line is on its stack.
        """

    def record(
        self, kind: str, call: str, nbytes: int = 0, waits: bool = True, tolerated: bool = False
    ) -> None:
        """Record one copy or wait, as in :class:`Event`, at the user's line that is running.

        ``torch.cuda.set_sync_debug_mode`` ignores it if it is `tolerated`: the code asked for
        ``non_blocking``, or for the wait itself. (PyTorch checks in ``c10::cuda::stream_synchronize`` and
        ``memcpy_and_sync``, which a wait for a device or an event does not call.)
        """
        if self.listener is not None:
            self.listener(kind, call, nbytes, waits)
        if self.debug_mode == 2 and waits and not tolerated:
            raise errors.synchronising()
        filename, line = where()
        if self.debug_mode and waits and not tolerated:
            message = "called a synchronizing CUDA operation"
            warnings.warn_explicit(message, UserWarning, filename, line, registry=self._warned)
        sums = self._sums.setdefault((kind, call, filename, line), [0, 0, 0])
        sums[0] += 1
        sums[1] += nbytes
        sums[2] += waits

    def clear(self) -> None:
        """Forget everything so far."""
        self._sums.clear()

    @property
    def events(self) -> tuple[Event, ...]:
        """What happened so far, in the order in which each line first ran."""
        return tuple(Event(*key, *sums) for key, sums in self._sums.items())


def report(events: Iterable[Event]) -> str:
    """Write events as a table by line, the most frequent first."""
    rows = sorted(events, key=lambda event: (-event.count, event.filename, event.line))
    if not rows:
        return "Practice GPU: no copy between host and device, and no wait."
    copies = sum(row.count for row in rows if row.kind != WAIT)
    nbytes = sum(row.nbytes for row in rows)
    waits = sum(row.waits for row in rows)
    table = [("times", "bytes", "waits")]
    table += [(f"{row.count:,}", f"{row.nbytes:,}", f"{row.waits:,}") for row in rows]
    widths = [max(len(cells[column]) for cells in table) for column in range(3)]
    head, *numbers = ["  ".join(map(str.rjust, cells, widths)) for cells in table]
    lines = [
        f"Practice GPU: {copies:,} copies ({nbytes:,} bytes), {waits:,} waits",
        f"{head}  what, and where",
    ]
    indent = " " * (len(head) + 2)
    for row, cells in zip(rows, numbers, strict=True):
        place = f"{Path(row.filename).name}:{row.line}" if row.filename else "(no line of yours)"
        source = f"{place}: {row.source}" if row.source else place
        lines.append(f"{cells}  {row.call}" + (f", {row.kind}" if row.kind != WAIT else ""))
        lines.append(indent + textwrap.shorten(source, WIDTH - len(indent), placeholder=" …"))
    return "\n".join(lines)


def where() -> tuple[str, int]:
    """Return file and line of the innermost frame outside all libraries: the user's line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


@cache
def is_library(filename: str) -> bool:
    """Return whether a file belongs to an installed library, the standard library or the practice GPU."""
    return filename.startswith(_LIBRARIES)


def is_ours(filename: str) -> bool:
    """Return whether a file belongs to the practice GPU."""
    return filename.startswith(_OURS)


def is_torch(filename: str) -> bool:
    """Return whether a file belongs to PyTorch."""
    return filename.startswith(_TORCH)
