"""Exercise 2: where eight tensors live."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpulesson.exercises.exercise import COMMON, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import endings, slices, source_text
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NOT_ANSWERED = Diagnosis(
    "not-answered",
    "Predict before you run: a wrong guess costs nothing, and the check explains it.",
    'Replace each "?" by "cpu" or "cuda:0", then check again.',
)
INDEX_MISSING = Diagnosis(
    "index-missing",
    "A machine can have several GPUs, so a tensor's device has a number. The first GPU is cuda:0.",
    'Write "cuda:0" where you mean the first GPU.',
)
ANSWERS_COMPUTED = Diagnosis(
    "answers-computed",
    "The exercise is to predict. The tensors themselves always know where they are.",
    'Write "cpu" or "cuda:0" for each name, before you run it.',
)
MADE_ON_CPU = Diagnosis(
    "made-on-cpu",
    "Without device=, and outside of any “with torch.device(…)”, a tensor is made on the CPU.",
    "Look at the line that makes it: does it name a device?",
)
MADE_ON_DEVICE = Diagnosis(
    "made-on-device",
    "With device=, or inside “with torch.device(…)”, a tensor is made on that device.",
    "Look at the line that makes it, and at the “with” above it.",
)
MOVED_COPY = Diagnosis(
    "moved-copy",
    "to(device) and cpu() return a copy on the other device. The original stays where it was.",
    "Which of the two does the name stand for: the copy or the original?",
)
RESULT_THROWN_AWAY = Diagnosis(
    "result-thrown-away",
    "d.to(device) returns a copy, and here no name keeps it. A tensor does not move in place; a module does.",
    "Which tensor does the name d stand for after that line?",
)
FROM_NUMPY_IGNORES_DEFAULT = Diagnosis(
    "from-numpy-ignores-default",
    "from_numpy() shares the array's memory, which is the CPU's. A default device does not change that.",
    "Where is the memory of a NumPy array?",
)
NUMBER_MAY_JOIN = Diagnosis(
    "number-may-join",
    "A single number (a tensor without dimensions) may come from the CPU. The result is where the other "
    "tensor is.",
    "Where is b?",
)
TENSORS_CHANGED = Diagnosis(
    "tensors-changed",
    "The exercise is about these eight tensors as the starter makes them.",
    "Put the lines under “# the tensors” back as they were: in the file itself, or all in one function.",
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
        gone = [name for name in changed if name not in really]
        what = f"Not found when the program ended: {', '.join(gone)}."
        if not gone:
            what = f"{changed[0]} is on {really[changed[0]]}, and in the starter on {PLACES[changed[0]][0]}."
        yield source.failure(TENSORS_CHANGED, _last_given(source, changed[0]), what)
        return
    if line := source_text.answers_computed(source.lines):
        yield source.failure(ANSWERS_COMPUTED, line, "ANSWERS is filled with what the tensors report.")
        return
    wrong = [name for name, (place, _) in PLACES.items() if answers.get(name) != place]
    twice = {name: line for name, line in source_text.keys_twice(source.lines).items() if name in PLACES}
    missing = [name for name in wrong if name not in answers]
    for name, line in twice.items():
        if missing or name in wrong:
            lacks = f", and there is no answer for {', '.join(missing)}" if missing else ""
            what = f"“{name}” is here for the second time{lacks}."
            remedy = f"Name one of the two {missing[0]}." if missing else f"Keep one answer for {name}."
            yield source.failure(endings.KEY_TWICE._replace(remedy=remedy), line, what)
            wrong = [each for each in wrong if each not in (name, *missing)]
            missing = []
    missing = [name for name in wrong if name not in answers]
    if 0 < len(missing) < len(PLACES):
        what = f"There is no answer for {', '.join(missing)}."
        remedy = 'Write all eight names, a to h, each with "cpu" or "cuda:0".'
        line = source_text.key_line(source.lines, missing[0])
        yield source.failure(NOT_ANSWERED._replace(remedy=remedy), line, what)
        wrong = [name for name in wrong if name not in missing]
    short = [name for name in wrong if answers.get(name) == "cuda"]
    if short:
        line = source_text.key_line(source.lines, short[0])
        what = f'You wrote "cuda" for {", ".join(short)}; expected "cuda:0" or "cpu".'
        yield source.failure(INDEX_MISSING, line, what)
        wrong = [name for name in wrong if name not in short]
    unanswered = [name for name in wrong if answers.get(name) not in ("cpu", "cuda:0")]
    if unanswered:
        what = f'Not yet "cpu" or "cuda:0": {", ".join(unanswered)} ({len(unanswered)} of {len(PLACES)}).'
        yield source.failure(NOT_ANSWERED, source_text.key_line(source.lines, unanswered[0]), what)
    for name in wrong:
        if name not in unanswered:
            what = f'You wrote "{answers[name]}" for {name}; it is on the other device.'
            yield source.failure(PLACES[name][1], source_text.key_line(source.lines, name), what)


def _last_given(source: Source, name: str) -> int:
    """Return the line that gives a variable its last value; 0 if none does."""
    given = [each for each in source_text.all_nodes(source.lines) if isinstance(each, ast.stmt)]
    return max((each.lineno for each in given if name in slices.bound(each)), default=0)


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Note the predictions, and where the tensors really are."""
    import torch

    if observer.values.frame is not None:  # the lines stand in a function
        space = {**space, **observer.values.frame.f_locals}
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
    demand="eight predictions, all right",
    difficulty="easy",
    hints=(
        "Three things decide: device=…, a “with torch.device(…)” around the line, and what it is made from.",
        "tensor.to(device) returns a copy. Which names stand for the copy, and which for the original?",
        "A NumPy array is in the CPU's memory. A single number may come from the CPU, "
        "whatever the rest is on.",
        "ANSWERS needs eight entries, each name from a to h once.",
    ),
    hint_for={"key-twice": 4, "no-such-key": 4},
    rules=(*COMMON, places),
    probe=probe,
)
