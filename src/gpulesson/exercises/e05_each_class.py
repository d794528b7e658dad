"""Exercise 5: an accuracy for each class of images."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulesson.exercises.exercise import COMMON, IF_NOTHING_ELSE, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import accuracy, causes, devices, evidence, output_text
from gpulesson.exercises.trace import Site, Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NO_CLASSES = Diagnosis(
    "no-classes",
    "The exercise asks for one accuracy for each class.",
    "Print a line for every class, with its name and its accuracy in percent. The hardest class comes first.",
)
CONFUSION_COLUMNS = Diagnosis(
    "confusion-columns",
    "A row of the matrix holds all images of one true class, a column all images that the model gave "
    "this class. Dividing by the column gives the precision.",
    "Divide by the sum of the row: result.confusion.diagonal() / result.confusion.sum(dim=1).",
)
NAMES_APART = Diagnosis(
    "names-apart",
    "The ten numbers are right, but they are beside the wrong names. Names or numbers were sorted alone.",
    "Go through accuracies.argsort(), and take the name and the number with the same index.",
)
CLASSES_WRONG = Diagnosis(
    "classes-wrong",
    "The accuracy of a class is its number on the diagonal, divided by the sum of its row.",
    "Check one class by hand: result.confusion[0, 0] / result.confusion[0].sum().",
)
CLASSES_UNORDERED = Diagnosis(
    "classes-unordered",
    "The exercise asks for the hardest class first: it is the one to look at next.",
    "Go through the classes in the order of accuracies.argsort(): it begins with the smallest.",
)
NO_TOTAL = Diagnosis(
    "no-total",
    "The diagonal's sum divided by all images must give the accuracy that the starter prints. Then you "
    "know that the ten numbers belong to it.",
    "After the ten lines, print result.confusion.diagonal().sum() / result.confusion.sum() with the same "
    "digits (:.4%).",
)
NO_FASHION_MNIST = Diagnosis(
    "no-fashion-mnist",
    "The check follows the images that the starter loads, trains on and evaluates.",
    "Put the starter's lines back, and add yours below them.",
)


class _Line(NamedTuple):
    """What was printed last about a class."""

    site: Site
    text: str
    claims: list[output_text.Claim]
    place: tuple[int, int]


def classes(trace: Trace, source: Source) -> Iterator[Finding]:
    """Compare the accuracies that were printed with the answers that the model gave."""
    confusion, names = trace.facts.get("confusion"), trace.facts.get("class_names")
    if not names:
        yield source.failure(NO_FASHION_MNIST, 0, "load_fashion_mnist() was not called.")
        return
    if not confusion or sum(map(sum, confusion)) != trace.facts["test_samples"]:
        known = sum(map(sum, confusion or []))
        what = f"The model was evaluated on {known} of the {trace.facts['test_samples']} test images."
        yield source.failure(accuracy.NOT_ALL_SAMPLES, 0, what)
        return
    recall = [row[i] / max(1, sum(row)) for i, row in enumerate(confusion)]
    stated = _stated(trace, names)
    missing = [name for name in names if name not in stated]
    if missing:
        what = f"No accuracy was printed for {len(missing)} of {len(names)} classes: {', '.join(missing)}."
        yield source.failure(NO_CLASSES, 0, what)
        return
    lines = [stated[name] for name in names]
    if _agree(lines, recall):
        order = [_nearest(line, value) or 0.0 for line, value in zip(lines, recall, strict=True)]
    elif _same(trace.facts.get("accuracies"), recall) and _rounded(lines, recall):
        order = recall
    else:
        yield _wrong(source, names, lines, confusion, recall)
        return
    ordered = [value for _, value in sorted(zip((line.place for line in lines), order, strict=True))]
    if any(later < earlier - 1e-6 for earlier, later in pairwise(ordered)):
        first = min(lines, key=lambda line: line.place)
        what = f"The first line is “{first.text}”; expected {names[recall.index(min(recall))]} first."
        yield source.failure(CLASSES_UNORDERED, first.site, what)
    yield from _total(trace, source, confusion, min(line.place[0] for line in lines))


def _wrong(
    source: Source, names: list[str], lines: list[_Line], confusion: list[list[int]], recall: list[float]
) -> Finding:
    columns = [sum(row[i] for row in confusion) for i in range(len(names))]
    precision = [row[i] / max(1, columns[i]) for i, row in enumerate(confusion)]
    i = next(i for i, line in enumerate(lines) if _nearest(line, recall[i]) is None)
    what = (
        f"It printed “{lines[i].text}”; expected {recall[i]:.1%} for {names[i]}: {confusion[i][i]} of its "
        f"{sum(confusion[i])} images were recognized."
    )
    values = sorted(line.claims[0] for line in lines)
    shuffled = all(_near(claim, value) for claim, value in zip(values, sorted(recall), strict=True))
    diagnosis = CONFUSION_COLUMNS if _agree(lines, precision) else NAMES_APART if shuffled else CLASSES_WRONG
    return source.failure(diagnosis, lines[i].site, what)


def _stated(trace: Trace, names: list[str]) -> dict[str, _Line]:
    """Find what was printed last for each class: where, what it says, and its place in the output."""
    stated = {}
    for number, (site, text, _) in enumerate(trace.prints):
        found = sorted((place, name) for name in names for place in _places(name, text))
        if names[0].isdigit():
            found = found[:1]  # digits: the first one that is no part of a number is the name
        for index, ((start, end), name) in enumerate(found):
            after = found[index + 1][0][0] if index + 1 < len(found) else len(text)
            before = found[index - 1][0][1] if index else 0
            claims = _claims(text[end:after]) or _claims(text[before:start])
            if claims:
                stated[name] = _Line(site, text.strip()[:60], claims, (number, start))
    return stated


def _places(name: str, text: str) -> list[tuple[int, int]]:
    """Return where a name stands in a line: a digit alone, or the words, in any case."""
    pattern = rf"(?<![\d.,\w]){name}(?![\d.,\w]|\s*%)(?!\s+of\b)" if name.isdigit() else _word(name)
    return [match.span() for match in re.finditer(pattern, text, flags=re.IGNORECASE)][:1]


def _word(name: str) -> str:
    return rf"(?<![\w-]){re.escape(name)}(?!\w)"


def _claims(text: str) -> list[output_text.Claim]:
    """Return what can be accuracies in a piece of a line: percentages first, whole numbers last."""
    text = re.sub(r"(?<=\d),(?=\d)", ".", text)
    pairs = re.findall(r"(\d+)\s*(?:/|of|out of)\s*(\d+)", text)
    counted = [(1, output_text.counted(*pair)) for pair in pairs]
    numbers = re.findall(r"(?<![\d.])(\d+(?:\.\d+)?|\.\d+)\s*(%?)", text)
    read = [(0 if sign or "." in digits else 2, output_text.stated(digits, sign)) for digits, sign in numbers]
    return [claim for _, claim in sorted(counted + read, key=lambda pair: pair[0]) if 0 <= claim.value <= 1]


def _near(claim: output_text.Claim, value: float) -> bool:
    return abs(claim.value - value) <= claim.tolerance + 1e-6


def _nearest(line: _Line, value: float) -> float | None:
    return next((claim.value for claim in line.claims if _near(claim, value)), None)


def _agree(lines: list[_Line], truth: list[float]) -> bool:
    return all(_nearest(line, value) is not None for line, value in zip(lines, truth, strict=True))


def _rounded(lines: list[_Line], truth: list[float]) -> bool:
    """Tell whether every line is about right, if perhaps cut and not rounded."""
    return all(
        any(abs(claim.value - value) <= 0.011 for claim in line.claims)
        for line, value in zip(lines, truth, strict=True)
    )


def _same(accuracies: Any, recall: list[float]) -> bool:
    """Tell whether the variable that the exercise names holds the right numbers, as fractions or percent."""
    if not isinstance(accuracies, list) or len(accuracies) != len(recall):
        return False
    scale = 100 if max(accuracies) > 1.5 else 1
    return all(abs(value / scale - true) < 1e-3 for value, true in zip(accuracies, recall, strict=True))


def _total(trace: Trace, source: Source, confusion: list[list[int]], first: int) -> Iterator[Finding]:
    total = sum(map(sum, confusion))
    truth = sum(row[i] for i, row in enumerate(confusion)) / total
    printed = [
        (number, claim)
        for number, (_, text, _) in enumerate(trace.prints)
        for claim in _claims(text)
        if claim.tolerance < 1e-3 and _near(claim, truth)
    ]
    if len(printed) < 2 and not any(number > first for number, _ in printed):
        what = f"After the classes no line says {truth:.4%}, the accuracy that the starter prints."
        yield source.failure(NO_TOTAL, 0, what)


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Compare with the images that were loaded; note the variable that the exercise names."""
    data = observer.values.returned.get("load_fashion_mnist")
    if data is None:
        trace.facts |= {"test_samples": 0, "passes": 1}
        return
    with observer.reader.unnoticed():
        images = [part.float() / 255 for part in (data.train_images, data.test_images)]
    parts = {"train": (images[0], data.train_targets), "test": (images[1], data.test_targets)}
    observer.compare_samples(trace, parts, passes=len(images[0]) // 64, accuracy=0.6)
    trace.facts["class_names"] = list(data.class_names)
    values: Any = space.get("accuracies")
    if isinstance(values, dict):
        values = [values.get(name, values.get(i)) for i, name in enumerate(data.class_names)]
    values = values.tolist() if hasattr(values, "tolist") else values
    with suppress(TypeError, ValueError):  # it may be another thing of that name
        trace.facts["accuracies"] = [float(value) for value in values]


EXERCISE = Exercise(
    name="05_each_class",
    lesson="Fashion-MNIST end to end",
    title="How good is it at each class?",
    demand="each class with its accuracy, the hardest first",
    difficulty="medium",
    hints=(
        "Row i of the matrix holds the images that truly are of class i.",
        "Right ones are on the diagonal; the images of a class are the sum of its row: sum(dim=1).",
        "argsort() of the ten accuracies gives the order of printing.",
    ),
    rules=(
        devices.trained_on,
        *COMMON,
        causes.own_work,
        causes.leaves_the_loop,
        evidence.training_rows,
        accuracy.of_the_test_set,
        classes,
        devices.written_down,
    ),
    last=IF_NOTHING_ELSE,
    probe=probe,
)
