"""Measure a model on data it was not trained on: loss, accuracy, confusion matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gpulesson import _checks
from gpulesson._state import unwrapped
from gpulesson.device import to_device


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` found.

    Attributes
    ----------
    loss : float
        Mean over samples; ignored labels count in the sizes that weigh the batches.
    accuracy : float or None
        Fraction of right predictions, 0 to 1; None if the targets are no class indices (regression), NaN if
        every label is ignored.
    confusion : Tensor or None
        int64 ``[C, C]`` on the CPU: row = true class, column = predicted class.
    samples : int
        How many samples were looked at, with those whose label is ignored.
    """

    loss: float
    accuracy: float | None
    confusion: Tensor | None
    samples: int

    def __str__(self) -> str:
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.2%}"
        return f"loss {self.loss:.4f}{accuracy} on {self.samples} samples"


def evaluate(
    model: nn.Module,
    batches: _checks.Pairs,
    loss_fn: _checks.LossFunction,
    device: torch.device | str,
    *,
    check_targets: bool = True,
) -> Evaluation:
    """Run the model over all batches without training it.

    Dropout and batch normalisation are in evaluation mode meanwhile; afterwards every submodule is in the
    mode it was found in, also after an exception. Results are counted on the device and come to the CPU in
    one transfer.

    Parameters
    ----------
    model : torch.nn.Module
        On `device`. Called with inputs, it returns logits ``[N, C]`` (or, for regression, predictions). Of a
        ``DistributedDataParallel``, the model in it is run, so that each process may have other batches, and
        one of them may evaluate alone.
    batches : iterable of (inputs, targets)
        Targets are a tensor ``[N, …]``; class indices ``[N]`` of an integer type make it a classification.
        Inputs are whatever the model takes: a tensor, or tensors in a tuple, list or mapping, also nested.
    loss_fn : callable
        Takes the model's output and the targets, and returns the mean over the batch, or the sum if it has
        ``reduction="sum"``. Labels equal to its ``ignore_index``, if it has one, are legal, and count
        neither in the accuracy nor in the confusion matrix.
    device : torch.device or str
        Where to compute; batches are moved there.
    check_targets : bool
        Refuse labels out of range before the loss sees them. If the labels are on a GPU already, the CPU
        waits for that; False skips those, but not labels on the CPU.

    Returns
    -------
    Evaluation

    Raises
    ------
    TypeError
        An argument is no object of its kind, such as the class ``nn.CrossEntropyLoss`` without brackets.
    ValueError
        There are no batches, a batch is no pair of inputs and targets, the model or the loss cannot compute
        with it, a label is out of range, or the loss is not one number.
    DeviceError
        The model or the loss function is not on `device`.

    Examples
    --------
    >>> from gpulesson.models import MLP
    >>> batches = [(torch.zeros(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))]
    >>> evaluate(MLP(4, 3), batches, nn.CrossEntropyLoss(), "cpu").confusion.sum(1).tolist()
    [2, 2, 2]
    """
    _checks.check_arguments(model=model, batches=batches, loss_fn=loss_fn, check_targets=check_targets)
    device = _checks.check_placement(model, device, loss_fn=loss_fn)
    return _evaluate_placed(model, batches, loss_fn, device, check_targets=check_targets)


def _evaluate_placed(
    model: nn.Module,
    batches: _checks.Pairs,
    loss_fn: _checks.LossFunction,
    device: torch.device,
    *,
    check_targets: bool,
    with_confusion: bool = True,
) -> Evaluation:
    """Evaluate a model that is known to be on `device`; without the confusion matrix it takes less time."""
    model = unwrapped(model)  # the wrapper would send buffers, and wait for the other processes
    reduction = _checks.loss_reduction(loss_fn)
    ignored = _checks.ignored_label(loss_fn)
    compute = _checks.checked_step(model, model, batches, loss_fn, device, on_device=check_targets)
    losses: list[Tensor] = []
    sizes: list[int] = []
    hits: list[Tensor] = []
    confusion: Tensor | None = None
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            for inputs, given in _checks.pairs(batches):
                inputs, targets = to_device((inputs, given), device, non_blocking=device.type == "cuda")
                logits, loss = compute(inputs, targets, given)
                losses.append(loss)
                sizes.append(len(targets))
                if _checks.class_indices(logits, targets):
                    if with_confusion:
                        confusion = _count(logits, targets, confusion, ignored)
                    else:
                        hits += _hits(logits, targets, ignored)
    finally:
        for module, training in modes:
            module.training = training
    if not losses:
        raise ValueError("nothing to evaluate: the batches are empty; give at least one batch")
    counts = (
        confusion if confusion is not None else torch.stack(hits).to(_counts_in(device)) if hits else None
    )
    return _summary(losses, sizes, counts, reduction)


def _counts_in(device: torch.device) -> torch.dtype:
    """Return a type of floats, to travel with the losses: float64 counts exactly up to 2**53."""
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64


def _hits(logits: Tensor, targets: Tensor, ignored: int | None) -> tuple[Tensor, Tensor]:
    """Return how many predictions are right, and how many labels count, without making the CPU wait."""
    right = logits.argmax(1) == targets
    counted = targets.long() != ignored if ignored is not None else torch.ones_like(right)
    return (right & counted).count_nonzero(), counted.count_nonzero()


def _count(logits: Tensor, targets: Tensor, confusion: Tensor | None, ignored: int | None = None) -> Tensor:
    """Add one batch to the confusion matrix, by operators that do not make the CPU wait."""
    classes = logits.shape[1]
    if confusion is None:
        confusion = torch.zeros(classes, classes, dtype=_counts_in(logits.device), device=logits.device)
    cells = torch.add(logits.argmax(1), targets, alpha=classes).flatten()  # [N], each the index of one cell
    ones = torch.ones_like(cells, dtype=confusion.dtype)
    if ignored is not None:
        left_out = targets.long().flatten() == ignored
        cells, ones = cells.masked_fill(left_out, 0), ones.masked_fill(left_out, 0)
    confusion.view(-1).index_add_(0, cells, ones)
    return confusion


def _summary(losses: list[Tensor], sizes: list[int], counts: Tensor | None, reduction: str) -> Evaluation:
    """Fetch losses and counts: a confusion matrix ``[C, C]``, or how many are right, and of how many."""
    parts = [torch.stack(losses)] + ([] if counts is None else [counts.flatten()])
    values = torch.cat(parts).tolist()  # the CPU waits here, once
    loss = _checks.mean_over_samples(values[: len(losses)], sizes, reduction)
    if counts is None:
        return Evaluation(loss, None, None, sum(sizes))
    found, confusion = values[len(losses) :], None
    if counts.ndim == 2:
        confusion = torch.tensor(found, dtype=torch.int64).view(counts.shape)
        found = [int(confusion.trace()), int(confusion.sum())]
    right, counted = sum(found[::2]), sum(found[1::2])
    return Evaluation(loss, right / counted if counted else math.nan, confusion, sum(sizes))
