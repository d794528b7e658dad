"""Rules: the steps of a training, their order, and whether the loss fell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural, times
from gpulesson.exercises.rules import models, source_text
from gpulesson.exercises.rules.devices import OPTIMIZER_ELSEWHERE
from gpulesson.exercises.trace import Site, Trace

MISSING_ZERO_GRAD = Diagnosis(
    "missing-zero-grad",
    "backward() adds to the gradients that are there. Without zero_grad() every step follows the sum of "
    "all earlier gradients.",
    "Call optimizer.zero_grad() once in every step, before backward().",
)
ZERO_GRAD_AFTER_BACKWARD = Diagnosis(
    "zero-grad-after-backward",
    "zero_grad() between backward() and step() deletes the gradients that step() needs.",
    "Keep the order: zero_grad(), backward(), step().",
)
NO_BACKWARD = Diagnosis(
    "no-backward",
    "backward() computes the gradients that the optimizer needs.",
    "In every step, after the loss: optimizer.zero_grad(), loss.backward(), optimizer.step().",
)
NO_STEP = Diagnosis(
    "no-step",
    "backward() computes gradients; only optimizer.step() changes the weights.",
    "Call optimizer.step() after backward(), in every step.",
)
STEP_BEFORE_BACKWARD = Diagnosis(
    "step-before-backward",
    "step() uses the gradients that backward() computes. Before backward() there are none, or old ones.",
    "Keep the order: zero_grad(), backward(), step().",
)
STEP_OUTSIDE_LOOP = Diagnosis(
    "step-outside-loop",
    "The model learns when each batch gets its own backward() and its own step().",
    "Put the loss, backward() and step() into the inner loop, all with the same indentation.",
)
OPTIMIZER_MADE_ANEW = Diagnosis(
    "optimizer-made-anew",
    "Adam, and others, keep averages of the gradients. A new optimizer begins without them.",
    "Make the optimizer once, above the loop over the epochs.",
)
LOSS_NOT_FALLING = Diagnosis(
    "loss-not-falling",
    "Steps, order and devices are right. So the learning rate is probably far too high or too low, or "
    "labels do not belong to their rows.",
    "Print the loss of every epoch. Try a learning rate ten times smaller, then one ten times larger.",
)
LOSS_NOT_FINITE = Diagnosis(
    "loss-not-finite",
    "Once the loss is infinite or not a number (nan), the weights become so, too, and training cannot "
    "recover.",
    "Use a smaller learning rate, and check the inputs: torch.isfinite(inputs).all().",
)


_TOO_RARE = 8
"""So many backward passes for one step are no accumulation of gradients any more."""


def order(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what is wrong with zero_grad, backward and step."""
    yield from _answers_unused(trace, source)
    outside = trace.backwards - trace.in_steps
    last = max(trace.optimizers, key=lambda optimizer: optimizer.steps, default=None)
    if last is not None and last.steps and trace.error is None:
        unused = trace.wasted > outside / 2 and outside >= 2 * trace.steps
        if unused or outside >= _TOO_RARE * trace.steps:
            what = f"backward() was called {outside} times, but step() only {times(trace.steps)}."
            yield source.failure(STEP_OUTSIDE_LOOP, last.step_at, what)
    for optimizer in trace.optimizers:
        earlier = optimizer.step_at.file == trace.backward_at.file and optimizer.step_at < trace.backward_at
        early = optimizer.blind or (optimizer.zeroed_late > optimizer.steps / 2 and earlier)
        if early and trace.backwards and not optimizer.strange:
            what = (
                f"{optimizer.name} took its step before backward() had computed the gradients of this batch."
            )
            yield source.failure(STEP_BEFORE_BACKWARD, optimizer.step_at, what)
            continue
        if optimizer.strange and trace.backwards and (optimizer.steps or len(trace.optimizers) == 1):
            what = (
                f"{optimizer.name} took {plural(optimizer.steps, 'step')}, but none of "
                "its parameters belongs "
                "to the trained model."
            )
            twins = [other for other in trace.optimizers if other.made == optimizer.made]
            made = optimizer.made if len(twins) == 1 else optimizer.made_for
            yield source.failure(OPTIMIZER_ELSEWHERE, made, what)
        elif optimizer.zeroed_late > optimizer.steps / 2:
            what = (
                f"In {optimizer.zeroed_late} of {optimizer.steps} steps the gradients were "
                "cleared before step()."
            )
            yield source.failure(ZERO_GRAD_AFTER_BACKWARD, optimizer.zeroed_at, what)
        if optimizer.accumulated > max(1, optimizer.steps / 2):
            what = (
                f"In {optimizer.accumulated} of {optimizer.steps} steps, backward() added to gradients that "
                "an earlier step had used already."
            )
            yield source.failure(MISSING_ZERO_GRAD, optimizer.accumulated_at, what)


def _answers_unused(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say that most answers of a line that trains were never used: the loss is computed after the loop."""
    for call in trace.calls:
        twins = [each for each in trace.calls if (each.site, each.model) == (call.site, call.model)]
        unused = sum(each.count for each in twins if each.training and each.grad and not each.trained)
        if call.trained and unused >= 4 * call.count and trace.error is None:
            what = (
                f"The model was called {unused + call.count} times for training, but "
                f"backward() used only {call.count}."
            )
            yield source.failure(STEP_OUTSIDE_LOOP, trace.backward_at, what)
            return


def one_optimizer(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say that an optimizer was made again and again for the same model."""
    anew = [optimizer for optimizer in trace.optimizers if optimizer.anew]
    if anew and (
        len(anew) > 1 or source_text.loop_around(source.lines, anew[0].made.line) != anew[0].made.line
    ):
        first = anew[0]
        times_made = sum(optimizer.made == first.made for optimizer in trace.optimizers)
        what = f"{first.name} was made {times(times_made)} on this line, for the same model."
        yield source.failure(OPTIMIZER_MADE_ANEW, first.made, what)


def taken(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether there was a training at all."""
    made = trace.optimizers[-1].made if trace.optimizers else Site()
    if not trace.backwards:
        yield source.failure(NO_BACKWARD, made, "backward() was never called, so there are no gradients.")
    elif not trace.steps:
        what = f"backward() was called {times(trace.backwards)}, but no optimizer took a step."
        yield source.failure(NO_STEP, made, what)


def loss_falls(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether the loss fell; asked only when nothing else is wrong."""
    if not trace.steps:
        return
    where = trace.losses[0].site if trace.losses else Site()
    if trace.backwards > len(trace.values) < 100_000:
        count = trace.backwards - len(trace.values)
        what = f"In {plural(count, 'step')} the loss was infinite or not a number."
        scores = models.without_log_softmax(trace, source)
        yield scores or source.failure(LOSS_NOT_FINITE, where, what)
    elif len(trace.values) >= 4:
        first, last = ends(trace.values)
        if not last < first or last > 2 * trace.values[0]:
            what = (
                f"The loss was {trace.values[0]:.4g} in the first step, {first:.4g} in the first tenth of "
                f"the steps, and {last:.4g} in the last tenth; expected less."
            )
            yield source.failure(LOSS_NOT_FALLING, where, what)


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the first tenth of some values, and of the last."""
    part = max(1, len(values) // 10)
    return sum(values[:part]) / part, sum(values[-part:]) / part
