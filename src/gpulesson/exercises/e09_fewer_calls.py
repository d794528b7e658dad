"""Exercise 9: fewer calls and fewer bytes to feed a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpulesson.exercises.exercise import COMMON, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import source_text
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NO_BATCHES = Diagnosis(
    "no-batches",
    "The check counts the calls of pictures, the batches in arrived and the copies of gpu. Without them "
    "nothing was counted.",
    "Keep these three names, and append every batch to arrived.",
)
CALLED_FOR_EACH_SAMPLE = Diagnosis(
    "called-for-each-sample",
    "A loader that asks for one sample at a time calls Python for each, and stacks them afterwards.",
    "Fetch a whole batch with one call: a sampler that yields lists, and batch_size=None.",
)
FLOATS_COPIED = Diagnosis(
    "floats-copied",
    "A float32 takes four bytes, a pixel one. What is copied as bytes crosses in a quarter of the time "
    "that the link needs for floats.",
    "Copy the bytes, and make floats of them on the device.",
)


def feeding(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what exercise 9 still asks for or copies too often."""
    facts = trace.facts
    if not facts["batches"]:
        yield source.failure(NO_BATCHES, 0, "No batch arrived: the list arrived is empty, or is not there.")
        return
    if facts["calls"] > facts["batches"]:
        line = source_text.first_line(source.lines, r"=.*\bDataLoader\(")
        what = f"The dataset was called {facts['calls']} times for {facts['batches']} batches."
        yield source.failure(CALLED_FOR_EACH_SAMPLE, line, what)
    if facts["bytes_copied"] > 2000 * (784 + 8):
        what = f"{facts['bytes_copied'] / 1e6:.2f} MB were copied, for 1.58 MB of images and labels."
        yield source.failure(FLOATS_COPIED, facts["largest_copy"], what)


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Note the calls of the dataset, and the largest copy."""
    from gpulesson.practice.events import TO_DEVICE

    pictures, arrived = space.get("pictures"), space.get("arrived")
    gpu: Any = space.get("gpu")
    if getattr(gpu, "simulated", False):  # by force, also where a real one is present
        trace.device, trace.simulated = gpu.name, True
    trace.facts["calls"] = int(getattr(pictures, "calls", 0))
    trace.facts["batches"] = len(arrived) if isinstance(arrived, list) else 0
    copies = [event for event in getattr(gpu, "events", ()) if event.kind == TO_DEVICE]
    trace.facts["bytes_copied"] = sum(event.nbytes for event in copies)
    trace.facts["largest_copy"] = max(copies, key=lambda event: event.nbytes).line if copies else 0


EXERCISE = Exercise(
    name="09_fewer_calls",
    lesson="Feeding the GPU",
    title="Fewer calls, fewer bytes",
    difficulty="medium",
    hints=(
        "pixels[index] also takes a list of numbers.",
        "A BatchSampler yields such lists. DataLoader(…, sampler=batches, batch_size=None) uses it.",
        "Move .float() / 255 out of __getitem__, behind inputs.to(device).",
    ),
    rules=(*COMMON, feeding),
    probe=probe,
)
