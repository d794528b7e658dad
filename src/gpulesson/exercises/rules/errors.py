"""The errors that learners meet most: what PyTorch says, what it means, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import source_text
from gpulesson.exercises.rules.steps import STEP_BEFORE_BACKWARD
from gpulesson.exercises.trace import ErrorSeen

PAGE = "The course's page “Error messages” lists this one."

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
    "The model answers with one score per class. The label is the number of one class, so the scores must "
    "become a class first.",
    "Take the class with the largest score: model(inputs).argmax(dim=1) == targets.",
)
GRADIENTS_OFF = _diagnosis(
    "gradients-off",
    "Inside no_grad() or inference_mode() nothing is remembered, so backward() has nothing to follow. They "
    "are for the evaluation.",
    "Train with gradients on; put only the evaluation inside torch.inference_mode().",
)
LOSS_WITHOUT_HISTORY = _diagnosis(
    "loss-without-history",
    "backward() follows how the loss was computed. item(), float() and detach() give the number alone.",
    "Call backward() on the loss itself, and take loss.item() only to print it.",
)
FLOAT_LABELS = _diagnosis(
    "float-labels",
    "CrossEntropyLoss takes the number of each sample's class, and class numbers are integers.",
    "Make the labels integers: torch.tensor(y), or targets.long().",
)
DOUBLE_AND_FLOAT = _diagnosis(
    "double-and-float",
    "NumPy computes in float64 (“Double”), a PyTorch model in float32 (“Float”). One operation needs one "
    "type.",
    "Make both float32: torch.tensor(…, dtype=torch.float32), or .float() where the tensor is there already.",
)
LOSS_ARGUMENTS_SWAPPED = _diagnosis(
    "loss-arguments-swapped",
    "A loss function takes the model's answers first, then the labels.",
    "Swap them: loss_fn(outputs, targets).",
)
NOTHING_RETURNED = _diagnosis(
    "nothing-returned",
    "A Python function without a return gives None, so the model's answer is None.",
    "Begin the last line of forward with return.",
)
UNKNOWN_DEVICE = _diagnosis(
    "unknown-device",
    "PyTorch calls the GPU “cuda” (NVIDIA, and AMD), “mps” (Apple) or “xpu” (Intel). There is no “gpu”.",
    "Let the program choose: gpulesson.device.choose_device(), or “cuda” if torch.cuda.is_available().",
)
DEVICE_NOT_THERE = _diagnosis(
    "device-not-there",
    "GPUs are counted from 0: with one GPU there is only cuda:0.",
    "Write “cuda” or “cuda:0”, or let gpulesson.device.choose_device() choose.",
)
SHAPES_DO_NOT_FIT = _diagnosis(
    "shapes-do-not-fit",
    "A linear layer takes rows that are as long as its in_features. The second number of the first shape and "
    "the first number of the second shape must be equal.",
    "Compare the layer's sizes with the length of a row of its input; print(x.shape) shows it.",
)
SIZES_DIFFER = _diagnosis(
    "sizes-differ",
    "Two tensors that are added, multiplied or compared have the same length along every dimension, or one "
    "of them has length 1 there.",
    "Print both shapes just before this line.",
)
BATCH_SIZES_DIFFER = _diagnosis(
    "batch-sizes-differ",
    "A loss compares one answer with one label: there must be as many of both.",
    "Take inputs and targets from the same batch, and print both shapes before the loss.",
)
LABEL_OUT_OF_RANGE = _diagnosis(
    "label-out-of-range",
    "With C scores a sample, the labels go from 0 to C − 1.",
    "Give the last layer one output per class, and count the labels from 0; print(targets.max()) shows the "
    "largest.",
)
BACKWARD_TWICE = _diagnosis(
    "backward-twice",
    "The history of a loss is freed by the first backward(). A second one through the same history fails.",
    "Compute the loss anew in every step, and keep sums with loss.detach().",
)
NUMPY_NEEDS_DETACH = _diagnosis(
    "numpy-needs-detach",
    "The tensor still remembers how it was computed, and NumPy cannot keep that.",
    "Leave autograd first: tensor.detach().cpu().numpy(); or evaluate inside torch.inference_mode().",
)
NO_GPU_HERE = _diagnosis(
    "no-gpu-here",
    "This machine has no GPU that this PyTorch can use, and the program asks for one.",
    "Let the program choose: gpulesson.device.choose_device() takes the GPU if there is one.",
)
OUT_OF_DEVICE_MEMORY = _diagnosis(
    "out-of-device-memory",
    "Everything that is alive on the GPU must fit into its memory together.",
    "Take smaller batches, keep loss.detach() instead of loss, and evaluate inside torch.inference_mode().",
)
STATE_DOES_NOT_FIT = _diagnosis(
    "state-does-not-fit",
    "load_state_dict fits names and shapes. It needs a model that was built in the same way, and the model's "
    "own part of the checkpoint.",
    "Build the same model; if the file holds a dictionary, load its part: checkpoint[“model”].",
)
TRUTH_OF_MANY = _diagnosis(
    "truth-of-many",
    "A tensor of many values is neither true nor false, and it is not one number.",
    "Reduce it first: .all(), .any(), .sum() or .mean(). If it is a loss class, make the object first: "
    "loss_fn = torch.nn.CrossEntropyLoss(), then loss_fn(outputs, targets).",
)
ONLY_TENSORS_MOVE = _diagnosis(
    "only-tensors-move",
    "Tensors and modules have .to(device). Lists, tuples, NumPy arrays and loaders do not.",
    "Move what is inside: each tensor of a list, or each batch inside the loop.",
)
INFERENCE_TENSOR = _diagnosis(
    "gradients-off",
    "A tensor that was made inside inference_mode() takes no part in a training.",
    "Make the data and the model outside of inference_mode(), and put only the evaluation inside.",
)
CHANGED_IN_PLACE = _diagnosis(
    "changed-in-place",
    "backward() needs the numbers of the way forward as they were. Something has overwritten one of them.",
    "Write x = x + 1 instead of x += 1, and take no method whose name ends in “_” on the way to the loss.",
)


CATALOGUE = (
    Known(
        r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)",
        "Scores were compared with labels: {0} against {1} along a dimension.",
        LOGITS_COMPARED,
    ),
    Known(
        r"element 0 of tensors does not require grad",
        "backward() found no history: the loss was computed while gradients were off.",
        GRADIENTS_OFF,
        source_text.gradients_off,
    ),
    Known(
        r"Inference tensors cannot be saved",
        "The training met a tensor that was made inside inference_mode().",
        INFERENCE_TENSOR,
        source_text.gradients_off,
    ),
    Known(
        r"AttributeError: '(float|int|list|numpy\.float\d+)' object has no attribute 'backward'",
        "backward() was called on a Python {0}, not on the loss.",
        LOSS_WITHOUT_HISTORY,
        source_text.history_cut,
    ),
    Known(
        r"expected target dtype to be Long or Byte, but got (Float|Double|Half)"
        r"|expected scalar type Long but found",
        "The loss got labels that are no integers.",
        FLOAT_LABELS,
    ),
    Known(
        r"softmax\w*\" not implemented for '(?:Long|Int)'"
        r"|Expected floating point type for target with class probabilities",
        "The loss got class numbers where it expects the model's answers.",
        LOSS_ARGUMENTS_SWAPPED,
    ),
    Known(
        r"must have the same dtype, but got (Double|Float) and (Double|Float)"
        r"|expected scalar type (Float|Double) but found (?:Double|Float)"
        r"|Found dtype (Double|Float) but expected (?:Double|Float)",
        "Numbers of type Double (float64) met numbers of type Float (float32).",
        DOUBLE_AND_FLOAT,
        lambda lines, line: source_text.doubles_made(lines),
    ),
    Known(
        r"must be Tensor, not NoneType|'NoneType' object has no attribute",
        "Something is None where a tensor was expected.",
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
        r"invalid device ordinal|is not there", "The program named a GPU that is not there.", DEVICE_NOT_THERE
    ),
    Known(
        r"shapes cannot be multiplied \((\d+x\d+) and (\d+x\d+)\)",
        "The input of a layer has the shape {0}, and its weights are made for {1}.",
        SHAPES_DO_NOT_FIT,
    ),
    Known(
        r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)",
        "Two tensors of different lengths, {0} and {1}, met in one operation.",
        SIZES_DIFFER,
    ),
    Known(
        r"Expected input batch_size \((\d+)\) to match target batch_size \((\d+)\)",
        "The loss got {0} answers and {1} labels.",
        BATCH_SIZES_DIFFER,
    ),
    Known(
        r"Target (-?\d+) is out of bounds|device-side assert",
        "A label is larger than the number of the last class, or negative.",
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
        "A tensor that needs gradients was asked for a NumPy array.",
        NUMPY_NEEDS_DETACH,
    ),
    Known(
        r"no NVIDIA driver|not compiled with CUDA|No CUDA GPUs are available",
        "The program asked for a GPU, and there is none.",
        NO_GPU_HERE,
    ),
    Known(r"CUDA out of memory", "The GPU's memory is full.", OUT_OF_DEVICE_MEMORY),
    Known(r"loading state_dict for (\w+)", "The saved state does not fit this {0}.", STATE_DOES_NOT_FIT),
    Known(
        r"Boolean value of Tensor with more than one value|only one element tensors"
        r"|cannot be converted to Scalar",
        "A tensor of many values stands where one value is needed.",
        TRUTH_OF_MANY,
    ),
    Known(
        r"'(list|tuple|dict|numpy\.ndarray|DataLoader|TensorDataset)' object has no attribute '(?:to|cuda)'",
        "A {0} was asked to move to a device.",
        ONLY_TENSORS_MOVE,
    ),
)
"""The errors, the more particular ones first."""


def known(seen: ErrorSeen, source: Source) -> Finding | None:
    """Return what an error of the catalogue means; None for any other."""
    said = f"{seen.type}: {seen.message}"
    for entry in CATALOGUE:
        match = re.search(entry.pattern, said)
        if match is None:
            continue
        message = said.strip().split("\n")[0][:200]
        around = " ".join(source.lines[max(0, seen.site.line - 2) : seen.site.line + 1])
        if entry.diagnosis is LOGITS_COMPARED and not re.search(r"[=!]=|\.(eq|ne|equal)\(|accuracy", around):
            continue
        diagnosis, line = entry.diagnosis, entry.line and entry.line(source.lines, seen.site.line)
        cut = source_text.history_cut(source.lines, seen.site.line)
        if diagnosis is GRADIENTS_OFF and cut and not line:
            diagnosis, line = LOSS_WITHOUT_HISTORY, cut
        if diagnosis is NOTHING_RETURNED and not line:
            continue
        if diagnosis is CHANGED_IN_PLACE and line:
            diagnosis = STEP_BEFORE_BACKWARD
        groups = [group for group in match.groups() if group]
        return source.failure(
            diagnosis, line or seen.site, f"{entry.what.format(*groups)} PyTorch says: {message}"
        )
    return None
