"""Rules: whether there was a training of the right rows, and whether it taught the model something."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural, times
from gpulesson.exercises.rules import models, slices, source_text
from gpulesson.exercises.trace import Site, Trace

TRAINED_ON_TEST_DATA = Diagnosis(
    "trained-on-test-data",
    "The test part plays the role of new data. Once the model has trained on it, it is not new any more.",
    "Train on the training part alone, and keep the test part for the evaluation.",
)
LABELS_OF_OTHER_ROWS = Diagnosis(
    "labels-of-other-rows",
    "Each row has its own label. With other labels the model learns noise.",
    "Shuffle, split and select rows and labels together: one TensorDataset(X, y), or the same index for "
    "both.",
)
FEW_ROWS = Diagnosis(
    "few-rows",
    "The model learns only from rows that are in a batch.",
    "Let the inner loop go over all batches of the training part.",
)
FEW_STEPS = Diagnosis(
    "few-steps",
    "Each step changes the weights only a little, so the model needs many steps.",
    "Train for as many epochs as the starter.",
)
WEIGHTS_DID_NOT_MOVE = Diagnosis(
    "weights-did-not-move",
    "Training has to change the weights. These are, bit for bit, what they were before the first step.",
    "Check the learning rate: it must be larger than 0. And look for a line that sets the weights back.",
)
LOW_ACCURACY = Diagnosis(
    "low-accuracy",
    "A correct version of this script gets much further, so something is wrong that raises no error.",
    "Print the loss of every epoch. If it does not fall, change the learning rate; if it falls, check "
    "that rows and labels belong together.",
)
NO_SEED = Diagnosis(
    "no-seed",
    "The first weights are random. With a seed set before the model is made, every run begins with the "
    "same weights.",
    "Put torch.manual_seed(32) above the line that makes the model.",
)
NOT_SHUFFLED = Diagnosis(
    "not-shuffled",
    "In a fixed order the same rows always share a batch. A model mostly learns better if that changes.",
    "Shuffle the training part: DataLoader(train_set, batch_size=64, shuffle=True).",
)


def training_rows(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether the rows that were trained on were the right ones, with their own labels."""
    seen = trace.trained_on
    if seen is None or "other_split" in trace.facts:  # another rule speaks of that
        return
    if seen.test:
        what = f"The model trained on {plural(seen.test, 'sample')} of the test part; expected none."
        yield source.failure(TRAINED_ON_TEST_DATA, _mixed_at(seen.test_at, source), what)
    elif seen.mislabelled > 0.01 * seen.labelled:
        what = f"In {seen.mislabelled} of {seen.labelled} cases a row had a label that is not its own."
        yield source.failure(LABELS_OF_OTHER_ROWS, _labels_at(seen.mislabelled_at, source), what)


def _mixed_at(site: Site, source: Source) -> Site | int:
    """Return the line that puts test samples among those that train; the call of the model if none does."""
    if not site.file.endswith(source.name):
        return site
    joined = slices.matches(r"\b(cat|concat|concatenate|vstack|append|ConcatDataset|chain)\(|\w \+ \w")
    tested = slices.names(slices.OF_TEST)
    split = slices.matches(r"split\(")
    behind = [each for each in slices.back(source.lines, site.line) if not split(each)]
    both = next((each for each in behind if joined(each) and tested(each)), None)
    both = both or next((each for each in behind if tested(each)), None)
    if both is not None:
        return both.lineno
    made = slices.matches(r"TensorDataset\(|\.data\b|\.features\b|load_\w+\(")
    return slices.find(source.lines, site.line, made) or site


def _labels_at(site: Site, source: Source) -> Site | int:
    """Return the line that takes rows, or labels, out of their order; else the loss function's."""
    if not site.file.endswith(source.name):
        return site
    order = r"randperm|permutation|shuffle\(|\.sort\(|sorted\(|argsort|\.flip\(|roll\(|\[::-1\]|reversed\("
    paired = slices.find(source.lines, site.line, slices.matches(r"\bzip\("))
    sliced = slices.find(
        source.lines,
        site.line,
        lambda each: (
            isinstance(each, ast.Assign)
            and any(re.match(r"(?i)(y|t|target|label)", name) for name in slices.bound(each))
            and slices.matches(r"\[.*:.*\]")(each)
        ),
    )
    return slices.find(source.lines, site.line, slices.matches(order), order) or sliced or paired or site


def enough(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether the training was long enough, saw enough, and changed the weights."""
    loop = source_text.loop_around(source.lines, trace.backward_at.line)
    seen, passes = trace.trained_on, trace.facts.get("passes", 0)
    moved = [optimizer for optimizer in trace.optimizers if optimizer.steps and optimizer.moved]
    if trace.steps and not moved:
        optimizer = next(optimizer for optimizer in trace.optimizers if optimizer.steps)
        what = f"{optimizer.name} took {plural(optimizer.steps, 'step')}, but no weight changed."
        yield source.failure(WEIGHTS_DID_NOT_MOVE, optimizer.made, what)
    elif trace.steps and trace.backwards < passes:
        what = f"backward() was called {times(trace.backwards)}; expected at least {passes}."
        yield source.failure(FEW_STEPS, loop, what)
    elif seen is not None and not seen.unknown and 2 * seen.known < seen.of:
        what = f"The model trained on {seen.known} of the {seen.of} rows of the training part."
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
        yield models.without_log_softmax(trace, source) or source.failure(LOW_ACCURACY, site, what)


def seeded(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say that the model was made without a seed, where the losses are to agree with the lesson's."""
    for model in trace.models:
        if model.stepped and not model.seeded:
            what = f"No seed was set when {model.name} was made: its first weights differ in every run."
            yield source.failure(NO_SEED, model.made, what)
            return


def shuffled(trace: Trace, source: Source) -> Iterator[Finding]:
    """Advise to shuffle, where every epoch took the rows in the same order."""
    if trace.trained_on is not None and trace.trained_on.same_order:
        site, what = trace.trained_on.site, "Every epoch used the training rows in the same order."
        loader = slices.matches(r"(DataLoader|Batches)\(")
        line = slices.find(source.lines, site.line, loader, r"(DataLoader|Batches)\(")
        line = line or source_text.first_line(source.lines, r"(DataLoader|Batches)\(.*train")
        other = source_text.first_line(source.lines, r"^[^#]*shuffle ?= ?True")
        if other and line and other != line:
            what = f"{what} shuffle=True is on {source.where(other)}, for other rows."
        yield source.advice(NOT_SHUFFLED, line or site, what)
