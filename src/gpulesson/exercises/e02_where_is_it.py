"""Exercise 2: where eight tensors live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpulesson.exercises.exercise import COMMON, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import source_text
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NOT_ANSWERED = Diagnosis(
    "not-answered",
    "A prediction made before the run shows what you know; one made after it does not.",
    'Replace each "?" by "cpu" or "cuda:0", then check again.',
)
INDEX_MISSING = Diagnosis(
    "index-missing",
    "A machine can have several GPUs, so the device of a tensor has a number: the first one is cuda:0.",
    'Write "cuda:0".',
)
ANSWERS_COMPUTED = Diagnosis(
    "answers-computed",
    "The answers are to be your prediction. Tensors that are asked always know where they are.",
    'Write "cpu" or "cuda:0" for each name, before you run it.',
)
MADE_ON_CPU = Diagnosis(
    "made-on-cpu",
    "Without device= and outside any “with torch.device(…)”, a tensor is made on the CPU.",
    "Look at the line that makes it: does anything say otherwise?",
)
MADE_ON_DEVICE = Diagnosis(
    "made-on-device",
    "A tensor made with device=…, or while that device is the default, is made there.",
    "Look at the line that makes it, and at the “with” above it.",
)
MOVED_COPY = Diagnosis(
    "moved-copy",
    "to(device) and cpu() return a copy on the other device; the original stays where it was.",
    "Ask which of the two the name stands for.",
)
RESULT_THROWN_AWAY = Diagnosis(
    "result-thrown-away",
    "d.to(device) returns a copy, and nobody keeps it. A tensor, unlike a module, is not moved in place.",
    "Which tensor does the name d stand for after that line?",
)
FROM_NUMPY_IGNORES_DEFAULT = Diagnosis(
    "from-numpy-ignores-default",
    "from_numpy shares memory with the array, which is in host memory: no default device changes that.",
    "Where is the memory of a NumPy array?",
)
NUMBER_MAY_JOIN = Diagnosis(
    "number-may-join",
    "A tensor without dimensions is a single number, and may join an operation from the CPU. The result "
    "is where the other operand is.",
    "Where is b?",
)
TENSORS_CHANGED = Diagnosis(
    "tensors-changed",
    "The exercise is about these eight lines; with others there is nothing to compare.",
    "Put the lines under “# the tensors” back as they were.",
)

PLACES = {
    "a": ("cpu", MADE_ON_CPU),
    "b": ("cuda:0", MADE_ON_DEVICE),
    "c": ("cuda:0", MOVED_COPY),
    "d": ("cpu", RESULT_THROWN_AWAY),
    "e": ("cpu", MOVED_COPY),
    "f": ("cpu", FROM_NUMPY_IGNORES_DEFAULT),
    "g": ("cuda:0", MADE_ON_DEVICE),
    "h": ("cuda:0", NUMBER_MAY_JOIN),
}
"""Where each tensor of exercise 2 is, and what a wrong prediction has overlooked."""


def places(trace: Trace, source: Source) -> Iterator[Finding]:
    """Compare the predictions of exercise 2 with where the tensors are."""
    answers, really = trace.facts.get("answers", {}), trace.facts.get("places", {})
    changed = [name for name, (place, _) in PLACES.items() if really.get(name) != place]
    if changed:
        what = f"Not where it is in the exercise, or not there at all: {', '.join(changed)}."
        yield source.failure(TENSORS_CHANGED, 0, what)
        return
    if line := source_text.answers_computed(source.lines):
        yield source.failure(
            ANSWERS_COMPUTED, line, "ANSWERS is filled with what the tensors say themselves."
        )
        return
    wrong = [name for name, (place, _) in PLACES.items() if answers.get(name) != place]
    short = [name for name in wrong if answers.get(name) == "cuda"]
    if short:
        line = source_text.key_line(source.lines, short[0])
        what = f"You wrote “cuda” for {', '.join(short)}; expected “cuda:0” or “cpu”."
        yield source.failure(INDEX_MISSING, line, what)
        wrong = [name for name in wrong if name not in short]
    unanswered = [name for name in wrong if answers.get(name) not in ("cpu", "cuda:0")]
    if unanswered:
        what = f"{len(unanswered)} of {len(PLACES)} tensors have no answer yet: {', '.join(unanswered)}."
        yield source.failure(NOT_ANSWERED, source_text.key_line(source.lines, unanswered[0]), what)
    for name in wrong:
        if name not in unanswered:
            what = f"You wrote “{answers[name]}” for {name}. That is not where it is."
            yield source.failure(PLACES[name][1], source_text.key_line(source.lines, name), what)


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Note the predictions, and where the tensors really are."""
    import torch

    answers = space.get("ANSWERS")
    given = answers.items() if isinstance(answers, dict) else ()
    trace.facts["answers"] = {str(name): str(place) for name, place in given}
    tensors = {name: space.get(name) for name in "abcdefgh"}
    trace.facts["places"] = {
        name: str(tensor.device) for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)
    }


EXERCISE = Exercise(
    name="02_where_is_it",
    lesson="Tensors and devices",
    title="Where does it live?",
    difficulty="easy",
    hints=(
        "Three things decide: device=…, a default device around the line, and what it is made from.",
        "tensor.to(device) returns a copy. Which names are bound to one?",
        "NumPy's memory is in the host, and a tensor without dimensions may join from the CPU.",
    ),
    rules=(*COMMON, places),
    probe=probe,
)
