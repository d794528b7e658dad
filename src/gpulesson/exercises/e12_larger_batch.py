"""Exercise 12: the learning rate of a larger batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpulesson.exercises.exercise import COMMON, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import source_text
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NO_EPOCHS_COUNTED = Diagnosis(
    "no-epochs-counted",
    "The check reads RATE, and from the list needed how many epochs both batches took. Without them nothing "
    "was tried.",
    "Keep both names and the part of the file that trains, and change RATE alone.",
)
RATE_TOO_SMALL = Diagnosis(
    "rate-too-small",
    "A larger batch takes fewer steps through the same data, so each step has to be longer.",
    "Double RATE, and look again.",
)
RATE_OVERSTEPS = Diagnosis(
    "rate-oversteps",
    "Steps that are too long jump over what they look for, and the loss stays high.",
    "Halve RATE, and look again.",
)

_OVERSTEPS = 0.1
"""From this rate on, the large batch needs more epochs again."""


def larger_batch(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether the rate of exercise 12 is too small or too large."""
    facts = trace.facts
    if "needed" not in facts:
        yield source.failure(
            NO_EPOCHS_COUNTED, 0, "There is no number RATE, or no list needed with epochs in it."
        )
        return
    small, large = max(facts["needed"], key=lambda pair: pair[1] / pair[0])
    if large > 1.5 * small:
        line = source_text.first_line(source.lines, r"^RATE\s*=")
        what = (
            f"With a rate of {facts['rate']:g} the large batch needed {large} epochs, the small one {small}."
        )
        wrong_way = RATE_OVERSTEPS if facts["rate"] > _OVERSTEPS else RATE_TOO_SMALL
        yield source.failure(wrong_way, line, what)


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Note the rate, and the epochs that it took."""
    rate, needed = space.get("RATE"), space.get("needed")
    if isinstance(rate, int | float) and isinstance(needed, list) and needed:
        trace.facts["rate"] = float(rate)
        trace.facts["needed"] = [[int(small), int(large)] for small, large in needed]


EXERCISE = Exercise(
    name="12_larger_batch",
    lesson="The speed ladder",
    title="A batch sixteen times as large",
    difficulty="medium",
    hints=(
        "An epoch of the large batch has a sixteenth of the steps. How long must each be?",
        "A rule of thumb for Adam: the root of the factor, so four times the rate. Go on from there.",
        "Double RATE until it prints that it pays, and once more.",
    ),
    rules=(*COMMON, larger_batch),
    probe=probe,
)
