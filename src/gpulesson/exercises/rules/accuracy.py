"""Rules: the accuracy that a program states, compared with what its model really answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural
from gpulesson.exercises.rules import output_text, source_text
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
    "Count (predictions == targets).sum() over the whole test part, and divide by its number of samples, "
    "such as len(test_set) or len(y_test).",
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
    "The check looks for the test part that the starter splits off. It found neither those samples nor "
    "their order.",
    "Evaluate on the starter's test part. If you change its rows, keep them in their order.",
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
    elif seen != samples and sum(batch.train for batch in trace.evaluated) > seen:
        what = "The model was evaluated on samples of the training part."
        yield source.failure(EVALUATED_ON_TRAINING_DATA, site, what)
    elif seen == 0:
        yield from _unknown(trace, source, site)
    elif seen != samples:
        what = f"The model was evaluated on {seen} of the {samples} test samples."
        yield source.failure(NOT_ALL_SAMPLES, site, what)
    elif _is_another(trace, batches):
        model = trace.models[batches[-1].model]
        made = source.where(model.made.line)
        what = f"This {model.name}, made on {made}, was evaluated, but another model was trained."
        yield source.failure(ANOTHER_MODEL, site, what)
    else:
        only_train = trace.evaluated[-1].train > 0 and not trace.evaluated[-1].test
        yield from _compared(source, stated, batches, samples, only_train)


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
    source: Source, stated: list[_Stated], batches: list[Evaluated], samples: int, training_last: bool
) -> Iterator[Finding]:
    right = sum(batch.right for batch in batches)
    truth, mean = right / samples, sum(batch.right / batch.test for batch in batches) / len(batches)
    if any(abs(claim.value - truth) <= claim.tolerance for line in stated for claim in line.claims):
        return
    site, text, claims = stated[-1]
    what = (
        f"It printed “{text[:80]}”; expected {truth:.4f}, or {truth:.2%}: the model was right for {right} of "
        f"{samples} test samples."
    )
    if any(abs(claim.value - mean) <= claim.tolerance for claim in claims):
        sizes = sorted(batch.test for batch in batches)
        what = f"{what} Yours is the mean of {len(batches)} batches, of {sizes[0]} to {sizes[-1]} samples."
        yield source.failure(MEAN_OF_BATCH_MEANS, site, what)
    elif training_last:
        yield source.failure(
            EVALUATED_ON_TRAINING_DATA,
            site,
            f"The last samples that the model got were training samples. {what}",
        )
    elif line := source_text.largest_value_taken(source.lines):
        yield source.failure(
            LOGITS_COMPARED, line, f"This line takes the largest score, not its class. {what}"
        )
    else:
        yield source.failure(WRONG_ACCURACY, site, what)


def _unknown(trace: Trace, source: Source, site: Site) -> Iterator[Finding]:
    """The model saw no sample that is known."""
    evaluated = [call for call in trace.calls if not call.trained and call.finished and call.last_step]
    if not evaluated:
        yield source.failure(WRONG_ACCURACY, site, "After the last training step no model was evaluated.")
        return
    what = "The model was evaluated on samples that are not those of the test part."
    yield source.failure(UNKNOWN_SAMPLES, evaluated[-1].site, what)
