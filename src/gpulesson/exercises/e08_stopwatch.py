"""Exercise 8: a stopwatch for a device with a queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpulesson.exercises.exercise import COMMON, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NO_STOPWATCH = Diagnosis(
    "no-stopwatch",
    "The check calls stopwatch(machine, work) itself, with devices of its own. Without it nothing was "
    "measured.",
    "Keep the function and its name, and change what it does.",
)
NOT_WAITED_FOR = Diagnosis(
    "not-waited-for",
    "run() returns as soon as the work is handed over. The clock must be read when it is done.",
    "Call machine.synchronize() after run(), before you look at the clock again.",
)
OLDER_WORK_MEASURED = Diagnosis(
    "older-work-measured",
    "The device was still busy with something older, and the measurement contains it.",
    "Call machine.synchronize() before the clock starts, too.",
)
NOT_WARMED_UP = Diagnosis(
    "not-warmed-up",
    "The first calls pay for what is done only once.",
    "Run it some times before you measure. How many calls does this device need?",
)
NEIGHBOUR_MEASURED = Diagnosis(
    "neighbour-measured",
    "Now and then somebody else uses the device. One measurement may be such a one, and a mean contains "
    "all of them.",
    "Measure many times, and take the median.",
)

_DEVICES = {
    NOT_WAITED_FOR: "an idle device that nobody else uses",
    OLDER_WORK_MEASURED: "a device that was still busy",
    NOT_WARMED_UP: "a device with a slow start",
    NEIGHBOUR_MEASURED: "a device that somebody else uses, too,",
}


def stopwatch(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what the stopwatch measures besides the work."""
    if "stopwatch" not in trace.facts:
        yield source.failure(NO_STOPWATCH, 0, "The program has no function stopwatch.")
        return
    line = int(trace.facts["stopwatch"])
    measured = trace.facts.get("measured", {})
    for diagnosis, device in _DEVICES.items():
        if diagnosis.kind in measured:
            value = measured[diagnosis.kind]
            what = f"On {device} it measured {value:,.0f} µs, and 410 µs is right."
            yield source.failure(diagnosis, line, what)
            if diagnosis is NOT_WAITED_FOR:
                return  # the others cannot be told while nothing is waited for


class _Device:
    """A device and a clock like the starter's, with one difficulty at a time."""

    def __init__(self, cold: bool = False, shared: bool = False, busy: float = 0.0) -> None:
        self.now, self.free_at, self.calls = 0.0, busy, 0
        self._cold, self._shared = cold, shared

    def run(self, work: float) -> None:
        self.calls += 1
        work += 30_000 * (self._cold and self.calls <= 12) + 2_000 * (self._shared and self.calls % 4 == 0)
        self.now += 10
        self.free_at = max(self.free_at, self.now) + work

    def synchronize(self) -> None:
        self.now = max(self.now, self.free_at)


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Find out which difficulty the stopwatch does not overcome."""
    function = space.get("stopwatch")
    difficulties = {
        NOT_WAITED_FOR.kind: _Device(),
        OLDER_WORK_MEASURED.kind: _Device(busy=5_000.0),
        NOT_WARMED_UP.kind: _Device(cold=True),
        NEIGHBOUR_MEASURED.kind: _Device(shared=True),
    }
    if callable(function):
        trace.facts["stopwatch"] = function.__code__.co_firstlineno
        measured = {kind: float(function(device, 400)) for kind, device in difficulties.items()}
        trace.facts["measured"] = {kind: value for kind, value in measured.items() if value != 410}


EXERCISE = Exercise(
    name="08_stopwatch",
    lesson="Was it faster?",
    title="Mend a stopwatch",
    difficulty="medium",
    hints=(
        "When run() returns, what has the device done?",
        "The device may be busy when you begin: wait before you look at the clock, and after.",
        "Fifteen calls to warm up, then twenty measurements, then statistics.median.",
    ),
    rules=(*COMMON, stopwatch),
    probe=probe,
)
