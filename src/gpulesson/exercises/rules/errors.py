"""The errors that learners meet most: what PyTorch says, what it means, and the remedy."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import slices, source_text, way_back
from gpulesson.exercises.rules.steps import STEP_BEFORE_BACKWARD
from gpulesson.exercises.trace import ErrorSeen

PAGE = "More: the page “Error messages”."

Line = Callable[[Sequence[str], int], int]
"""Returns the line to change, from the learner's lines and the line of the error; 0 if it is the same."""


class Known(NamedTuple):
    """An error with a known cause.

    Attributes
    ----------
    pattern : str
        Of the message, with the type before it: ``"RuntimeError: …"``.
    what : str
        What happened; the groups of the pattern may stand in it: ``{0}``, ``{1}``.
    diagnosis : Diagnosis
    line : callable, optional
        Where the cause is, if it is not where the error was.
    """

    pattern: str
    what: str
    diagnosis: Diagnosis
    line: Line | None = None


def _diagnosis(kind: str, why: str, remedy: str) -> Diagnosis:
    return Diagnosis(kind, why, f"{remedy} {PAGE}")


LOGITS_COMPARED = _diagnosis(
    "logits-compared",
    "The model gives one score for each class, but a label is the number of one class. So turn the "
    "scores into a class first.",
    "Compare the class with the largest score: model(inputs).argmax(dim=1) == targets.",
)
GRADIENTS_OFF = _diagnosis(
    "gradients-off",
    "backward() follows the history of the loss. Nothing is recorded inside no_grad() or "
    "inference_mode(), nor through detach() or argmax().",
    "Compute the training loss outside of no_grad() and inference_mode(), from the model's own answers. "
    "Keep both for the evaluation.",
)
LOSS_WITHOUT_HISTORY = _diagnosis(
    "loss-without-history",
    "backward() follows how the loss was computed. item(), float() and detach() give only the number.",
    "Call backward() on the loss itself, and use loss.item() only to print it.",
)
ANSWERS_WITHOUT_HISTORY = _diagnosis(
    "answers-without-history",
    "argmax(), round(), a conversion to integers, detach() and .data give numbers without a history. So "
    "backward() finds no way from the loss to the weights.",
    "Give the loss the model's own answers: loss_fn(model(inputs), targets). Keep argmax() for the "
    "evaluation.",
)
FLOAT_LABELS = _diagnosis(
    "float-labels",
    "CrossEntropyLoss takes class numbers as labels: integers of the type int64, which PyTorch also "
    "calls Long.",
    "Convert the labels: targets = targets.long().",
)
DOUBLE_AND_FLOAT = _diagnosis(
    "double-and-float",
    "NumPy computes in float64 (“Double”), a PyTorch model in float32 (“Float”). One operation needs one "
    "type.",
    "Make both float32: torch.tensor(X, dtype=torch.float32), or X.float() for a tensor.",
)
LOSS_ARGUMENTS_SWAPPED = _diagnosis(
    "loss-arguments-swapped",
    "A loss function takes the model's answers first, then the labels.",
    "Swap them: loss_fn(outputs, targets).",
)
NOTHING_RETURNED = _diagnosis(
    "nothing-returned",
    "A Python function without a return gives None, so the model's answer is None.",
    "Put return in front of the last line of forward.",
)
UNKNOWN_DEVICE = _diagnosis(
    "unknown-device",
    "PyTorch calls the GPU “cuda” (NVIDIA and AMD), “mps” (Apple) or “xpu” (Intel). There is no “gpu”.",
    "Let the program choose: from gpulesson.device import choose_device, then device = choose_device().",
)
DEVICE_NOT_THERE = _diagnosis(
    "device-not-there",
    "GPUs are counted from 0: with one GPU there is only cuda:0.",
    'Write "cuda:0", or let the program choose: from gpulesson.device import choose_device, then device '
    "= choose_device().",
)
SHAPES_DO_NOT_FIT = _diagnosis(
    "shapes-do-not-fit",
    "In a product, the second number of the first shape must equal the first number of the second. For a "
    "Linear layer: the length of an input row must equal in_features.",
    "Look at the input with print(x.shape), then change in_features, or flatten images first: x.flatten(1).",
)
SIZES_DIFFER = _diagnosis(
    "sizes-differ",
    "Tensors that are added, multiplied or compared need the same length along each dimension. Only a "
    "length of 1 fits all others.",
    "Print both shapes just before this line: print(a.shape, b.shape).",
)
BATCH_SIZES_DIFFER = _diagnosis(
    "batch-sizes-differ",
    "The loss compares each answer with its own label, so it needs as many labels as answers.",
    "Take inputs and targets from the same batch. Before the loss, print(outputs.shape, targets.shape).",
)
LABEL_OUT_OF_RANGE = _diagnosis(
    "label-out-of-range",
    "A model with ten outputs knows the classes 0 to 9: one output for each class, counted from 0.",
    "Look at print(targets.min(), targets.max()). Then give the last layer more outputs, or count the "
    "labels from 0.",
)
BACKWARD_TWICE = _diagnosis(
    "backward-twice",
    "The first backward() frees the history of the loss, so a second one through the same history fails.",
    "Compute a new loss in every step. For a sum of losses, add loss.detach().",
)
FORWARD_OUTSIDE_LOOP = _diagnosis(
    "backward-twice",
    "The first backward() frees the history of the model's answers. Every step needs new ones, from the "
    "changed weights.",
    "Call the model inside the loop, in every step, and compute the loss from that: "
    "loss = loss_fn(model(inputs), targets).",
)
NUMPY_NEEDS_DETACH = _diagnosis(
    "numpy-needs-detach",
    "The tensor keeps the history of how it was computed, and a NumPy array cannot.",
    "Drop the history first: tensor.detach().cpu().numpy(). Or evaluate inside torch.inference_mode().",
)
NO_GPU_HERE = _diagnosis(
    "no-gpu-here",
    "The program asks for a GPU, and PyTorch finds none that it can use on this machine.",
    "Let the program choose: from gpulesson.device import choose_device, then device = choose_device().",
)
OUT_OF_DEVICE_MEMORY = _diagnosis(
    "out-of-device-memory",
    "All tensors on the GPU must fit into its memory together.",
    "Use smaller batches, keep loss.detach() instead of loss, and evaluate inside torch.inference_mode().",
)
STATE_DOES_NOT_FIT = _diagnosis(
    "state-does-not-fit",
    "load_state_dict() needs a model with the same layers, with the same names and shapes, as the saved one.",
    "Build the same model. If the file holds several states, load the one that the model gave.",
)
TRUTH_OF_MANY = _diagnosis(
    "truth-of-many",
    "A tensor of many values is neither true nor false, and it is not one number.",
    "Make it one number first: .all(), .any(), .sum() or .mean(). A loss class must be made before it is "
    "called: loss_fn = torch.nn.CrossEntropyLoss().",
)
ONLY_TENSORS_MOVE = _diagnosis(
    "only-tensors-move",
    "Only tensors and modules have .to(device). Lists, tuples, NumPy arrays and loaders do not.",
    "Move what is inside: each tensor of a list, or each batch in the loop.",
)
INFERENCE_TENSOR = _diagnosis(
    "gradients-off",
    "A tensor that was made inside inference_mode() cannot be used for training.",
    "Make the data and the model outside of inference_mode(), and put only the evaluation inside.",
)
NOT_PLAIN = _diagnosis(
    "not-plain",
    "With weights_only=True, torch.load() reads tensors, numbers, texts, lists and dictionaries, and no "
    "other objects. So a file cannot run code on your machine.",
    "Save plain values: optimizer.state_dict() with parentheses, not the optimizer or the model itself; "
    "str(path) for a path.",
)
UNEQUAL_SIZES = _diagnosis(
    "unequal-sizes",
    "Tensors that are put together in one batch must have the same shape.",
    "Print the shapes of the parts. Fill up or cut the shorter ones, or pass a collate_fn of your own.",
)
COLLATE_MISSING = _diagnosis(
    "collate-missing",
    "__getitems__ returns a whole batch already. By default, the loader takes what it returns for a list of "
    "samples, and tries to stack them.",
    "Tell it to leave the batch as it is: DataLoader(…, collate_fn=lambda batch: batch).",
)
CHANGED_IN_PLACE = _diagnosis(
    "changed-in-place",
    "backward() needs the numbers of the way forward as they were. Something has overwritten one of them.",
    "Write x = x + 1 instead of x += 1, and take no method whose name ends in “_” on the way to the loss.",
)


def _loader_of_batches(lines: Sequence[str], line: int) -> int:
    """Return the line of the loader of a dataset that fetches whole batches; 0 if there is none."""
    if not source_text.first_line(lines, r"def __getitems__\("):
        return 0
    return source_text.first_line(lines, r"\bDataLoader\(")


def _saving(lines: Sequence[str], line: int) -> int:
    """Return the line that saves, where there is only one."""
    found = [number for number, text in enumerate(lines, 1) if "torch.save(" in text]
    return found[0] if len(found) == 1 else 0


CATALOGUE = (
    Known(
        r"Weights only load failed",
        "The file that was saved holds more than tensors and plain values.",
        NOT_PLAIN,
        _saving,
    ),
    Known(
        r"stack expects each tensor to be equal size, but got (\[.*?\]) at entry 0 and (\[.*?\])",
        "Tensors of the shapes {0} and {1} were to become one batch.",
        UNEQUAL_SIZES,
        _loader_of_batches,
    ),
    Known(
        r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)",
        "This line compares tensors of lengths {0} and {1}; expected predicted classes and labels.",
        LOGITS_COMPARED,
    ),
    Known(
        r"element 0 of tensors does not require grad",
        "The loss has no history, so backward() cannot compute gradients.",
        GRADIENTS_OFF,
    ),
    Known(
        r"Inference tensors cannot be saved",
        "The training used a tensor that was made inside inference_mode().",
        INFERENCE_TENSOR,
        source_text.gradients_off,
    ),
    Known(
        r"AttributeError: '(float|int|list|numpy\.float\d+)' object has no attribute 'backward'",
        "backward() was called on a value of type {0}, not on the loss tensor.",
        LOSS_WITHOUT_HISTORY,
        source_text.history_cut,
    ),
    Known(
        r"expected target dtype to be Long or Byte, but got (Float|Double|Half)"
        r"|expected scalar type Long but found",
        "The loss got labels of the wrong type; expected int64 (Long).",
        FLOAT_LABELS,
    ),
    Known(
        r"softmax\w*\" not implemented for '(?:Long|Int)'"
        r"|Expected floating point type for target with class probabilities",
        "The loss got integers, such as labels, where it expects the model's answers.",
        LOSS_ARGUMENTS_SWAPPED,
    ),
    Known(
        r"must have the same dtype, but got (Double|Float) and (Double|Float)"
        r"|expected scalar type (Float|Double) but found (?:Double|Float)"
        r"|Found dtype (Double|Float) but expected (?:Double|Float)",
        "This operation got both float64 (“Double”) and float32 (“Float”).",
        DOUBLE_AND_FLOAT,
        lambda lines, line: source_text.doubles_made(lines),
    ),
    Known(
        r"must be Tensor, not NoneType|'NoneType' object has no attribute",
        "forward returns nothing; expected the model's answer.",
        NOTHING_RETURNED,
        lambda lines, line: source_text.forward_without_return(lines),
    ),
    Known(
        r"device type at start of device string: (\S+)|Invalid device string: '?(\S+?)'?$",
        "PyTorch knows no device of that name.",
        UNKNOWN_DEVICE,
        lambda lines, line: source_text.literal_device(lines, r"(gpu|GPU|nvidia|Cuda|CUDA)"),
    ),
    Known(
        r"invalid device ordinal|is not there", "The program names a GPU that is not there.", DEVICE_NOT_THERE
    ),
    Known(
        r"shapes cannot be multiplied \((\d+x\d+) and (\d+x\d+)\)",
        "The shapes {0} and {1} cannot be multiplied.",
        SHAPES_DO_NOT_FIT,
    ),
    Known(
        r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)",
        "This operation got tensors of different lengths: {0} and {1}.",
        SIZES_DIFFER,
    ),
    Known(
        r"Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)",
        "The loss got {0} answers, but {1} labels.",
        BATCH_SIZES_DIFFER,
    ),
    Known(
        r"Target (-?\d+) is out of bounds|device-side assert",
        "A label is larger than the last class, or negative.",
        LABEL_OUT_OF_RANGE,
    ),
    Known(
        r"backward through the graph a second time",
        "backward() went through the same history twice.",
        BACKWARD_TWICE,
    ),
    Known(
        r"modified by an inplace operation",
        "A value that backward() needs was changed after the loss had been computed.",
        CHANGED_IN_PLACE,
        source_text.step_before,
    ),
    Known(
        r"Can't call numpy\(\) on Tensor that requires grad",
        "This line makes a NumPy array from a tensor that still has its history.",
        NUMPY_NEEDS_DETACH,
    ),
    Known(
        r"no NVIDIA driver|not compiled with CUDA|No CUDA GPUs are available",
        "The program asked for a GPU; PyTorch found none.",
        NO_GPU_HERE,
    ),
    Known(r"CUDA out of memory", "The GPU's memory is full.", OUT_OF_DEVICE_MEMORY),
    Known(r"loading state_dict for (\w+)", "The saved state does not fit this {0}.", STATE_DOES_NOT_FIT),
    Known(
        r"Boolean value of Tensor with more than one value|only one element tensors"
        r"|cannot be converted to Scalar",
        "A tensor of many values was used where one value is needed.",
        TRUTH_OF_MANY,
    ),
    Known(
        r"'(list|tuple|dict|numpy\.ndarray|DataLoader|TensorDataset)' object has no attribute '(?:to|cuda)'",
        "This line tries to move a {0} to a device.",
        ONLY_TENSORS_MOVE,
    ),
)
"""The errors, the more particular ones first."""


def first_line(message: str) -> str:
    """Return what a message begins with: without colours, and without advice to load what is not safe."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", message).strip()
    if plain.startswith("Weights only load failed"):
        found = re.search(r"Unsupported \w+: \w+ [\w.]+|Unsupported operand \w+", plain)
        return f"Weights only load failed. {found[0] if found else ''}".strip()
    return plain.split("\n")[0] or "(no message)"


def known(seen: ErrorSeen, source: Source) -> Finding | None:
    """Return what an error of the catalogue means; None for any other."""
    said = f"{seen.type}: {seen.message}"
    for entry in CATALOGUE:
        match = re.search(entry.pattern, said)
        if match is None:
            continue
        message = textwrap.shorten(f"{seen.type}: {first_line(seen.message)}", 200, placeholder=" …")
        around = " ".join(source.lines[max(0, seen.site.line - 2) : seen.site.line + 1])
        if entry.diagnosis is LOGITS_COMPARED and not re.search(r"[=!]=|\.(eq|ne|equal)\(|accuracy", around):
            continue
        diagnosis, line = entry.diagnosis, entry.line and entry.line(source.lines, seen.site.line)
        what = entry.what
        if diagnosis is GRADIENTS_OFF:
            diagnosis, line, what = _without_gradients(seen, source, what)
        if diagnosis is BACKWARD_TWICE and (line := way_back.before_the_loop(source.lines, seen.site.line)):
            diagnosis = FORWARD_OUTSIDE_LOOP
            loop = source.where(source_text.innermost_loop(source.lines, seen.site.line))
            what = (
                f"This line calls the model once, before the loop on {loop}. In the loop, backward() went "
                "through the same history twice."
            )
        if diagnosis is NOTHING_RETURNED and not line:
            continue
        if diagnosis is CHANGED_IN_PLACE and line:
            diagnosis = STEP_BEFORE_BACKWARD
        if diagnosis is UNEQUAL_SIZES and line:
            diagnosis = COLLATE_MISSING
        groups = [group for group in match.groups() if group]
        return source.failure(diagnosis, line or seen.site, f"{what.format(*groups)} PyTorch says: {message}")
    return None


def _without_gradients(seen: ErrorSeen, source: Source, what: str) -> tuple[Diagnosis, int, str]:
    """Say why a loss has no history: no gradients there, the answers lost theirs, or the loss did."""
    lines, site = source.lines, seen.site.line
    behind = {each.lineno for each in slices.back(lines, site)} | {each.line for each in seen.lines}
    if off := source_text.gradients_off(lines, site, behind):
        return GRADIENTS_OFF, off, what
    line, how = way_back.cut(lines, site)
    if line:
        what = f"The loss was computed from the result of {how}, which has no history."
        return ANSWERS_WITHOUT_HISTORY, line, what
    if cut := source_text.history_cut(lines, site):
        return LOSS_WITHOUT_HISTORY, cut, what
    return GRADIENTS_OFF, 0, what
