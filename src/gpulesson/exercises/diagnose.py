"""From what was seen to what is wrong: the rules that hold for any training."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpulesson.exercises import reading
from gpulesson.exercises.findings import Finding, Source
from gpulesson.exercises.trace import CallSeen, ErrorSeen, LossSeen, ModelSeen, Site, Trace

_DEVICES = re.compile(
    r"same device|same type|should be the same|type torch\.cuda|device type for|on device|is on cpu"
)


def error(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what the exception that ended the program was about."""
    seen = trace.error
    if seen is None:
        return
    if seen.type in ("SyntaxError", "IndentationError", "TabError") and len(seen.lines) == 1:
        yield source.failure("syntax-error", seen.site, f"Python says: {seen.message}.")
    elif "can't convert cuda" in seen.message and "numpy" in seen.message:
        yield source.failure("numpy-on-device", seen.site, "A tensor on the GPU was asked for a NumPy array.")
    elif seen.type == "EOFError":
        yield source.failure("asks-for-input", seen.site, "The program asked for input.")
    elif seen.type == "MemoryError" or "can't allocate memory" in seen.message:
        yield source.failure("memory", seen.site, "The program asked for more memory than it is allowed.")
    elif trace.argmaxes:
        return  # the shapes that do not fit come from there
    elif seen.type == "RuntimeError" and _DEVICES.search(seen.message):
        yield _mixed_devices(trace, seen, source)
    else:
        message = seen.message.strip().split("\n")[0] or "(no message)"
        yield source.failure("error", seen.site, f"{seen.type}: {message}")


def _mixed_devices(trace: Trace, seen: ErrorSeen, source: Source) -> Finding:
    """Find out which tensor of a failed operation stayed behind."""
    loss = next((loss for loss in trace.losses if not loss.finished and loss.site in seen.lines), None)
    call = next((call for call in trace.calls if not call.finished and call.site in seen.lines), None)
    if loss is not None:
        return _mixed_loss(trace, loss, source)
    if call is not None:
        return _mixed_call(trace, call, seen, source)
    if ".step(" in source.line(seen.lines[0].line) and trace.optimizers:
        optimizer = trace.optimizers[-1]
        what = f"{optimizer.name} keeps its state on the CPU, and the parameters are on the GPU by now."
        return source.failure("optimizer-elsewhere", optimizer.made, what)
    behind = {name: about for name, about in seen.tensors.items() if about[0] == "cpu" and about[2]}
    labels = [name for name, (_, dtype, shape) in behind.items() if "int" in dtype and len(shape) == 1]
    if len(labels) == 1:
        what = f"“{labels[0]}” is on the CPU, and it meets the model's answers, which are on the GPU."
        return source.failure("labels-on-cpu", seen.site, what)
    listed = "; ".join(f"{name} on {device}" for name, (device, _, _) in seen.tensors.items())
    what = f"Tensors of two devices met on this line{': ' + listed if listed else ''}."
    return source.failure("two-devices", seen.site, what)


def _mixed_loss(trace: Trace, loss: LossSeen, source: Source) -> Finding:
    if loss.input_on == "cpu":
        return _model_on_cpu(trace, loss.site, source, "The model answered on the CPU")
    if loss.target_on == "cpu":
        what = f"The model's answers were on {loss.input_on}, the labels on cpu."
        return source.failure("labels-on-cpu", loss.site, what)
    if loss.weight_on == "cpu":
        what = f"Answers and labels were on {loss.input_on}, the weights of the loss function on cpu."
        return source.failure("loss-weights-on-cpu", loss.made if loss.made.line else loss.site, what)
    return source.failure("two-devices", loss.site, "The tensors of this loss were on two devices.")


def _mixed_call(trace: Trace, call: CallSeen, seen: ErrorSeen, source: Source) -> Finding:
    model = trace.models[call.model]
    if call.input_on == "cpu" and "cpu" not in call.model_on:
        what = f"The inputs were on cpu, the parameters of {model.name} on {call.model_on[0]}."
        return source.failure("inputs-on-cpu", call.site, what)
    if call.model_on == ["cpu"]:
        return _model_on_cpu(trace, call.site, source, f"The inputs were on {call.input_on}", model)
    if trace.made_inside:
        what = (
            f"Inside the model a tensor was made on the CPU, and line {seen.site.line} needed it on the GPU."
        )
        return source.failure("cpu-tensor-in-forward", trace.made_inside[-1], what)
    if len(call.model_on) > 1:
        what = f"Parts of {model.name} were on {' and '.join(call.model_on)}."
        return source.failure("model-on-cpu", model.made, what)
    what = f"Input and parameters of {model.name} were on {call.input_on}, and something inside was not."
    return source.failure("two-devices", seen.site, what)


def _model_on_cpu(
    trace: Trace, site: Site, source: Source, what: str, model: ModelSeen | None = None
) -> Finding:
    model = model or (trace.models[-1] if trace.models else None)
    name = "the model" if model is None else f"{model.name}, made here,"
    made = site if model is None or not model.made.line else model.made
    return source.failure("model-on-cpu", made, f"{what}, and {name} was on cpu.")


def devices(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what trained on the CPU although a GPU was there."""
    for model in trace.models:
        if model.stepped and any(
            call.trained and call.model_on == ["cpu"] and trace.models[call.model] is model
            for call in trace.calls
        ):
            what = f"All of the training ran on the CPU: {model.name}, made here, was never moved to the GPU."
            yield source.failure("model-on-cpu", model.made, what)
            return
    for call in trace.calls:
        model = trace.models[call.model]
        if not call.trained and call.finished and call.model_on == ["cpu"] and model.stepped:
            yield source.advice("evaluated-on-cpu", call.site, f"{model.name} was judged on the CPU.")
            return
    for optimizer in trace.optimizers:
        if optimizer.steps and optimizer.made_on == ["cpu"] and optimizer.params_on != ["cpu"]:
            what = f"{optimizer.name} was made while its parameters were on cpu; they were moved later."
            yield source.advice("optimizer-before-move", optimizer.made, what)


def steps(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what is wrong with zero_grad, backward and step."""
    for optimizer in trace.optimizers:
        if optimizer.strange and trace.backwards and (optimizer.steps or len(trace.optimizers) == 1):
            what = (
                f"{optimizer.name} took {optimizer.steps} steps, and none of its parameters belongs to the "
                "model that was trained."
            )
            yield source.failure("optimizer-elsewhere", optimizer.made, what)
        elif optimizer.zeroed_late > optimizer.steps / 2:
            what = f"In {optimizer.zeroed_late} of {optimizer.steps} steps the gradients were gone by then."
            yield source.failure("zero-grad-after-backward", optimizer.zeroed_at, what)
        if optimizer.accumulated > max(1, optimizer.steps / 2):
            what = (
                f"In {optimizer.accumulated} of {optimizer.steps} steps, backward() added to gradients that "
                "an earlier step had used already."
            )
            yield source.failure("missing-zero-grad", optimizer.accumulated_at, what)


def training(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether there was a training at all, and whether the loss fell."""
    if trace.error is not None:
        return
    made = trace.optimizers[-1].made if trace.optimizers else Site()
    if not trace.backwards:
        yield source.failure("no-backward", made, "No gradient was computed: backward() was never called.")
    elif not trace.steps:
        what = f"backward() was called {trace.backwards} times, and no optimizer took a step."
        yield source.failure("no-step", made, what)


def falling(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether the loss fell; asked only when nothing else is wrong."""
    where = trace.losses[0].site if trace.losses else Site()
    if trace.backwards > len(trace.values) < 100_000:
        count = trace.backwards - len(trace.values)
        yield source.failure("loss-not-finite", where, f"In {count} steps the loss was not a finite number.")
    elif len(trace.values) >= 4:
        first, last = reading.ends(trace.values)
        if not last < first or last > 2 * trace.values[0]:
            what = (
                f"The loss was {trace.values[0]:.4g} in the first step, {first:.4g} in the first tenth of "
                f"the steps, and {last:.4g} in the last."
            )
            yield source.failure("loss-not-falling", where, what)


def modes(trace: Trace, source: Source, always: bool) -> Iterator[Finding]:
    """Say where a model was in the wrong mode; without `always`, only where its layers make a difference."""
    for kind, trained in (("missing-eval", False), ("missing-train", True)):
        for call in trace.calls:
            model = trace.models[call.model]
            judged_or_trained = call.trained == trained and call.finished and call.last_step > 0
            if judged_or_trained and model.stepped and call.training != trained and (always or model.moody):
                doing = "trained in evaluation mode" if trained else "judged in training mode"
                what = f"{model.name} was {doing}, in {call.count} calls on this line."
                yield source.failure(kind, call.site, what)
                break


def answers(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what is wrong with what the model returns, and with how it is read."""
    for loss in trace.losses:
        if loss.softmaxed:
            site = loss.softmax_at if loss.softmax_at.line else loss.site
            what = (
                f"The rows that cross_entropy got on line {loss.site.line} were probabilities already: none "
                "negative, and each row adds up to 1."
            )
            yield source.failure("softmax-before-cross-entropy", site, what)
            break
    for wrong in trace.argmaxes:
        along = "over all dimensions" if wrong.dim is None else f"along dimension {wrong.dim}"
        what = f"The largest value of an output of shape {wrong.shape} was looked for {along}."
        yield source.failure("argmax-dimension", wrong.site, what)
        break


def memory(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what is kept or fetched too often."""
    for loss in trace.losses:
        if loss.kept >= 4:
            what = f"At one time {loss.kept} losses of earlier steps were alive, each with its history."
            yield source.failure("losses-kept", reading.keeping_line(source.lines, loss.site.line), what)
            break
    for read in trace.reads:
        if trace.steps >= 10 and read.steps > trace.steps / 2 and read.site.line:
            what = f"{read.call} made the CPU wait in {read.steps} of {trace.steps} training steps."
            yield source.advice("item-every-step", read.site, what)
    if any(call.grad and not call.trained and call.last_step > 0 for call in trace.calls):
        call = next(call for call in trace.calls if call.grad and not call.trained and call.last_step > 0)
        what = f"{call.count} calls of the model kept a history that no backward() ever used."
        yield source.advice("gradients-while-judging", call.site, what)


def ending(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say that the program ended itself with a status other than 0."""
    if trace.status == "exit" and trace.exit_code:
        what = f"The program ended itself with status {trace.exit_code}."
        yield source.failure("exited", trace.exit_at, what)
