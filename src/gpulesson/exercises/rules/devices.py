"""Rules: where the model, the batches, the loss and the optimizer were."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import slices, source_text
from gpulesson.exercises.trace import CallSeen, ErrorSeen, LossSeen, ModelSeen, Site, Trace

MODEL_ON_CPU = Diagnosis(
    "model-on-cpu",
    "A GPU computes only with what is in its memory. A model is made on the CPU and stays there until "
    "you move it.",
    "Move it once, before you make the optimizer: model.to(device).",
)
INPUTS_ON_CPU = Diagnosis(
    "inputs-on-cpu",
    "The model's weights are on the GPU, and a layer needs its inputs on the same device.",
    "Move the inputs before you call the model: inputs = inputs.to(device). Without the assignment "
    "nothing moves.",
)
LABELS_ON_CPU = Diagnosis(
    "labels-on-cpu",
    "The model's answers are on the GPU, and they are compared with the labels. Both must be on one device.",
    "Move both parts of a batch: inputs, targets = inputs.to(device), targets.to(device).",
)
LOSS_WEIGHTS_ON_CPU = Diagnosis(
    "loss-weights-on-cpu",
    "The loss function computes with its class weights, so they must be where the model's answers are.",
    "Move the loss function as you move a model: loss_fn.to(device).",
)
OPTIMIZER_ELSEWHERE = Diagnosis(
    "optimizer-elsewhere",
    "An optimizer changes only the parameters that it was given, and keeps its state where they were. "
    "Both must belong to the trained model, on its device.",
    "Keep the order: make the model, move it, then make the optimizer from that same model's parameters().",
)
OPTIMIZER_BEFORE_MOVE = Diagnosis(
    "optimizer-before-move",
    "Most optimizers work in this order, too. Some, such as Adagrad, have already made their state on "
    "the CPU, and then step() fails.",
    "Swap the two: first model.to(device), then the optimizer.",
)
CPU_TENSOR_IN_FORWARD = Diagnosis(
    "cpu-tensor-in-forward",
    "A tensor that forward makes is on the CPU, wherever the model is.",
    "Make it on the input's device, such as torch.zeros(3, device=x.device). A constant that you "
    "register with register_buffer() moves with the model.",
)
TWO_DEVICES = Diagnosis(
    "two-devices",
    "An operation needs all its tensors on one device. (Only a single number without dimensions may come "
    "from the CPU.)",
    "Print the device of each tensor on this line, then move the one on the CPU: x = x.to(device).",
)
HARD_CODED_CUDA = Diagnosis(
    "hard-coded-cuda",
    "“cuda” works only where PyTorch finds an NVIDIA or AMD GPU. On other machines the program stops.",
    "Choose the device once, and use it everywhere: from gpulesson.device import choose_device, then "
    "device = choose_device().",
)
MOVE_THROWN_AWAY = Diagnosis(
    "move-thrown-away",
    "to() and cuda() return a copy of a tensor, and the tensor itself stays where it is. Only a module moves "
    "in place.",
    "Keep the copy, under the same name, as in x = x.to(device).",
)
DEVICE_IS_CPU = Diagnosis(
    "device-is-cpu",
    "The model goes where the program says, and here it says the CPU.",
    "Let the program choose: from gpulesson.device import choose_device, then device = choose_device().",
)
BRANCHES_SWAPPED = Diagnosis(
    "branches-swapped",
    "The two devices are the wrong way round: with a GPU this takes the CPU, and without one it asks for "
    "a GPU.",
    'Swap the two: "cuda" if torch.cuda.is_available() else "cpu".',
)
EVALUATED_ON_CPU = Diagnosis(
    "evaluated-on-cpu",
    "Moving the model back to the CPU costs a copy, and the CPU is mostly slower.",
    "Leave the model on the GPU, and move the test batches there: inputs.to(device).",
)


def mixed(trace: Trace, seen: ErrorSeen, source: Source) -> Finding:
    """Find out which tensor of a failed operation stayed behind."""
    loss = next((loss for loss in trace.losses if not loss.finished and loss.site in seen.lines), None)
    call = next((call for call in trace.calls if not call.finished and call.site in seen.lines), None)
    if loss is not None:
        return _lost(source, seen, _behind(loss)) or _mixed_loss(trace, loss, source)
    if call is not None:
        return _lost(source, seen, "inputs") or _mixed_call(trace, call, seen, source)
    if ".step(" in source.line(seen.lines[0].line) and trace.optimizers:
        optimizer = trace.optimizers[-1]
        what = f"{optimizer.name} has its state on the CPU, but the parameters are on the GPU now."
        return source.failure(OPTIMIZER_ELSEWHERE, optimizer.made, what)
    if lost := _lost(source, seen, "tensors"):
        return lost
    behind = {name: about for name, about in seen.tensors.items() if about[0] == "cpu" and about[2]}
    labels = [name for name, (_, dtype, shape) in behind.items() if "int" in dtype and len(shape) == 1]
    if len(labels) == 1:
        what = f"“{labels[0]}” is on the CPU, and the model's answers are on the GPU."
        return source.failure(LABELS_ON_CPU, seen.site, what)
    if len(behind) == 1 and len(seen.tensors) > 1:
        name = next(iter(behind))
        before = slices.back(source.lines, seen.site.line)[1:]
        made = next((each.lineno for each in before if name in slices.bound(each)), 0)
        if made:
            where = _capital(source.where(seen.site.line))
            what = f"“{name}”, made here, is on cpu. {where} needs it on the GPU."
            return source.failure(TWO_DEVICES, made, what)
    listed = "; ".join(f"{name} on {device}" for name, (device, _, _) in seen.tensors.items())
    what = f"The tensors on this line are on two devices{': ' + listed if listed else ''}."
    return source.failure(TWO_DEVICES, seen.site, what)


def _behind(loss: LossSeen) -> str:
    """Say what of a loss was on the CPU."""
    places = {"model's answers": loss.input_on, "labels": loss.target_on, "class weights": loss.weight_on}
    return " and ".join(what for what, place in places.items() if place == "cpu") or "tensors"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lost(source: Source, seen: ErrorSeen, what: str) -> Finding | None:
    """Find the copy on the device that nothing keeps, of a tensor that the failing line needs there."""
    behind = {name for name, about in seen.tensors.items() if about[0] == "cpu"}
    for site in seen.lines:
        for each in slices.back(source.lines, site.line)[:12]:
            behind |= slices.bound(each) | slices.read(each)
    line, call = source_text.thrown_away(source.lines, behind)
    if not line:
        return None
    where = source.where(seen.site.line)
    said = f"{call} returns a copy, and nothing keeps it: on {where} the {what} are still on cpu."
    return source.failure(MOVE_THROWN_AWAY, line, said)


def _mixed_loss(trace: Trace, loss: LossSeen, source: Source) -> Finding:
    if loss.input_on == "cpu":
        return _model_on_cpu(trace, loss.site, source, "The loss got a tensor on the GPU")
    if loss.target_on == "cpu":
        what = f"The model's answers were on {loss.input_on}, but the labels on cpu."
        return source.failure(LABELS_ON_CPU, loss.site, what)
    if loss.weight_on == "cpu":
        what = (
            f"Answers and labels were on {loss.input_on}, but the class weights of the loss function on cpu."
        )
        return source.failure(LOSS_WEIGHTS_ON_CPU, loss.made if loss.made.line else loss.site, what)
    return source.failure(TWO_DEVICES, loss.site, "The tensors of this loss were on two devices.")


def _mixed_call(trace: Trace, call: CallSeen, seen: ErrorSeen, source: Source) -> Finding:
    model = trace.models[call.model]
    if call.input_on == "cpu" and "cpu" not in call.model_on:
        what = f"The inputs were on cpu, but the parameters of {model.name} on {call.model_on[0]}."
        return source.failure(INPUTS_ON_CPU, call.site, what)
    if call.model_on == ["cpu"]:
        return _model_on_cpu(trace, call.site, source, f"The inputs were on {call.input_on}", model)
    if trace.made_inside:
        what = (
            "Inside the model a tensor was made on the CPU, and it was needed on the GPU on "
            f"{source.where(seen.site.line)}."
        )
        return source.failure(CPU_TENSOR_IN_FORWARD, trace.made_inside[-1], what)
    if len(call.model_on) > 1:
        what = f"Parts of {model.name} were on {' and '.join(call.model_on)}."
        return source.failure(MODEL_ON_CPU, model.made, what)
    what = f"The inputs and parameters of {model.name} were on {call.input_on}, but another tensor was not."
    return source.failure(TWO_DEVICES, seen.site, what)


def _model_on_cpu(
    trace: Trace, site: Site, source: Source, what: str, model: ModelSeen | None = None
) -> Finding:
    model = model or (trace.models[-1] if trace.models else None)
    name = "the model" if model is None else f"{model.name}, made here,"
    made = site if model is None or not model.made.line else model.made
    return source.failure(MODEL_ON_CPU, made, f"{what}, but {name} was on cpu.")


def _left_on_cpu(trace: Trace, source: Source, model: ModelSeen) -> Finding:
    """Say why a model trained on the CPU: the program has chosen it, or the model was never moved."""
    swapped = source_text.swapped_branches(source.lines)
    literal = source_text.literal_device(source.lines, "cpu")
    what = f"{model.name} was trained on the CPU, although there is a GPU."
    if swapped:
        return source.failure(BRANCHES_SWAPPED, swapped, what)
    if not trace.gpu_named and re.search(r"\.to\(|device=", "\n".join(source.lines)):
        if literal:
            return source.failure(DEVICE_IS_CPU, literal, what)
        if chosen := source_text.choosing_line(source.lines):
            return source.failure(DEVICE_IS_CPU, chosen, f"{what} The condition on this line chose it.")
    made = f"{model.name}, made here, was trained on the CPU, although there is a GPU."
    return source.failure(MODEL_ON_CPU, model.made, made)


def trained_on(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what trained on the CPU although a GPU was there."""
    for model in trace.models:
        if model.stepped and any(
            call.trained and call.model_on == ["cpu"] and trace.models[call.model] is model
            for call in trace.calls
        ):
            yield _left_on_cpu(trace, source, model)
            return
    for call in trace.calls:
        model = trace.models[call.model]
        if not call.trained and call.finished and call.model_on == ["cpu"] and model.stepped:
            yield source.advice(EVALUATED_ON_CPU, call.site, f"{model.name} was evaluated on the CPU.")
            return
    for optimizer in trace.optimizers:
        if optimizer.steps and optimizer.made_on == ["cpu"] and optimizer.params_on != ["cpu"]:
            what = f"{optimizer.name} was made while the model was still on cpu; the model was moved later."
            yield source.advice(OPTIMIZER_BEFORE_MOVE, optimizer.made, what)


def hard_coded(lines: Sequence[str], line: int) -> Diagnosis:
    """Say what to write for “cuda” on a line: the variable that holds the device, where there is one."""
    name = source_text.chosen_device(lines)
    if not name:
        return HARD_CODED_CUDA
    call = ".cuda()" in lines[line - 1] if 0 < line <= len(lines) else False
    instead = f"write .to({name}) for .cuda()" if call else f"write {name} for “cuda”"
    return HARD_CODED_CUDA._replace(
        remedy=f"The device is chosen already, and called {name}: {instead} on this line, too."
    )


def written_down(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say where a device is written down that not every machine has."""
    if line := source_text.literal_device(source.lines, "cuda"):
        what = "This line names “cuda” as the device; expected a device that the program chooses."
        yield source.advice(hard_coded(source.lines, line), line, what)
