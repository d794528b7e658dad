"""Exercise 5: an accuracy for each class of images."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulesson.exercises.exercise import COMMON, IF_NOTHING_ELSE, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import accuracy, causes, devices, evidence, output_text, slices, steps
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
    "Sort pairs of a number and its name together: sorted(zip(numbers, names)) begins with the smallest "
    "number.",
)
CLASSES_WRONG = Diagnosis(
    "classes-wrong",
    "The accuracy of a class is its number on the diagonal, divided by the sum of its row.",
    "Check one class by hand: result.confusion[0, 0] / result.confusion[0].sum().",
)
ONE_DIVISOR = Diagnosis(
    "one-divisor",
    "Each class has its own number of images: the sum of its row.",
    "Divide each number on the diagonal by its own row's sum: result.confusion.sum(dim=1).",
)
ERRORS_PRINTED = Diagnosis(
    "errors-printed",
    "That is the share of wrong answers. The accuracy of a class is the share of right ones.",
    "Print the number on the diagonal divided by the sum of its row, without 1 - in front.",
)
MEAN_OF_CLASSES = Diagnosis(
    "mean-of-classes",
    "In the mean of ten accuracies each class counts the same, however many images it has.",
    "Divide the diagonal's sum by all images: result.confusion.diagonal().sum() / result.confusion.sum().",
)
CLASSES_UNORDERED = Diagnosis(
    "classes-unordered",
    "The exercise asks for the hardest class first: it is the one to look at next.",
    "Sort pairs of a number and its name: sorted(zip(numbers, names)) begins with the smallest number.",
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
        site = trace.evaluated[-1].site if trace.evaluated else 0
        yield source.failure(accuracy.NOT_ALL_SAMPLES, site, what)
        return
    recall = [row[i] / max(1, sum(row)) for i, row in enumerate(confusion)]
    tables = _tables(trace, names)
    stated = next((each for each in tables if _is_right(each, names, recall)), tables[0])
    missing = [name for name in names if name not in stated]
    if missing:
        what = f"No accuracy was printed for {len(missing)} of {len(names)} classes: {', '.join(missing)}."
        yield source.failure(NO_CLASSES, _short_loop(source, list(stated.values())), what)
        return
    lines = [stated[name] for name in names]
    if _agree(lines, recall):
        order = [_nearest(line, value) or 0.0 for line, value in zip(lines, recall, strict=True)]
    elif _same(trace.facts.get("accuracies"), recall) and _rounded(lines, recall):
        order = recall
    else:
        wrong = _wrong(source, names, lines, confusion, recall)
        yield _in_own_names(wrong, source, lines[0].site)
        return
    ordered = [value for _, value in sorted(zip((line.place for line in lines), order, strict=True))]
    if any(later < earlier - 1e-6 for earlier, later in pairwise(ordered)):
        name, first = min(zip(names, lines, strict=True), key=lambda pair: pair[1].place)
        hardest = names[recall.index(min(recall))]
        what = f"The first line is “{first.text}”; expected {hardest} first."
        if name == hardest:
            what = f"{hardest} comes first, but the nine others are not in the order of their accuracies."
        line = _at(source, first.site, _SORTS)
        yield source.failure(_unordered(source, line), line, what)
    last = max(lines, key=lambda line: line.place)
    for finding in _total(trace, source, confusion, names, last):
        yield _in_own_names(finding, source, last.site)


def _in_own_names(finding: Finding, source: Source, site: Site) -> Finding:
    """Return a finding whose next step has the learner's name for the matrix."""
    behind = slices.back(source.lines, site.line) if site.file.endswith(source.name) else []
    for each in behind:
        if found := re.search(r"(?<![\w.])(?:\w+\.)*confusion\b(?!\()", slices.text(each)):
            return replace(finding, remedy=finding.remedy.replace("result.confusion", found[0]))
    return finding


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
    site = lines[i].site
    if _agree(lines, precision):
        line = _at(source, site, _OF_COLUMNS, _at(source, site, slices.divides))
        return source.failure(CONFUSION_COLUMNS, line, what)
    if shuffled:
        return source.failure(NAMES_APART, _at(source, site, _SORTS), what)
    if _agree(lines, [1 - value for value in recall]):
        return source.failure(
            ERRORS_PRINTED, _at(source, site, _LESS, _at(source, site, slices.divides)), what
        )
    cut = _at(source, site, accuracy.cuts, 0) or _at(source, site, _WHOLE_TYPE, 0)
    if cut and all(
        _claims_one_of(line, accuracy.whole(value)) for line, value in zip(lines, recall, strict=True)
    ):
        return source.failure(accuracy.WHOLE_DIVISION, cut, what)
    if divisor := _one_divisor(lines, confusion):
        what = f"{what} Yours is {confusion[i][i]} / {divisor}, and all ten are divided by {divisor}."
        return source.failure(ONE_DIVISOR, _at(source, site, slices.divides), what)
    return source.failure(CLASSES_WRONG, _at(source, site, slices.divides), what)


_SORTS = slices.matches(r"sort|\btopk\(|reverse")
_TURNED = {
    r"(reverse|descending)\s*=\s*True": "Leave out {0}: without it the smallest number comes first.",
    r"\[::-1\]": "Leave out {0}: without it the smallest number comes first.",
    r"\breversed\(": "Leave out reversed(): without it the smallest number comes first.",
    r"lambda[^:]*: ?-": "Leave out the minus sign: without it the smallest number comes first.",
    r"\btopk\((?!.*largest)": "topk gives the largest first. For the smallest first: largest=False.",
}


def _unordered(source: Source, site: Site | int) -> Diagnosis:
    """Say what to change: the line that sorts, if it turns the order round."""
    text = source.line(site if isinstance(site, int) else site.line)
    for pattern, remedy in _TURNED.items():
        if found := re.search(pattern, text):
            return CLASSES_UNORDERED._replace(remedy=remedy.format(found[0]))
    return CLASSES_UNORDERED


_WHOLE_TYPE = slices.matches(r"dtype=torch\.(int|long)|\.(int|long|short)\(\)")
_LESS = slices.matches(r"\b1(\.0)? - |\b100(\.0)? - |!=")
_OF_COLUMNS = slices.matches(
    r"sum\((dim=|axis=)?(0|-2)\b|\[:, |\[\.\.\., |zip\(\*|transpose|\.T\b|\.t\(\)"
    r"|for (row|line|r) in|\[\w+\]\[\w+\] for"
)


def _at(source: Source, site: Site, test: slices.Test, otherwise: Site | int | None = None) -> Site | int:
    """Return the nearest line behind a printed one that passes a test; else another, or the printed one."""
    line = slices.find(source.lines, site.line, test) if site.file.endswith(source.name) else 0
    return line or (site if otherwise is None else otherwise)


def _one_divisor(lines: list[_Line], confusion: list[list[int]]) -> int:
    """Return the number that all classes were divided by; 0 if it was not one."""
    total = sum(map(sum, confusion))
    diagonal = [row[i] for i, row in enumerate(confusion)]
    largest = max(range(len(diagonal)), key=diagonal.__getitem__)
    likely = [total, sum(diagonal), total // len(confusion), 100, 1000, 6000, 10_000, 60_000]
    likely += [round(diagonal[largest] / claim.value) for claim in lines[largest].claims if claim.value > 0]
    for divisor in likely:
        if divisor and _agree(lines, [right / divisor for right in diagonal]):
            return divisor
    return 0


def _short_loop(source: Source, stated: list[_Line]) -> Site | int:
    """Return the line that leaves classes out: a range, a slice, or where the others are printed."""
    if not stated:
        return 0
    cut = slices.matches(r"range\(|\[\d*:-?\d*\]|islice|head\(|topk\(|_[12], |\* *\w+ in ")
    return _at(source, stated[-1].site, cut)


def _entries(trace: Trace, names: list[str]) -> list[tuple[str, _Line]]:
    """Find what was printed for each class: where, what it says, and its place in the output."""
    entries = []
    for number, (site, printed, _) in enumerate(trace.prints):
        text = output_text.without_leaders(printed)
        found = sorted((place, name) for name in names for place in _places(name, text))
        if names[0].isdigit():
            found = found[:1]  # digits: the first one that is no part of a number is the name
        for index, ((start, end), name) in enumerate(found):
            after = found[index + 1][0][0] if index + 1 < len(found) else len(text)
            before = found[index - 1][0][1] if index else 0
            claims = _claims(text[end:after])
            if len(found) == 1 or not claims:  # a rank before the name, or the accuracy
                claims = claims + _claims(text[before:start])
            if claims:
                entries.append((name, _Line(site, printed.strip()[:60], claims, (number, start))))
    return entries


def _places(name: str, text: str) -> list[tuple[int, int]]:
    """Return where a name stands in a line: a digit alone, or the words, in any case."""
    pattern = rf"(?<![\d.,\w]){name}(?![\d.,\w]|\s*%)(?!\s+of\b)" if name.isdigit() else _word(name)
    return [match.span() for match in re.finditer(pattern, text, flags=re.IGNORECASE)][:1]


def _word(name: str) -> str:
    return rf"(?<![\w-]){re.escape(name)}(?![^\W_])"


def _claims(text: str) -> list[output_text.Claim]:
    """Return what can be accuracies in a piece of a line: percentages first, whole numbers last."""
    text = re.sub(r"(?<=\d),(?=\d)", ".", output_text.without_leaders(text))
    pairs = re.findall(r"(\d+)\s*(?:/|of|out of)\s*(\d+)", text)
    counted = [(1, output_text.counted(*pair)) for pair in pairs]
    numbers = re.findall(r"(?<![\d.])(\d+(?:\.\d+)?|\.\d+)\s*(%?)", text)
    read = [(0 if sign or "." in digits else 2, output_text.stated(digits, sign)) for digits, sign in numbers]
    return [claim for _, claim in sorted(counted + read, key=lambda pair: pair[0]) if 0 <= claim.value <= 1]


def _tables(trace: Trace, names: list[str]) -> list[dict[str, _Line]]:
    """Return what may be the table: all that was printed last about each class, or ten lines of ten classes.

    A line before or after the table may name a class again, the hardest one for instance.
    """
    entries = _entries(trace, names)
    leading = [
        pair for n, pair in enumerate(entries) if not n or entries[n - 1][1].place[0] != pair[1].place[0]
    ]
    tables = [dict(entries)]
    for some in (leading, entries):
        for end in range(len(some), len(names) - 1, -1):
            table = dict(some[end - len(names) : end])
            if len(table) == len(names):
                tables.append(table)
    return tables[1:] + tables[:1]


def _is_right(stated: dict[str, _Line], names: list[str], recall: list[float]) -> bool:
    """Tell whether a table has every class with its accuracy, the hardest first."""
    if any(name not in stated for name in names):
        return False
    lines = [stated[name] for name in names]
    order = [_nearest(line, value) for line, value in zip(lines, recall, strict=True)]
    places = sorted(zip((line.place for line in lines), order, strict=True))
    values = [value for _, value in places if value is not None]
    return len(values) == len(names) and all(b >= a - 1e-6 for a, b in pairwise(values))


def _claims_one_of(line: _Line, values: set[float]) -> bool:
    return any(_near(claim, value) for claim in line.claims for value in values)


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


def _total(
    trace: Trace, source: Source, confusion: list[list[int]], names: list[str], last: _Line
) -> Iterator[Finding]:
    """Say that the accuracy of all images is missing, or another number: what was printed instead."""
    total = sum(map(sum, confusion))
    right = sum(row[i] for i, row in enumerate(confusion))
    truth = right / total
    said = [(number, line, _claims(line.text)) for number, line in enumerate(trace.prints)]
    fine = [
        number
        for number, _, claims in said
        if any(claim.tolerance < 1e-3 and _near(claim, truth) for claim in claims)
    ]
    if len(fine) >= 2 or any(number > last.place[0] for number in fine):
        return
    after = [(line, claims) for number, line, claims in said if number > last.place[0] and claims]
    words = [name for name in names if not name.isdigit()]
    after = [pair for pair in after if not any(_places(name, pair[0].text) for name in words)]
    if not after:
        what = f"After the classes no line says {truth:.4%}, the accuracy that the starter prints."
        yield source.failure(NO_TOTAL, last.site, what)
        return
    line, claims = after[-1]
    mean = sum(row[i] / max(1, sum(row)) for i, row in enumerate(confusion)) / len(confusion)
    what = f"It printed “{line.text.strip()[:60]}”; expected {truth:.4%}: {right} of {total} images."
    at = _at(source, line.site, slices.divides)
    of = trace.trained_on.of if trace.trained_on is not None else 0
    cut = _at(source, line.site, accuracy.cuts, 0)
    if cut and any(_near(claim, value) for claim in claims for value in accuracy.whole(truth)):
        why, remedy = accuracy.WHOLE_DIVISION[1:]
        yield source.failure(NO_TOTAL._replace(why=why, remedy=remedy), cut, what)
    elif any(_near(claim, truth) for claim in claims):
        what = f"{what} Yours has too few digits to compare."
        yield source.failure(NO_TOTAL, line.site, what)
    elif any(_near(claim, mean) for claim in claims):
        what = f"{what} Yours fits the mean of the ten accuracies."
        yield source.failure(MEAN_OF_CLASSES, at, what)
    elif of and any(_near(claim, right / of) for claim in claims):
        what = f"{what} Yours fits {right} / {of}, the number of training images."
        yield source.failure(NO_TOTAL, at, what)
    else:
        yield source.failure(NO_TOTAL, _at(source, line.site, slices.computes), what)


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
    demand_for=dict.fromkeys(
        ("mean-of-classes", "no-total"), "the accuracy of all images, from the matrix again"
    ),
    ends_rule=frozenset(
        each.kind
        for each in (
            *(NO_FASHION_MNIST, accuracy.NOT_ALL_SAMPLES, NO_CLASSES, CONFUSION_COLUMNS, NAMES_APART),
            *(CLASSES_WRONG, ONE_DIVISOR, ERRORS_PRINTED, accuracy.WHOLE_DIVISION),
        )
    ),
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
        steps.one_optimizer,
        evidence.training_rows,
        accuracy.of_the_test_set,
        classes,
        devices.written_down,
    ),
    last=IF_NOTHING_ELSE,
    probe=probe,
)
