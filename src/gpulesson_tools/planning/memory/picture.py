"""The memory of a program over one step, drawn by kind."""

from __future__ import annotations

from typing import Any

from gpulesson_tools.planning.recording.kinds import KINDS
from gpulesson_tools.planning.recording.record import Record
from practice_gpu.device.allocator import rounded

MIB = 2**20


def course(record: Record) -> dict[str, list[int]]:
    """Return the bytes of each kind in use after each event of the last step; first, those before it.

    A record without steps counts as a single step.
    """
    start = record.ends[-2] if record.steps > 1 else 0
    end = record.ends[-1] if record.steps else len(record.events)
    now = dict.fromkeys(KINDS, 0)
    lines: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for position, event in enumerate(record.events[:end]):
        if position == start:
            _append(lines, now)
        allocation = record.allocations[max(event, ~event)]
        size = rounded(allocation.nbytes)
        now[allocation.kind] += size if event >= 0 else -size
        if position >= start:
            _append(lines, now)
    return {kind: line for kind, line in lines.items() if any(line)}


def _append(lines: dict[str, list[int]], now: dict[str, int]) -> None:
    for kind, line in lines.items():
        line.append(now[kind])


def draw(record: Record, ax: Any = None) -> Any:
    """Draw :func:`course`, stacked, into the axes of one plot."""
    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots(layout="constrained")
    lines = course(record)
    heights = [[nbytes / MIB for nbytes in line] for line in lines.values()]
    ax.stackplot(range(len(heights[0]) if heights else 0), heights, labels=list(lines), step="post")
    ax.set(xlabel="allocations and releases in one step", ylabel="memory (MiB)")
    ax.set_title("Memory over one step")
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0))  # as they are stacked
    return ax
