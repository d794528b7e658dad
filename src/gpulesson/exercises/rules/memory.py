"""Rules: what is kept, and what is fetched, without need."""

from __future__ import annotations

from collections.abc import Iterator

from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import source_text
from gpulesson.exercises.trace import Trace

LOSSES_KEPT = Diagnosis(
    "losses-kept",
    "A loss drags along the history of how it was computed. As long as you keep it, or a sum of such "
    "losses, that memory is not given back.",
    "Keep the number alone: loss.detach() stays on the device, loss.item() comes to the host.",
)
ITEM_EVERY_STEP = Diagnosis(
    "item-every-step",
    "To hand over a number the GPU must have finished: the CPU waits, and prepares nothing meanwhile.",
    "Add up loss.detach() on the device, and fetch the sum once an epoch.",
)
FETCHED_EVERY_BATCH = Diagnosis(
    "fetched-every-batch",
    "Every number that is fetched makes the CPU wait for the GPU.",
    "Add up the right answers on the device, and fetch the sum once, after the last batch.",
)
GRADIENTS_WHILE_EVALUATING = Diagnosis(
    "gradients-while-evaluating",
    "Without no_grad() or inference_mode() the model's answers keep their history, and memory with it.",
    "Judge inside: with torch.inference_mode():",
)


def losses_kept(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say that losses of earlier steps were kept, each with its history."""
    for loss in trace.losses:
        if loss.kept >= 4:
            what = f"At one time {loss.kept} losses of earlier steps were alive, each with its history."
            yield source.failure(LOSSES_KEPT, source_text.keeping_line(source.lines, loss.site.line), what)
            break


def item_every_step(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say which lines made the CPU wait in most of the steps."""
    for read in trace.reads:
        if trace.steps >= 10 and read.steps > trace.steps / 2 and read.site.line:
            what = f"{read.call} made the CPU wait in {read.steps} of {trace.steps} training steps."
            yield source.advice(ITEM_EVERY_STEP, read.site, what)


def fetched_once(trace: Trace, source: Source) -> Iterator[Finding]:
    """Advise to fetch the count once, where every batch of the evaluation fetched its own."""
    for read in trace.reads:
        if read.in_last_step > 2 and read.site.line:
            what = (
                f"After the training, {read.call} fetched a number {read.in_last_step} times from this line."
            )
            yield source.advice(FETCHED_EVERY_BATCH, read.site, what)
            return


def gradients_while_evaluating(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say where a model kept a history that nothing needed."""
    for call in trace.calls:
        if call.grad and not call.trained and call.last_step > 0:
            what = f"{call.count} calls of the model kept a history that no backward() ever used."
            yield source.advice(GRADIENTS_WHILE_EVALUATING, call.site, what)
            break
