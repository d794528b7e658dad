"""Exercise 11: a loop with work that nobody needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpulesson.exercises.exercise import COMMON, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NOT_COUNTED = Diagnosis(
    "not-counted",
    "The check compares what was counted while slow() and mine() ran. Without the counts there is nothing "
    "to compare.",
    "Keep the functions slow and mine and the part of the file that counts, and change mine alone.",
)
BYTES_FOR_NOTHING = Diagnosis(
    "bytes-for-nothing",
    "What is computed for the whole dataset in every step is mostly not used in that step.",
    "Choose the rows first, and convert only those.",
)
READS_FOR_NOTHING = Diagnosis(
    "reads-for-nothing",
    "A value that is read in every step makes the CPU wait in every step, when the device is a GPU.",
    "Keep loss.detach(), and read all of them together in the end.",
)
OPERATORS_FOR_NOTHING = Diagnosis(
    "operators-for-nothing",
    "Work whose result nobody uses costs as much as any other.",
    "Profile it, and ask of each line in the table who uses it.",
)


def lean(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what the loop of exercise 11 still does that nobody needs."""
    facts = trace.facts
    if "mine" not in facts:
        what = "There is no function mine, or what it does was not counted as now, and slow as before."
        yield source.failure(NOT_COUNTED, 0, what)
        return
    if facts["share_of_bytes"] > 0.15:
        what = f"A step touches {facts['share_of_bytes']:.0%} of the bytes that a step of slow() touches."
        yield source.failure(BYTES_FOR_NOTHING, facts["mine"], what)
    if facts["reads"] > 1:
        what = f"{facts['reads']} values were read, one by one."
        yield source.failure(READS_FOR_NOTHING, facts["mine"], what)
    if facts["share_of_operators"] > 0.75:
        what = f"A step calls {facts['share_of_operators']:.0%} of the operators that a step of slow() calls."
        yield source.failure(OPERATORS_FOR_NOTHING, facts["mine"], what)


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Note what the starter has counted."""
    mine, now, before = space.get("mine"), space.get("now"), space.get("before")
    if callable(mine) and now is not None and before is not None:
        trace.facts["mine"] = mine.__code__.co_firstlineno
        trace.facts["reads"] = int(now.reads)
        trace.facts["share_of_bytes"] = now.nbytes / before.nbytes
        trace.facts["share_of_operators"] = now.operators / before.operators


EXERCISE = Exercise(
    name="11_slow_loop",
    lesson="Profile before you optimise",
    title="Three things that nobody needs",
    difficulty="hard",
    hints=(
        "Which line works on all 4,000 images, and how many of them does the step use?",
        "Who looks at the norms of the gradients? What stops when one of them is infinite?",
        "How often must a loss come to the host, if nobody looks at it before the end?",
    ),
    rules=(*COMMON, lean),
    probe=probe,
)
