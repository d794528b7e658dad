"""What PyTorch's errors mean where a model or a loss meets a batch: found, expected, and the remedy.

PyTorch's errors speak of the operator that failed. Here the same error is told from the batch's side. The
original one is its cause, so that a traceback shows both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpulesson._arguments import described
from gpulesson.device import DeviceError

# Exactly these: subclasses, such as those of "out of memory" and of the compiler, speak for themselves.
RAW = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError)
CLASS_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss, F.cross_entropy, F.nll_loss)
LATER = (
    "the first layer can take them; each later one has to take what the one before gives: correct its sizes"
)
OTHER_DEVICE = (
    "Expected all tensors to be on the same device",
    "is on cpu, different from",
    "is not on the expected device",
)


def _tell(error: Exception, step: int, what: str, remedies: Iterator[str]) -> None:
    """Raise what to read in the place of `error`, from it; return if it says nothing about the batch."""
    if type(error) not in RAW:
        return
    words = str(error).strip().partition("\n")[0]
    if any(text in words for text in OTHER_DEVICE):
        raise DeviceError(
            f"step {step}: {what}: {words}. A tensor that is no parameter and no buffer stays where it was "
            "made: make it with device=inputs.device, or keep it by register_buffer"
        ) from error
    for remedy in remedies:  # the likeliest
        raise ValueError(f"step {step}: {what}: {remedy}. The error was: {words}") from error


def model(error: Exception, step: int, model: Any, inputs: Any) -> None:
    """Explain why the model cannot compute with these inputs."""
    first = _first_layer(model)
    takes = f", and its first layer is {first}" if first is not None else ""
    what = f"the model got {described(inputs)} as inputs{takes}"
    _tell(error, step, what, _model_remedies(error, model, first, inputs))


def _model_remedies(error: Exception, model: Any, first: nn.Module | None, inputs: Any) -> Iterator[str]:
    """Yield what to do, likeliest first."""
    text = str(error)
    if isinstance(getattr(model, "forward", None), type(None)) or 'required "forward"' in text:
        yield "the model's class needs a method forward(self, inputs)"
    if "more than 1 value per channel" in text:
        yield (
            "batch normalisation needs more than one sample in a batch: leave out a short last batch by "
            "drop_last=True, or take another batch size"
        )
    if not isinstance(inputs, Tensor):
        yield (
            "give one tensor, by torch.as_tensor(…) or torch.stack(…), or write a forward that takes such "
            "inputs, which come as one argument"
        )
        return
    if isinstance(error, AttributeError):  # a slip in the model's own code, which Python names best
        return
    if "forward()" in text and "argument" in text:
        yield "forward is called with one argument, the inputs: several go into one tuple or dict"
    weight = next((p for p in (first or nn.Module()).parameters() if p.is_floating_point()), None)
    if isinstance(first, nn.Embedding):
        if inputs.is_floating_point() or inputs.dtype == torch.bool:
            yield "an embedding takes indices: inputs.long()"
        yield f"an embedding takes indices from 0 to {first.num_embeddings - 1}: correct them, or enlarge it"
    elif weight is not None and inputs.dtype != weight.dtype and "type" in text:
        scaled = " / 255 for bytes of images" if inputs.dtype == torch.uint8 else ""
        wanted = str(weight.dtype).removeprefix("torch.")
        yield f"the weights are {wanted}: give inputs.to(torch.{wanted}){scaled}"
    if isinstance(first, nn.Linear):
        size, values = first.in_features, inputs[:1].numel()
        if inputs.shape[-1:] == (size,):
            yield LATER
        if values == size:
            yield f"{size} values a sample are expected in one dimension: give inputs.flatten(1)"
        yield (
            f"{size} values a sample are expected in the last dimension: give such inputs, or begin the "
            f"model with nn.Linear({inputs.shape[-1] if inputs.ndim == 2 else values}, …)"
        )
    if (channels := getattr(first, "in_channels", None)) is not None:
        if inputs.ndim == 4 and inputs.shape[1] == channels:
            yield LATER
        if inputs.ndim == 4 and inputs.shape[-1] == channels:
            yield f"[N, {channels}, height, width] is expected: give inputs.permute(0, 3, 1, 2)"
        if inputs.ndim == 3 and channels == 1:
            yield "[N, 1, height, width] is expected: give inputs.unsqueeze(1)"
        yield f"{channels} channels in dimension 1 are expected: give such inputs, or change in_channels"
    yield "make the inputs' shape and dtype those that the layers expect, or change the layers"


def _first_layer(model: Any) -> nn.Module | None:
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return next((m for m in modules if any(True for _ in m.parameters(recurse=False))), None)


def loss(error: Exception, step: int, loss_fn: Any, outputs: Any, targets: Tensor) -> None:
    """Explain why the loss function cannot compare these outputs and targets."""
    what = (
        f"{name_of(loss_fn)} got {described(outputs)} as the model's outputs and {described(targets)} as "
        "targets"
    )
    _tell(error, step, what, _loss_remedies(str(error), loss_fn, outputs, targets))


def backward(error: Exception, step: int, loss: Tensor, targets: Tensor) -> None:
    """Explain why there is no gradient of this loss."""
    what = f"there is no gradient of the loss, {described(loss)}, with {described(targets)} as targets"
    _tell(error, step, what, _backward_remedies(str(error)))


def _backward_remedies(text: str) -> Iterator[str]:
    if "Found dtype" in text:
        yield "targets of the outputs' dtype are expected: give targets.float()"
    if "second time" in text:
        yield "the graph of an earlier step is used again: detach what the model keeps, by state.detach()"
    if "inplace operation" in text:
        yield "write x = x + 1 in the place of x += 1 where a gradient needs x"


def name_of(loss_fn: Any) -> str:
    """Return the name of a loss function or of its class."""
    return str(getattr(loss_fn, "__name__", type(loss_fn).__name__))


def _loss_remedies(text: str, loss_fn: Any, outputs: Any, targets: Tensor) -> Iterator[str]:
    """Yield what to do, likeliest first."""
    if outputs is None:
        yield "forward ends without a value: return the outputs"
    if not isinstance(outputs, Tensor):
        yield (
            "return one tensor from forward, or take it out in a loss function of your own: "
            "lambda outputs, targets: loss_fn(outputs[0], targets)"
        )
        return
    shapes, labels = (outputs.shape, targets.shape), not targets.is_floating_point()
    classes = loss_fn in CLASS_LOSSES or isinstance(loss_fn, CLASS_LOSSES[:2]) or "class prob" in text
    if "argument" in text and "()" in text:
        yield "it is called as loss_fn(outputs, targets), with these two, and has to take both"
    if classes or "multi-target" in text or "target dtype" in text:
        if len(set(shapes)) == 1 and outputs.ndim > 1:
            yield "labels are class indices [N]: give targets.argmax(1), or targets.float() as probabilities"
        if outputs.ndim > 1 and targets.shape == (len(outputs), 1):
            yield "labels are class indices [N], int64: give targets.squeeze(1).long()"
        same = targets.ndim == outputs.ndim - 1 and targets.shape[:1] == outputs.shape[:1]
        if same and targets.dtype not in (torch.int64, torch.uint8):
            yield "labels are class indices, int64: give targets.long()"
        yield (
            "outputs are expected as [N, classes] and targets as class indices [N], int64, of as "
            "many samples: make both so"
        )
    if "between 0 and 1" in text:
        yield "nn.BCELoss takes probabilities: end the model in nn.Sigmoid(), or take nn.BCEWithLogitsLoss()"
    if len(set(shapes)) > 1:
        yield shape_remedy(outputs, targets)
    if labels:
        yield "targets of the outputs' dtype are expected: give targets.float()"
    if outputs.dtype != targets.dtype:
        yield f"targets of the outputs' dtype are expected: give targets.to({outputs.dtype})"
    yield "outputs come first, and targets second: give the loss function what it takes"


def shape_remedy(outputs: Tensor, targets: Tensor) -> str:
    """Say how targets come to the shape of the outputs."""
    if targets.numel() == outputs.numel():
        how = f"give targets.view({', '.join(map(str, [-1, *outputs.shape[1:]]))})"
        if outputs.ndim == targets.ndim + 1 and outputs.shape[-1] == 1:
            how = f"give targets.unsqueeze({targets.ndim})"
        elif outputs.ndim == targets.ndim - 1 and targets.shape[-1] == 1:
            how = f"give targets.squeeze({outputs.ndim})"
    elif targets.shape[:1] != outputs.shape[:1]:
        how = (
            f"the model gives {len(outputs) if outputs.ndim else 0} outputs for {len(targets)} "
            "targets: pair each input with its target"
        )
    else:
        how = "give such targets, or a model with as many outputs as there are targets"
    return f"targets of the outputs' shape are expected, {list(outputs.shape)}: {how}"
