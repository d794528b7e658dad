"""The moment at which a program holds most memory, and what it is that it holds then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from gpulesson_tools.planning.recording.record import Allocation, Record
from practice_gpu.device.allocator import rounded


@dataclass(frozen=True, slots=True)
class Peak:
    """What is alive when a program holds most.

    Attributes
    ----------
    position : int
        Position in :attr:`Record.events` of the birth with which it was reached first; -1 if there is none.
    nbytes : int
        Bytes, in blocks of 512.
    alive : list of Allocation
        In the order of their births.
    by_kind, by_module, by_line : dict of str to int
        The same bytes by what they are for, by module, and by line (``"train.py:12"``; "" for no line), the
        most first.
    """

    position: int
    nbytes: int
    alive: list[Allocation]
    by_kind: dict[str, int]
    by_module: dict[str, int]
    by_line: dict[str, int]


def peak(record: Record) -> Peak:
    """Find the moment at which a program holds most.

    Examples
    --------
    >>> from gpulesson_tools.planning.recording.record import Allocation, Place, Record
    >>> weight = Allocation(4000, 0, "forward", "empty", Place("fc", "net.py", 3), kind="parameters")
    >>> output = Allocation(100, 0, "forward", "addmm", Place("fc", "net.py", 9), kind="activations")
    >>> most = peak(Record([weight, output], [0, 1, ~1]))
    >>> most.position, most.nbytes, most.by_line
    (1, 4608, {'net.py:3': 4096, 'net.py:9': 512})
    """
    position, highest, now = -1, 0, 0
    for at, event in enumerate(record.events):
        size = rounded(record.allocations[max(event, ~event)].nbytes)
        now += size if event >= 0 else -size
        if now > highest:
            position, highest = at, now
    alive = [record.allocations[number] for number in sorted(_alive(record.events[: position + 1]))]
    return Peak(
        position,
        highest,
        alive,
        _sums(alive, lambda each: each.kind),
        _sums(alive, lambda each: each.place.module),
        _sums(alive, _line),
    )


def _alive(events: list[int]) -> set[int]:
    """Return the numbers of those that were made and are not gone."""
    return {event for event in events if event >= 0} - {~event for event in events if event < 0}


def _line(allocation: Allocation) -> str:
    place = allocation.place
    return f"{place.filename}:{place.line}" if place.filename else ""


def _sums(allocations: list[Allocation], key: Callable[[Allocation], str]) -> dict[str, int]:
    sums: defaultdict[str, int] = defaultdict(int)
    for each in allocations:
        sums[key(each)] += rounded(each.nbytes)
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
