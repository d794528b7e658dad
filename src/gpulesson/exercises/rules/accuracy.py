"""Rules: the accuracy that a program states, compared with what its model really answered."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural
from gpulesson.exercises.rules import output_text, slices, source_text
from gpulesson.exercises.rules.errors import LOGITS_COMPARED
from gpulesson.exercises.trace import Evaluated, Site, Trace

NO_ACCURACY = Diagnosis(
    "no-accuracy",
    "The exercise asks for the accuracy on the test data.",
    "Print a line with the word accuracy and the number, such as: accuracy 0.9500.",
)
MEAN_OF_BATCH_MEANS = Diagnosis(
    "mean-of-batch-means",
    "The batches have different sizes. In the mean of their accuracies, a sample of a smaller batch "
    "counts for more.",
    "Add up the right answers of all batches, and divide once by the number of samples.",
)
WRONG_ACCURACY = Diagnosis(
    "wrong-accuracy",
    "Accuracy is the number of right answers divided by the number of samples.",
    "Print both numbers, the right answers and what you divide by, and compare them with these.",
)
LAST_BATCH_ONLY = Diagnosis(
    "last-batch-only",
    "The count has to grow with every batch. A plain = forgets the batches before, and a line below the loop "
    "runs only once.",
    "Begin with correct = 0 above the loop, and write correct += … inside it.",
)
WHOLE_DIVISION = Diagnosis(
    "whole-division",
    "“//”, int(), round() and a tensor of integers keep whole numbers only. So of a share between 0 and 1 "
    "nothing is left but 0 or 1.",
    "Divide with a single /, and keep the digits behind the point until you print.",
)
DIVIDED_BY_OTHERS = Diagnosis(
    "divided-by-others",
    "Accuracy is the number of right answers divided by the number of samples that were evaluated.",
    "Divide by the size of the test part, such as len(test_set) or len(y_test).",
)
ERRORS_COUNTED = Diagnosis(
    "errors-counted",
    "That is the share of wrong answers. Accuracy is the share of right ones.",
    "Count the answers that equal the label: (predictions == targets).sum().",
)
NOT_ALL_SAMPLES = Diagnosis(
    "not-all-samples",
    "The accuracy has to count every test sample. A loader with drop_last=True, or a loop that ends "
    "early, leaves some out.",
    "Evaluate every test sample once, the last incomplete batch as well.",
)
EVALUATED_ON_TRAINING_DATA = Diagnosis(
    "evaluated-on-training-data",
    "The model has trained on these samples, so they say little about new ones.",
    "Evaluate the model on the test part: X_test and y_test, or the loader of the test set.",
)
EVALUATED_BEFORE_TRAINING = Diagnosis(
    "evaluated-before-training",
    "The accuracy is that of the weights at that moment. Later steps changed them.",
    "Move the evaluation below the training loop, after its last step.",
)
ANOTHER_MODEL = Diagnosis(
    "another-model",
    "A new model has random weights. What was learned is in the model that trained.",
    "Make the model once, train it, and evaluate the same one.",
)
UNKNOWN_SAMPLES = Diagnosis(
    "unknown-samples",
    "Either they are other rows than the starter's test part, or they were changed in a way that the check "
    "cannot follow.",
    "Look at the line that splits the data, and at those that change X_test. If you change rows, keep them "
    "in their order.",
)
OTHER_SPLIT = Diagnosis(
    "other-split",
    "The check knows the starter's test part, and compares the accuracy on those samples.",
    "Split as the starter does: the same data, test_size and random_state, in one call of train_test_split.",
)
PREPARED_OTHERWISE = Diagnosis(
    "prepared-otherwise",
    "A model expects numbers like those that it was trained on. Both parts need the same preparation, with "
    "the same numbers.",
    "Do with the test part what you do with the training part. A scaler is fitted on the training part "
    "alone: scaler.transform(X_test).",
)


def of_the_test_set(trace: Trace, source: Source) -> Iterator[Finding]:
    """Compare the accuracies printed after the last step with what the model really answered."""
    if not trace.steps or trace.argmaxes:  # another rule speaks of that
        return
    samples = int(trace.facts["test_samples"])
    if not samples:  # no data was loaded
        return
    stated = _stated(trace, samples)
    if not stated:
        yield source.failure(NO_ACCURACY, 0, "The program printed no accuracy.")
        return
    site = stated[-1].site
    batches = last_pass(trace.evaluated, samples)
    seen = sum(batch.test for batch in batches)
    if seen == 0 and not any(batch.train for batch in trace.evaluated):
        batches = _in_order(trace.evaluated, samples)
        seen = sum(batch.test for batch in batches)
    if seen and batches[-1].step < trace.steps / 2:
        what = f"The model was evaluated after {batches[-1].step} of {plural(trace.steps, 'step')}."
        yield source.failure(EVALUATED_BEFORE_TRAINING, batches[-1].site, what)
    elif trace.facts.get("other_split"):
        yield _other_split(trace, source)
    elif seen != samples and sum(batch.train for batch in trace.evaluated) > seen:
        yield _on_training_data(trace, source, "The model was evaluated on samples of the training part.")
    elif seen == 0:
        yield from _unknown(trace, source, site)
    elif seen != samples:
        what = f"The model was evaluated on {seen} of the {samples} test samples."
        yield source.failure(NOT_ALL_SAMPLES, _leaving_out(source, batches[-1].site), what)
    elif _is_another(trace, batches):
        yield _another(trace, source, batches[-1])
    elif prepared := trace.facts.get("prepared"):
        line = _prepared(source, batches[-1].site)
        yield source.failure(PREPARED_OTHERWISE, line or batches[-1].site, prepared)
    else:
        only_train = trace.evaluated[-1].train > 0 and not trace.evaluated[-1].test
        yield from _compared(trace, source, stated, batches, samples, only_train)


_HOW_SPLIT = r"test_size|random_state|random_split\(|train_size"


def _other_split(trace: Trace, source: Source) -> Finding:
    line = slices.find(source.lines, trace.backward_at.line, slices.matches(r"split\("), _HOW_SPLIT)
    line = line or source_text.first_line(source.lines, r"^[^#]*(?<!import )\w*split\(")
    return source.failure(OTHER_SPLIT, line or trace.backward_at, trace.facts["other_split"])


def _on_training_data(trace: Trace, source: Source, what: str) -> Finding:
    """Say it where the training part is taken for the evaluation."""
    seen = [batch for batch in trace.evaluated if batch.train and batch.site.line]
    if not seen:
        return source.failure(EVALUATED_ON_TRAINING_DATA, 0, what)
    site = seen[-1].site
    line = slices.find(source.lines, site.line, slices.names(slices.OF_TRAINING), r"(?i)train")
    line = line or slices.find(source.lines, site.line, slices.matches(r"\[(:\d+|\d+:)"))
    return source.failure(EVALUATED_ON_TRAINING_DATA, line if _own(source, site) and line else site, what)


def _leaving_out(source: Source, site: Site) -> Site | int:
    """Return the line that leaves samples out: drop_last, or the loop around the evaluation."""
    if not _own(source, site):
        return site
    dropped = slices.find(source.lines, site.line, slices.matches("drop_last=True"), "drop_last")
    cut = slices.find(source.lines, site.line, slices.matches(r"//|\[:|\brange\("))
    return dropped or cut or source_text.innermost_loop(source.lines, site.line)


def _another(trace: Trace, source: Source, batch: Evaluated) -> Finding:
    """Say which model was evaluated: where it was made, or where it was called, if all are made there."""
    model = trace.models[batch.model]
    what = (
        f"This {model.name}, made on {source.where(model.made.line)}, was evaluated, but another was trained."
    )
    same = any(other.made == model.made for other in trace.models if other.stepped)
    return source.failure(ANOTHER_MODEL, batch.site if same or not model.made.line else model.made, what)


def _prepared(source: Source, site: Site) -> int:
    """Return the line that makes the test part ready; 0 if it is not clear."""
    if not _own(source, site):
        return 0
    tested = slices.names(slices.OF_TEST)
    inside = r"(?i)(tensor|transform|numpy|float)\w*\(.*test|test\w*(\.float\(\))?\s*/"
    behind = [each for each in slices.back(source.lines, site.line) if tested(each)]
    for made in (_FITTED, r"[-/] ", r"transform\(|tensor\(|from_numpy|float\(|TensorDataset\("):
        for each in filter(slices.matches(made), behind):
            return slices.line_in(source.lines, each, inside)
    return 0


_FITTED = r"\bfit(_transform)?\("


def _own(source: Source, site: Site) -> bool:
    return site.file.endswith(source.name)


class _Stated(NamedTuple):
    """A line of output that states accuracies."""

    site: Site
    text: str
    claims: list[output_text.Claim]


def _stated(trace: Trace, samples: int) -> list[_Stated]:
    """Find the lines of output that state the accuracy of the finished model, or the last that states one."""
    lines = []
    for line, after in zip(trace.prints, [*trace.prints[1:], None], strict=True):
        claims = output_text.claims(line.text, samples)
        if not claims and after is not None and output_text.only_a_number(after.text):
            claims = output_text.claims(f"{line.text} {after.text}", samples)  # the word above the number
        if claims:
            lines.append((line.step, _Stated(line.site, line.text.strip(), claims)))
    lines = [pair for pair in lines if not output_text.of_training(pair[1].text)] or lines
    last = [pair for pair in lines if pair[0] == trace.steps] or lines[-1:]
    return [stated for _, stated in last]


def last_pass(evaluated: list[Evaluated], samples: int) -> list[Evaluated]:
    """Return the last calls of a model that together saw every test sample, or those there are."""
    batches: list[Evaluated] = []
    seen = 0
    for batch in reversed([batch for batch in evaluated if batch.test]):
        if seen + batch.test > samples or (batches and batch.step != batches[-1].step):
            break
        batches.append(batch)
        seen += batch.test
        if seen == samples:
            break
    return batches[::-1]


def _in_order(evaluated: list[Evaluated], samples: int) -> list[Evaluated]:
    """Return the last pass over as many samples as the test part has, if the answers fit its labels in order.

    Samples that were scaled are not known again; their answers are.
    """
    batches: list[Evaluated] = []
    for batch in reversed(evaluated):
        batches.append(replace(batch, test=batch.samples, right=batch.in_order))
        if sum(batch.samples for batch in batches) >= samples:
            break
    right, seen = sum(batch.right for batch in batches), sum(batch.samples for batch in batches)
    return batches[::-1] if seen == samples and right > samples / 2 else []


def _is_another(trace: Trace, batches: list[Evaluated]) -> bool:
    """Tell whether a model was evaluated that has not trained, and is not a copy of one that has."""
    number = batches[-1].model
    if not 0 <= number < len(trace.models) or trace.models[number].stepped:
        return False
    return sum(batch.right for batch in batches) < 0.7 * sum(batch.test for batch in batches)


def _compared(
    trace: Trace,
    source: Source,
    stated: list[_Stated],
    batches: list[Evaluated],
    samples: int,
    training_last: bool,
) -> Iterator[Finding]:
    right = sum(batch.right for batch in batches)
    truth, mean = right / samples, sum(batch.right / batch.test for batch in batches) / len(batches)
    stated = [line._replace(claims=list(map(_exact, line.claims))) for line in stated]
    if any(abs(claim.value - truth) <= claim.tolerance for line in stated for claim in line.claims):
        return
    site, text, claims = stated[-1]
    what = (
        f"It printed “{text[:80]}”; expected {truth:.4f}, or {truth:.2%}: the model was right for {right} of "
        f"{samples} test samples."
    )

    def printed(value: float) -> bool:
        return any(abs(claim.value - value) <= claim.tolerance for claim in claims)

    def line(test: slices.Test) -> Site | int:
        return (slices.find(source.lines, site.line, test) if _own(source, site) else 0) or site

    last = batches[-1]
    train = trace.trained_on.of if trace.trained_on is not None else 0
    evaluated = {
        f"{train}, the size of the training part": train,
        f"{samples + train}, the size of both parts": samples + train,
    }
    if len(batches) > 1:
        evaluated |= {
            f"{len(batches)}, the number of batches, in percent": 100 * len(batches),
            f"{batches[0].test}, the size of a batch, in percent": 100 * batches[0].test,
            f"{len(batches)} batches of {batches[0].test}": len(batches) * batches[0].test,
        }
    by = next((words for words, number in evaluated.items() if number and printed(right / number)), "")
    if len(batches) > 1 and printed(mean):
        sizes = sorted(batch.test for batch in batches)
        what = f"{what} Yours is the mean of {len(batches)} batches, of {sizes[0]} to {sizes[-1]} samples."
        yield source.failure(MEAN_OF_BATCH_MEANS, line(slices.divides), what)
    elif training_last:
        yield _on_training_data(
            trace, source, f"The last samples that the model got were training samples. {what}"
        )
    elif found := source_text.largest_value_taken(source.lines):
        yield source.failure(
            LOGITS_COMPARED, found, f"This line takes the largest score, not its class. {what}"
        )
    elif len(batches) > 1 and (printed(last.right / samples) or printed(last.right / last.test)):
        what = f"{what} Yours fits the last batch alone: {last.right} of {last.test}."
        counted = slices.find(source.lines, site.line, _overwrites(source)) if _own(source, site) else 0
        yield source.failure(LAST_BATCH_ONLY, counted or line(slices.matches(r"==|\.eq\(")), what)
    elif (cut := line(cuts)) is not site and any(printed(value) for value in whole(truth)):
        yield source.failure(WHOLE_DIVISION, cut, what)
    elif by:
        yield source.failure(DIVIDED_BY_OTHERS, line(slices.divides), f"{what} Yours fits {right} / {by}.")
    elif printed(1 - truth):
        counts = slices.matches(r"!=|\.ne\(|not_equal|\b1(\.0)? - |~")
        yield source.failure(ERRORS_COUNTED, line(counts), what)
    else:
        yield source.failure(WRONG_ACCURACY, line(slices.divides), what)


def _exact(claim: output_text.Claim) -> output_text.Claim:
    """Return a share without a digit behind the point as it is: 1 does not mean 0.95."""
    return claim._replace(tolerance=1e-6) if claim.tolerance > 0.1 else claim


def whole(share: float) -> set[float]:
    """Return what becomes of a share, or of its percentage, that was cut to a whole number."""
    return {float(int(share)), float(round(share)), int(100 * share) / 100}


def cuts(statement: ast.stmt) -> bool:
    """Tell whether a statement divides, and keeps only the whole number."""
    for node in slices.own(statement):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            return True
        text = ast.unparse(node) if isinstance(node, ast.Call) else ""
        if source_text.called(node) in _WHOLE and "/" in text:
            return True
        if re.search(r"rounding_mode=|\bfloor_divide\(", text):
            return True
    return False


_WHOLE = {"int", "long", "short", "round", "floor", "trunc", "to"}


def _overwrites(source: Source) -> slices.Test:
    """Return a test whether a statement counts right answers, in a loop, with a plain =."""
    loops = [node for node in source_text.all_nodes(source.lines) if isinstance(node, ast.For | ast.While)]
    inside = {part for loop in loops for part in ast.walk(loop) if part is not loop}
    lines = {getattr(part, "lineno", 0) for part in inside}
    counts = slices.matches(r"==|\.eq\(|\.equal\(|count_nonzero|sum\(|accuracy_score|\.item\(")

    def test(statement: ast.stmt) -> bool:
        plain = isinstance(statement, ast.Assign) and not slices.bound(statement) & slices.read(statement)
        return plain and statement.lineno in lines and counts(statement)

    return test


def _unknown(trace: Trace, source: Source, site: Site) -> Iterator[Finding]:
    """The model saw no sample that is known."""
    evaluated = [call for call in trace.calls if not call.trained and call.finished and call.last_step]
    if not evaluated:
        yield source.failure(WRONG_ACCURACY, site, "After the last training step no model was evaluated.")
        return
    what = "The check did not recognize the samples that the model was evaluated on."
    yield source.failure(UNKNOWN_SAMPLES, evaluated[-1].site, what)
