"""Rules: the steps of a training, their order, and whether the loss fell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules.devices import OPTIMIZER_ELSEWHERE
from gpulesson.exercises.trace import Site, Trace

MISSING_ZERO_GRAD = Diagnosis(
    "missing-zero-grad",
    "backward() adds to the gradients that are there. Without zero_grad() every step goes along the sum "
    "of all gradients so far.",
    "Call optimizer.zero_grad() once in every step, before backward().",
)
ZERO_GRAD_AFTER_BACKWARD = Diagnosis(
    "zero-grad-after-backward",
    "zero_grad() between backward() and step() throws away the very gradients that step() needs.",
    "Keep the order: zero_grad(), backward(), step().",
)
NO_BACKWARD = Diagnosis(
    "no-backward",
    "Gradients are computed by backward(), and the optimizer needs them.",
    "In every step: loss = loss_fn(model(inputs), targets), zero_grad(), loss.backward(), step().",
)
NO_STEP = Diagnosis(
    "no-step",
    "backward() computes gradients; only optimizer.step() changes the weights.",
    "Call optimizer.step() after backward(), in every step.",
)
STEP_BEFORE_BACKWARD = Diagnosis(
    "step-before-backward",
    "step() goes along the gradients, and backward() computes them: before it there are none, or old ones.",
    "Keep the order: zero_grad(), backward(), step().",
)
STEP_OUTSIDE_LOOP = Diagnosis(
    "step-outside-loop",
    "Every batch gives a gradient, and every gradient is worth a step. Those that no step has used are lost.",
    "Put loss, backward() and step() into the inner loop, all indented alike.",
)
LOSS_NOT_FALLING = Diagnosis(
    "loss-not-falling",
    "When steps, order and devices are right, a training loss that stays where it is mostly means a "
    "learning rate that is far too high or too low, or data whose labels do not fit.",
    "Print the loss of some epochs, and change the learning rate by a factor of ten.",
)
LOSS_NOT_FINITE = Diagnosis(
    "loss-not-finite",
    "Once the loss is infinite or not a number, so are the weights, and nothing mends them.",
    "Lower the learning rate, and look for inputs that are not finite.",
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
            what = f"backward() was called {outside} times, step() only {trace.steps}."
            yield source.failure(STEP_OUTSIDE_LOOP, last.step_at, what)
    for optimizer in trace.optimizers:
        earlier = optimizer.step_at.file == trace.backward_at.file and optimizer.step_at < trace.backward_at
        early = optimizer.blind or (optimizer.zeroed_late > optimizer.steps / 2 and earlier)
        if early and trace.backwards and not optimizer.strange:
            what = (
                f"{optimizer.name} took its step before backward() had computed the gradient of this batch."
            )
            yield source.failure(STEP_BEFORE_BACKWARD, optimizer.step_at, what)
            continue
        if optimizer.strange and trace.backwards and (optimizer.steps or len(trace.optimizers) == 1):
            what = (
                f"{optimizer.name} took {optimizer.steps} steps, and none of its parameters belongs to the "
                "model that was trained."
            )
            yield source.failure(OPTIMIZER_ELSEWHERE, optimizer.made, what)
        elif optimizer.zeroed_late > optimizer.steps / 2:
            what = f"In {optimizer.zeroed_late} of {optimizer.steps} steps the gradients were gone by then."
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
            what = f"Of {unused + call.count} answers of the model, {call.count} were followed by backward()."
            yield source.failure(STEP_OUTSIDE_LOOP, trace.backward_at, what)
            return


def taken(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether there was a training at all."""
    made = trace.optimizers[-1].made if trace.optimizers else Site()
    if not trace.backwards:
        yield source.failure(NO_BACKWARD, made, "No gradient was computed: backward() was never called.")
    elif not trace.steps:
        what = f"backward() was called {trace.backwards} times, and no optimizer took a step."
        yield source.failure(NO_STEP, made, what)


def loss_falls(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether the loss fell; asked only when nothing else is wrong."""
    if not trace.steps:
        return
    where = trace.losses[0].site if trace.losses else Site()
    if trace.backwards > len(trace.values) < 100_000:
        count = trace.backwards - len(trace.values)
        yield source.failure(LOSS_NOT_FINITE, where, f"In {count} steps the loss was not a finite number.")
    elif len(trace.values) >= 4:
        first, last = ends(trace.values)
        if not last < first or last > 2 * trace.values[0]:
            what = (
                f"The loss was {trace.values[0]:.4g} in the first step, {first:.4g} in the first tenth of "
                f"the steps, and {last:.4g} in the last."
            )
            yield source.failure(LOSS_NOT_FALLING, where, what)


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the first tenth of some values, and of the last."""
    part = max(1, len(values) // 10)
    return sum(values[:part]) / part, sum(values[-part:]) / part
