"""Measure a model on data it was not trained on: loss, accuracy, confusion matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from gpulesson import preflight
from gpulesson._arguments import described, flags
from gpulesson.checkpoint.rng import rng_state, set_rng_state
from gpulesson.checkpoint.state import unwrapped
from gpulesson.device import to_device


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` found.

    Attributes
    ----------
    loss : float
        Mean over samples; ignored labels count in the sizes that weigh the batches.
    accuracy : float or None
        Fraction of right predictions, 0 to 1; None if the targets are not class indices (regression), NaN if
        every label is ignored.
    confusion : Tensor or None
        int64 ``[C, C]`` on the CPU: row = true class, column = predicted class.
    samples : int
        Number of samples, including those whose label is ignored.
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
    batches: preflight.Pairs,
    loss_fn: preflight.LossFunction,
    device: torch.device | str,
    *,
    check_targets: bool = True,
) -> Evaluation:
    """Run the model over all batches without training it.

    The model is in evaluation mode meanwhile; afterwards every submodule is in the mode it was in before,
    also after an exception. Results are counted on the device and reach the CPU in one transfer.

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
        An argument has the wrong type, such as the class ``nn.CrossEntropyLoss`` instead of an instance.
    ValueError
        There are no batches, the first one is not a pair of inputs and targets, a label is out of range, or
        the loss is not one number or compares each output with each target.
    DeviceError
        The model or the loss function is not on `device`.
    Exception
        Whatever the model, the loss or the batches raise themselves, with a note (from Python 3.11 on) that
        names the batch.

    Examples
    --------
    >>> from gpulesson.models import MLP
    >>> batches = [(torch.zeros(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))]
    >>> evaluate(MLP(4, 3), batches, nn.CrossEntropyLoss(), "cpu").confusion.sum(1).tolist()
    [2, 2, 2]
    """
    preflight.check_arguments(model=model, batches=batches, loss_fn=loss_fn)
    flags(check_targets=check_targets)
    device = preflight.check_placement(model, device, loss_fn=loss_fn)
    preflight.loss_reduction(loss_fn)
    return evaluate_checked(model, batches, loss_fn, device, check_targets=check_targets)


def evaluate_checked(
    model: nn.Module,
    batches: preflight.Pairs,
    loss_fn: preflight.LossFunction,
    device: torch.device,
    *,
    check_targets: bool = True,
    name: str = "",
) -> Evaluation:
    """Do what `evaluate` does with arguments that were looked at; `name` says what errors call the data.

    >>> batches = [(torch.zeros(2, 4), torch.tensor([0, 1]))]
    >>> evaluate_checked(nn.Linear(4, 3), batches, nn.CrossEntropyLoss(), torch.device("cpu")).samples
    2
    """
    model = unwrapped(model)  # the wrapper would send buffers, and wait for the other processes
    no_wait = device.type == "cuda"  # elsewhere the copy may still be reading a batch that has been freed
    losses: list[Tensor] = []
    sizes: list[int] = []
    confusion: Tensor | None = None
    feed = preflight.Feed(batches, loss_fn, device, on_device=check_targets, name=name)
    with evaluation_mode(model), torch.inference_mode(), feed:
        for inputs, targets in feed:
            inputs = to_device(inputs, device, non_blocking=no_wait)
            targets = targets.to(device, non_blocking=no_wait)
            outputs = model(inputs)
            losses.append(feed.loss(outputs, targets))
            sizes.append(targets.shape[0])
            if preflight.class_indices(outputs, targets):
                confusion = _count(outputs, targets, confusion, preflight.ignored_label(loss_fn))
    if not losses:
        raise ValueError(f"nothing to evaluate: {name or 'the batches'} are empty; give at least one batch")
    return _summary(losses, sizes, confusion, preflight.loss_reduction(loss_fn))


def check_held_out(
    model: nn.Module, validation: preflight.Pairs, loss_fn: preflight.LossFunction, device: torch.device
) -> bool:
    """Evaluate the first batch of the validation data: after an epoch, a mistake would be found too late.

    Returns whether all labels are in memory, and were looked at too.
    Data that other processes load, and iterators, are left alone. All random numbers are put back.

    >>> model, held_out = nn.Linear(4, 3), [(torch.zeros(2, 4), torch.tensor([0, 1]))]
    >>> check_held_out(model, held_out, nn.CrossEntropyLoss(), torch.device("cpu"))
    True
    """
    if isinstance(validation, DataLoader):
        if validation.num_workers or isinstance(validation.dataset, IterableDataset):
            return False
    elif not (isinstance(validation, Sequence) or hasattr(validation, "tensors")):
        return False
    with _random_numbers_kept(validation):
        for batch in validation:
            result = evaluate_checked(model, [batch], loss_fn, device, name="validation")
            looked = result.confusion is not None and preflight.by_class(loss_fn)
            if result.confusion is not None and looked:
                looked = preflight.check_labels(validation, len(result.confusion), loss_fn, "validation")
            if not math.isfinite(result.loss):
                found = f"the validation loss is {result.loss} before the first step"
                raise preflight.NonFiniteLossError(result.loss, 0, 0, found)
            return looked
    raise ValueError(
        f"nothing to evaluate: the validation data, {described(validation)}, is empty; give at least one "
        "batch"
    )


@contextmanager
def _random_numbers_kept(loader: Any) -> Iterator[None]:
    """Put random numbers back at the end: those of all global generators, and those that shuffle."""
    owners = loader, getattr(loader, "sampler", None)
    generators = [getattr(owner, "generator", None) for owner in owners]
    states = [(each, each.get_state()) for each in generators if isinstance(each, torch.Generator)]
    global_states = rng_state()
    try:
        yield
    finally:
        set_rng_state(global_states)
        for generator, state in states:
            generator.set_state(state)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode; at the end each part gets back the mode it was found in.

    >>> model = nn.Dropout()
    >>> with evaluation_mode(model):
    ...     print(model.training)
    False
    >>> model.training
    True
    """
    modes = [(module, module.training) for module in model.modules()]
    if any(training for _, training in modes):  # setting an attribute of a module takes long
        model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            if module.training != training:
                module.training = training


def mean_over_samples(losses: list[float], sizes: list[int], reduction: str) -> float:
    """Combine the losses of batches so that every sample counts once, also those of a short last batch.

    >>> mean_over_samples([1.0, 4.0], sizes=[2, 1], reduction="mean")
    2.0
    """
    weights = [1] * len(sizes) if reduction == "sum" else sizes
    return math.fsum(map(mul, losses, weights)) / sum(sizes)


def _counts_in(device: torch.device) -> torch.dtype:
    """Return a type of floats, to travel with the losses: float64 counts exactly up to 2**53."""
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64


def _count(logits: Tensor, targets: Tensor, confusion: Tensor | None, ignored: int | None = None) -> Tensor:
    """Add one batch to the confusion matrix, by operators that do not make the CPU wait."""
    classes = logits.shape[1]
    if confusion is None:
        confusion = torch.zeros(classes, classes, dtype=_counts_in(logits.device), device=logits.device)
    cells = torch.add(logits.argmax(1), targets, alpha=classes).flatten()  # [N], each the index of one cell
    if ignored is None:
        ones = torch.ones_like(cells, dtype=confusion.dtype)
    else:
        kept = (targets.long() != ignored).flatten()
        cells, ones = cells * kept, kept.to(confusion.dtype)
    confusion.view(-1).index_add_(0, cells, ones)
    return confusion


def _summary(losses: list[Tensor], sizes: list[int], confusion: Tensor | None, reduction: str) -> Evaluation:
    """Fetch losses and confusion matrix ``[C, C]``."""
    parts = [torch.stack(losses)] + ([] if confusion is None else [confusion.flatten()])
    values = torch.cat(parts).tolist()  # the CPU waits here, once
    loss = mean_over_samples(values[: len(losses)], sizes, reduction)
    if confusion is None:
        return Evaluation(loss, None, None, sum(sizes))
    cells = values[len(losses) :]  # exact as floats, up to 2**53
    right, counted = sum(cells[:: len(confusion) + 1]), sum(cells)
    counts = torch.tensor(cells, dtype=torch.int64).view(confusion.shape)
    return Evaluation(loss, right / counted if counted else math.nan, counts, sum(sizes))
