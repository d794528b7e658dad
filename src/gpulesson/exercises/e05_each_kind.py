"""Exercise 5: an accuracy for each kind of picture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpulesson.exercises.exercise import COMMON, IF_NOTHING_ELSE, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import devices, output_text
from gpulesson.exercises.trace import Site, Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NO_KINDS = Diagnosis(
    "no-kinds",
    "The exercise asks for one accuracy for each kind of picture.",
    "Print, for every kind, its name and its accuracy in percent, the hardest first.",
)
CONFUSION_COLUMNS = Diagnosis(
    "confusion-columns",
    "A row of the matrix holds all pictures of one true kind. A column holds all that were *called* so; "
    "right ones divided by a column's sum is the precision.",
    "Divide the diagonal by the sum along dimension 1.",
)
KINDS_WRONG = Diagnosis(
    "kinds-wrong",
    "The accuracy of a kind is its entry on the diagonal divided by the sum of its row.",
    "Check with one kind by hand.",
)
KINDS_UNORDERED = Diagnosis(
    "kinds-unordered",
    "The exercise asks for the hardest kind first: it is the one that you would look at next.",
    "Sort by accuracy, ascending: argsort() gives the order.",
)
NO_TOTAL = Diagnosis(
    "no-total",
    "Adding up the diagonal and dividing by all pictures must give the accuracy that the script printed. "
    "If it does, the ten numbers belong to it.",
    "Print that quotient with the same number of digits, after the ten lines.",
)


def kinds(trace: Trace, source: Source) -> Iterator[Finding]:
    """Compare the accuracies that were printed with the confusion matrix."""
    confusion, names = trace.facts.get("confusion"), trace.facts.get("class_names")
    if not confusion or not names:
        yield source.failure(NO_KINDS, 0, "evaluate(…) or load_fashion_mnist() of gpulesson did not run.")
        return
    stated = _stated_kinds(trace, names)
    missing = [name for name in names if name not in stated]
    if missing:
        what = f"No accuracy was printed for {len(missing)} of {len(names)} kinds: {', '.join(missing)}."
        yield source.failure(NO_KINDS, 0, what)
        return
    recall = [row[i] / max(1, sum(row)) for i, row in enumerate(confusion)]
    columns = [sum(row[i] for row in confusion) for i in range(len(names))]
    precision = [row[i] / max(1, columns[i]) for i, row in enumerate(confusion)]
    site = stated[names[0]][0]
    if not _agree(stated, names, recall):
        wrong = next(i for i, name in enumerate(names) if not _near(stated[name][1], recall[i]))
        what = (
            f"For {names[wrong]} it printed {stated[names[wrong]][1].value:.1%}; of {sum(confusion[wrong])} "
            f"such pictures {confusion[wrong][wrong]} were recognized, which is {recall[wrong]:.1%}."
        )
        wrong_way = CONFUSION_COLUMNS if _agree(stated, names, precision) else KINDS_WRONG
        yield source.failure(wrong_way, site, what)
        return
    order = [stated[name][1].value for name in sorted(names, key=lambda name: stated[name][2])]
    if order != sorted(order):
        yield source.failure(KINDS_UNORDERED, site, f"The first kind printed has {order[0]:.1%}.")
    yield from _total(trace, source, confusion)


def _stated_kinds(trace: Trace, names: list[str]) -> dict[str, tuple[Site, output_text.Claim, int]]:
    """Find the line that was printed last for each kind: where, what it says, and its place in the output."""
    stated = {}
    for place, (site, text, _) in enumerate(trace.prints):
        for name in names:
            pattern = rf"^\W*{name}\b(.*)" if name.isdigit() else rf"(?<![\w-]){re.escape(name)}(?!\w)(.*)"
            if match := re.search(pattern, text):
                number = re.search(r"(\d+(?:\.\d+)?)\s*(%)|([01]?\.\d+)", match[1])
                if number:
                    claim = output_text.stated(number[1] or number[3], number[2] or "")
                    stated[name] = (site, claim, place)
    return stated


def _agree(
    stated: dict[str, tuple[Site, output_text.Claim, int]], names: list[str], truth: list[float]
) -> bool:
    return all(_near(stated[name][1], value) for name, value in zip(names, truth, strict=True))


def _near(claim: output_text.Claim, value: float) -> bool:
    return abs(claim.value - value) <= claim.tolerance + 1e-6


def _total(trace: Trace, source: Source, confusion: list[list[int]]) -> Iterator[Finding]:
    total = sum(map(sum, confusion))
    accuracy = sum(row[i] for i, row in enumerate(confusion)) / total
    printed = [
        output_text.stated(digits, percent)
        for _, text, _ in trace.prints
        for digits, percent in re.findall(r"(\d+(?:\.\d+)?)\s*(%?)", text)
    ]
    if sum(claim.tolerance < 1e-3 and _near(claim, accuracy) for claim in printed) < 2:
        what = f"The accuracy {accuracy:.4%} stands in the output once, from the starter's own line."
        yield source.failure(NO_TOTAL, 0, what)


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Note the confusion matrix, and what the kinds are called."""
    returned = observer.values.returned
    result, data = returned.get("evaluate"), returned.get("load_fashion_mnist")
    if result is not None and result.confusion is not None and data is not None:
        trace.facts["confusion"] = result.confusion.tolist()
        trace.facts["class_names"] = list(data.class_names)


EXERCISE = Exercise(
    name="05_each_kind",
    lesson="Fashion-MNIST end to end",
    title="How good is it at each class?",
    difficulty="medium",
    hints=(
        "Row i of the matrix holds the pictures that truly are of kind i.",
        "Right ones are on the diagonal; the pictures of a kind are the sum of its row: sum(dim=1).",
        "argsort() of the ten accuracies gives the order of printing.",
    ),
    rules=(devices.trained_on, *COMMON, kinds, devices.written_down),
    last=IF_NOTHING_ELSE,
    probe=probe,
)
