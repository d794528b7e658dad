"""Rules: the accuracy that a program states, compared with what its model really answered."""

from __future__ import annotations

from collections.abc import Iterator

from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import output_text
from gpulesson.exercises.trace import Judged, Site, Trace

NO_ACCURACY = Diagnosis(
    "no-accuracy",
    "The exercise asks for the accuracy on the test data.",
    "Print a line with the word accuracy and the number, such as: accuracy 0.9500.",
)
MEAN_OF_BATCH_MEANS = Diagnosis(
    "mean-of-batch-means",
    "The last batch is shorter than the others, and in a mean of batches its samples count for more.",
    "Add up the right answers of all batches, and divide once by the number of samples.",
)
WRONG_ACCURACY = Diagnosis(
    "wrong-accuracy",
    "Accuracy is the number of right answers divided by the number of samples.",
    "Count (predictions == targets).sum() over all batches, and divide by len(test_set).",
)
NOT_ALL_SAMPLES = Diagnosis(
    "not-all-samples",
    "An accuracy of a part is an accuracy of that part. A loader with drop_last=True leaves samples out.",
    "Judge every test sample once.",
)
JUDGED_ON_TRAINING_DATA = Diagnosis(
    "judged-on-training-data",
    "Samples that the model has trained on say nothing about new ones.",
    "Judge the model on the test part.",
)


def of_the_test_set(trace: Trace, source: Source) -> Iterator[Finding]:
    """Compare the accuracies printed after the last step with what the model really answered."""
    if not trace.steps or trace.argmaxes:  # another rule speaks of that
        return
    samples = int(trace.facts["test_samples"])
    stated = _stated(trace, samples)
    if not stated:
        yield source.failure(NO_ACCURACY, 0, "The program printed no accuracy.")
        return
    site, claims = stated[-1]
    batches = last_pass(trace.judged, samples)
    seen = sum(batch.test for batch in batches)
    if seen == 0:
        yield from _unknown(trace, source, site, claims, samples)
    elif seen != samples and sum(batch.train for batch in trace.judged) > seen:
        yield _on_training_data(source, site)
    elif seen != samples:
        what = f"The model was judged on {seen} of the {samples} test samples."
        yield source.failure(NOT_ALL_SAMPLES, site, what)
    else:
        yield from _compared(source, stated, batches, samples)


def _stated(trace: Trace, samples: int) -> list[tuple[Site, list[output_text.Claim]]]:
    """Find the lines of output that state the accuracy of the finished model, or the last that states one."""
    lines = [(line, output_text.claims(line.text, samples)) for line in trace.prints]
    lines = [(line, claims) for line, claims in lines if claims]
    lines = [pair for pair in lines if not output_text.of_training(pair[0].text)] or lines
    last = [pair for pair in lines if pair[0].step == trace.steps] or lines[-1:]
    return [(line.site, claims) for line, claims in last]


def last_pass(judged: list[Judged], samples: int) -> list[Judged]:
    """Return the last calls of a model that together saw every test sample, or those there are."""
    batches: list[Judged] = []
    seen = 0
    for batch in reversed([batch for batch in judged if batch.test]):
        if seen + batch.test > samples or (batches and batch.step != batches[-1].step):
            break
        batches.append(batch)
        seen += batch.test
        if seen == samples:
            break
    return batches[::-1]


def _compared(
    source: Source, stated: list[tuple[Site, list[output_text.Claim]]], batches: list[Judged], samples: int
) -> Iterator[Finding]:
    right = sum(batch.right for batch in batches)
    truth, mean = right / samples, sum(batch.right / batch.test for batch in batches) / len(batches)
    if any(abs(claim.value - truth) <= claim.tolerance for _, claims in stated for claim in claims):
        return
    site, claims = stated[-1]
    printed = f"It printed {claims[0].value:.4f}; the model was right for {right} of {samples} samples"
    what = f"{printed}, which is {truth:.4f}."
    if any(abs(claim.value - mean) <= claim.tolerance for claim in claims):
        sizes = ", ".join(str(batch.test) for batch in batches)
        what = f"{what} It is the mean of the accuracies of {len(batches)} batches, of {sizes} samples."
        yield source.failure(MEAN_OF_BATCH_MEANS, site, what)
    else:
        yield source.failure(WRONG_ACCURACY, site, what)


def _unknown(
    trace: Trace, source: Source, site: Site, claims: list[output_text.Claim], samples: int
) -> Iterator[Finding]:
    """The model saw no sample that is known: perhaps they were scaled, perhaps they were others."""
    judged = [call for call in trace.calls if not call.trained and call.finished and call.last_step]
    if not judged:
        yield source.failure(WRONG_ACCURACY, site, "After the training no model was asked for an answer.")
    elif any(batch.train for batch in trace.judged):
        yield _on_training_data(source, site)
    elif not any(
        abs(claim.value - right / samples) <= claim.tolerance
        for claim in claims
        for right in range(samples + 1)
    ):
        what = f"It printed {claims[0].value:.4f}, and no number of right answers of {samples} gives that."
        yield source.failure(WRONG_ACCURACY, site, what)


def _on_training_data(source: Source, site: Site) -> Finding:
    what = "The samples that the model was judged on are from the training part."
    return source.failure(JUDGED_ON_TRAINING_DATA, site, what)
