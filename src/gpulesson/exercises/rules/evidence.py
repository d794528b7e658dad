"""Rules: whether there was a training of the right rows, and whether it taught the model something."""

from __future__ import annotations

from collections.abc import Iterator

from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import source_text
from gpulesson.exercises.trace import Trace

TRAINED_ON_TEST_DATA = Diagnosis(
    "trained-on-test-data",
    "The test part stands for data that the model has never seen. Once it has trained on them, its accuracy "
    "there says nothing about new ones.",
    "Train on the training part alone, and keep the test part for the evaluation.",
)
LABELS_OF_OTHER_ROWS = Diagnosis(
    "labels-of-other-rows",
    "Each row has its own label. If rows and labels are put into different orders, the model learns noise.",
    "Shuffle, split and select both in the same way: one TensorDataset(X, y), or the same index for both.",
)
FEW_ROWS = Diagnosis(
    "few-rows",
    "What is not in any batch teaches the model nothing.",
    "Let the inner loop go over all batches of the training part.",
)
FEW_STEPS = Diagnosis(
    "few-steps",
    "Every step changes the weights only a little: a training takes many.",
    "Train for as many epochs as the exercise does.",
)
WEIGHTS_DID_NOT_MOVE = Diagnosis(
    "weights-did-not-move",
    "A training changes the weights. These are, bit for bit, what they were before the first step.",
    "Look at the learning rate: it must be larger than 0. Nothing may set the weights back.",
)
LOW_ACCURACY = Diagnosis(
    "low-accuracy",
    "This training, done right, gets much further. Something is wrong that gives no error.",
    "Print the loss of every epoch: does it fall? Then look at the learning rate, and at rows and labels.",
)
NO_SEED = Diagnosis(
    "no-seed",
    "The weights begin at random. Only with a seed, set before the model is made, does every run begin with "
    "the same ones, and give the losses of the lesson's page.",
    "Call torch.manual_seed(…) before the line that makes the model.",
)
NOT_SHUFFLED = Diagnosis(
    "not-shuffled",
    "In a fixed order the same rows always meet in a batch, and the last ones have the last word.",
    "Give the training loader shuffle=True.",
)


def training_rows(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether the rows that were trained on were the right ones, with their own labels."""
    seen = trace.trained_on
    if seen is None:
        return
    if seen.test:
        what = f"{seen.test} samples of the test part were among those that the model trained on."
        yield source.failure(TRAINED_ON_TEST_DATA, seen.test_at, what)
    elif seen.mislabelled > 0.01 * seen.labelled:
        what = f"{seen.mislabelled} of {seen.labelled} times a row met a label that is not its own."
        yield source.failure(LABELS_OF_OTHER_ROWS, seen.mislabelled_at, what)


def enough(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether the training was long enough, saw enough, and changed the weights."""
    loop = source_text.loop_around(source.lines, trace.backward_at.line)
    seen, passes = trace.trained_on, trace.facts.get("passes", 0)
    moved = [optimizer for optimizer in trace.optimizers if optimizer.steps and optimizer.moved]
    if trace.steps and not moved:
        optimizer = next(optimizer for optimizer in trace.optimizers if optimizer.steps)
        what = f"{optimizer.name} took {optimizer.steps} steps, and no weight changed."
        yield source.failure(WEIGHTS_DID_NOT_MOVE, optimizer.made, what)
    elif trace.steps and trace.backwards < passes:
        what = f"There were {trace.backwards} backward passes; this training takes more than {passes}."
        yield source.failure(FEW_STEPS, loop, what)
    elif seen is not None and not seen.unknown and 2 * seen.known < seen.of:
        what = f"The model trained on {seen.known} different rows of the {seen.of} of the training part."
        yield source.failure(FEW_ROWS, loop, what)


def learned(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether the finished model is far better than guessing; asked only when nothing else is wrong."""
    floor = trace.facts.get("learned")
    if floor is None:
        return
    final = [batch for batch in trace.evaluated if batch.step == trace.evaluated[-1].step]
    known = sum(batch.test for batch in final)
    right, of = sum(batch.right for batch in final), known
    if not known:
        right, of = sum(batch.in_order for batch in final), sum(batch.samples for batch in final)
    if not of or right < floor * of:
        site = final[-1].site if final else 0
        what = (
            f"The trained model was right for {right} of {of} test samples; expected more than {floor:.0%}."
        )
        yield source.failure(LOW_ACCURACY, site, what)


def seeded(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say that the model was made without a seed, where the losses are to agree with the lesson's."""
    for model in trace.models:
        if model.stepped and not model.seeded:
            what = f"{model.name} was made without a seed: its first weights differ in every run."
            yield source.failure(NO_SEED, model.made, what)
            return


def shuffled(trace: Trace, source: Source) -> Iterator[Finding]:
    """Advise to shuffle, where every epoch took the rows in the same order."""
    if trace.trained_on is not None and trace.trained_on.same_order:
        line = source_text.first_line(source.lines, r"(DataLoader|Batches)\(.*train") or trace.trained_on.site
        yield source.advice(NOT_SHUFFLED, line, "Every epoch took the training rows in the same order.")
