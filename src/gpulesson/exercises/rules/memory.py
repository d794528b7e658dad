"""Rules: what is kept, and what is fetched, without need."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural
from gpulesson.exercises.rules import source_text
from gpulesson.exercises.trace import Trace

LOSSES_KEPT = Diagnosis(
    "losses-kept",
    "Each loss keeps the history that backward() needs, and that takes memory. It is freed only when you "
    "drop the loss, or the sum of losses.",
    "Keep only the number: loss.detach() stays on the device, loss.item() comes to the CPU.",
)
DETACHED_FOR_NOTHING = Diagnosis(
    "losses-kept",
    "detach() and item() do not change the loss: they return another value, without the history that "
    "backward() needs. The loss itself keeps it, and that takes memory.",
    "Keep what it returns: losses.append(loss.detach()).",
)
ITEM_EVERY_STEP = Diagnosis(
    "item-every-step",
    "To read a number, the CPU must wait until the GPU has computed it. Meanwhile it prepares no new work.",
    "Add up loss.detach() on the device, and read the sum once an epoch.",
)
FETCHED_EVERY_BATCH = Diagnosis(
    "fetched-every-batch",
    "Every number that you read makes the CPU wait for the GPU.",
    "Add up the right answers on the device, and read the sum once, after the last batch.",
)
GRADIENTS_WHILE_EVALUATING = Diagnosis(
    "gradients-while-evaluating",
    "Outside of no_grad() and inference_mode() the model's answers keep their history, and that takes "
    "memory.",
    "Evaluate inside: with torch.inference_mode():",
)
HISTORY_FOR_NOTHING = Diagnosis(
    "history-for-nothing",
    GRADIENTS_WHILE_EVALUATING.why,
    "Where you only look at the answers, call the model inside: with torch.inference_mode():",
)


def losses_kept(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say that losses of earlier steps were kept, each with its history."""
    for loss in trace.losses:
        if loss.kept >= 4:
            what = f"{loss.kept} losses of earlier steps were kept at the same time, each with its history."
            line = source_text.keeping_line(source.lines, loss.site.line)
            names = {
                part.id for node in source_text.all_nodes(source.lines) for part in _names_on(node, line)
            }
            lost, call = source_text.thrown_away(source.lines, names, ("detach", "item", "cpu"))
            if lost:
                what = f"{call} returns a new value, and nothing keeps it. {what}"
                yield source.failure(DETACHED_FOR_NOTHING, lost, what)
            else:
                yield source.failure(LOSSES_KEPT, line, what)
            break


def _names_on(node: ast.AST, line: int) -> list[ast.Name]:
    return [node] if isinstance(node, ast.Name) and node.lineno == line else []


def item_every_step(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say which lines made the CPU wait in most of the steps."""
    for read in trace.reads:
        if trace.steps >= 10 and read.steps > trace.steps / 2 and read.site.line:
            what = f"{read.call} made the CPU wait in {read.steps} of {trace.steps} training steps."
            yield source.advice(ITEM_EVERY_STEP, read.site, what)


def fetched_once(trace: Trace, source: Source) -> Iterator[Finding]:
    """Advise to fetch the count once, where every batch of the evaluation fetched its own."""
    moved_back = any(call.model_on == ["cpu"] and not call.trained for call in trace.calls)
    for read in trace.reads:
        if moved_back and read.call.startswith((".cpu(", ".to(")):
            continue  # the model's parameters
        if read.in_last_step > 2 and read.site.line:
            what = (
                f"After the last step, {read.call} on this line fetched a number "
                f"{read.in_last_step} times; once is enough."
            )
            yield source.advice(FETCHED_EVERY_BATCH, read.site, what)
            return


def gradients_while_evaluating(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say where a model kept a history that nothing needed: first of all where it is evaluated.

    Where the samples are known, those of the test part are evaluated. Otherwise any that do not train are.
    """
    trained = {call.site for call in trace.calls if call.trained}
    idle = [call for call in trace.calls if call.grad and not call.trained and call.last_step > 0]
    idle = [call for call in idle if call.site not in trained]
    tested = {batch.site for batch in trace.evaluated if batch.test > batch.train}
    call = next((call for call in idle if call.site in tested), next(iter(idle), None))
    if call is not None:
        what = f"In {plural(call.count, 'call')} the model recorded a history that no backward() used."
        looks_on = tested and call.site not in tested
        yield source.advice(HISTORY_FOR_NOTHING if looks_on else GRADIENTS_WHILE_EVALUATING, call.site, what)
