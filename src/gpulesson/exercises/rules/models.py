"""Rules: the mode a model is in, what it returns, and how that is read."""

from __future__ import annotations

from collections.abc import Iterator

from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural
from gpulesson.exercises.rules import source_text
from gpulesson.exercises.trace import Site, Trace

MISSING_EVAL = Diagnosis(
    "missing-eval",
    "Dropout and batch normalization work differently in training mode. A model that has them then gives "
    "other answers.",
    "Call model.eval() before you evaluate, and model.train() before the next epoch of training.",
)
MISSING_TRAIN = Diagnosis(
    "missing-train",
    "eval() holds until you call train(). Until then dropout is off, and batch normalization does not learn.",
    "Call model.train() at the beginning of every epoch.",
)
SOFTMAX_BEFORE_CROSS_ENTROPY = Diagnosis(
    "softmax-before-cross-entropy",
    "CrossEntropyLoss takes the scores (logits) and does the softmax itself. With a second softmax the "
    "model learns slowly, without an error.",
    "Return the scores as they are. If you need probabilities, apply softmax after the loss.",
)
NO_LOG_SOFTMAX = Diagnosis(
    "no-log-softmax",
    "nll_loss takes the logarithms of probabilities, from log_softmax. With the scores (logits) themselves "
    "the loss becomes negative, and falls without an end.",
    "Use cross_entropy, or nn.CrossEntropyLoss(): it takes the scores. Or call log_softmax(dim=1) before "
    "nll_loss.",
)
ARGMAX_DIMENSION = Diagnosis(
    "argmax-dimension",
    "The output has a row for each sample and a column for each class. The predicted class is the "
    "largest of each row: dimension 1.",
    "Use argmax(dim=1).",
)


def modes(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say where a model with dropout or batch normalization was in the wrong mode."""
    yield from _wrong_modes(trace, source, always=False)


def modes_always(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say where any model was in the wrong mode, for an exercise that asks for the modes."""
    yield from _wrong_modes(trace, source, always=True)


def _wrong_modes(trace: Trace, source: Source, always: bool) -> Iterator[Finding]:
    for diagnosis, trained in ((MISSING_EVAL, False), (MISSING_TRAIN, True)):
        for call in trace.calls:
            model = trace.models[call.model]
            evaluated_or_trained = call.trained == trained and call.finished and call.last_step > 0
            if (
                evaluated_or_trained
                and model.stepped
                and call.training != trained
                and (always or model.moody)
            ):
                doing = "trained in evaluation mode" if trained else "evaluated in training mode"
                place = source.where(call.site.line) if trained else "this line"
                what = f"{model.name} was {doing}, in {plural(call.count, 'call')} on {place}."
                if trained:
                    yield _never_trains(source, call.site, what)
                else:
                    yield source.failure(diagnosis, call.site, what)
                break


def _never_trains(source: Source, site: Site, what: str) -> Finding:
    """Say it where train() stands, outside of the loop over the epochs; or at that loop."""
    if not site.file.endswith(source.name):
        return source.failure(MISSING_TRAIN, site, what)
    loop = source_text.loop_around(source.lines, site.line)
    early = source_text.first_line(source.lines, r"^[^#]*\.train\((True)?\)")
    if early and source_text.loop_around(source.lines, early) == early and early < loop:
        what = f"{what} train() on {source.where(early)} ran once, before the loop."
        return source.failure(MISSING_TRAIN, early, what)
    return source.failure(MISSING_TRAIN, loop, what)


def without_log_softmax(trace: Trace, source: Source) -> Finding | None:
    """Say that nll_loss got the scores; asked only where a training has failed."""
    loss = next((loss for loss in trace.losses if loss.unlogged), None)
    if loss is None:
        return None
    what = "The loss of this line got scores, not log-probabilities: exp() of a row does not add up to 1."
    return source.failure(NO_LOG_SOFTMAX, loss.made if loss.made.line else loss.site, what)


def answers(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what is wrong with what the model returns, and with how it is read."""
    for loss in trace.losses:
        if loss.softmaxed:
            site = loss.softmax_at if loss.softmax_at.line else loss.site
            what = (
                f"cross_entropy on {source.where(loss.site.line)} got probabilities, not scores: none is "
                "negative, and each row adds up to 1."
            )
            yield source.failure(SOFTMAX_BEFORE_CROSS_ENTROPY, site, what)
            break
    for wrong in trace.argmaxes:
        along = "over all dimensions" if wrong.dim is None else f"along dimension {wrong.dim}"
        what = (
            f"This line takes the largest value of an output of shape {wrong.shape} {along}; "
            "expected dimension 1."
        )
        yield source.failure(ARGMAX_DIMENSION, wrong.site, what)
        break
