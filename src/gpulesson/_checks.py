"""Mistakes that `training` and `evaluation` catch before a device computes with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, zip_longest
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset, IterableDataset

from gpulesson import _explain
from gpulesson._arguments import described, refuse
from gpulesson.device import DeviceError, choose_device, tensor_devices

LossFunction = Callable[[Any, Any], Tensor]
Pairs = Iterable[tuple[Any, ...]]  # (inputs, targets)

NO_BATCHES = (type, str, bytes, Tensor, Mapping, nn.Module)  # whose items are no batches, though some iterate
PAIRS = "(inputs, targets) batch by batch"
LOADER = "give DataLoader(dataset, batch_size=64) or Batches(inputs, targets, batch_size=64)"
LAST = "the order is (model, batches, loss_fn, optimizer, device, epochs)"
FLAG = "True or False", "choose one of the two"


def _trainable(model: Any) -> bool:
    return isinstance(model, nn.Module) and not isinstance(model, nn.modules.loss._Loss)


def _iterates(batches: Any) -> bool:
    if isinstance(batches, tuple | list) and len(batches) == 2 and isinstance(batches[0], Tensor):
        return False  # one pair
    if isinstance(batches, NO_BATCHES) or type(batches).__name__ == "ndarray":
        return False
    if isinstance(batches, Dataset):  # of single samples
        return isinstance(batches, IterableDataset)
    return hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")


def _steps(optimizer: Any) -> bool:
    parts = ("param_groups", "step", "zero_grad")
    return not isinstance(optimizer, type) and all(hasattr(optimizer, part) for part in parts)


def _schedules(scheduler: Any) -> bool:
    return not isinstance(scheduler, type) and hasattr(scheduler, "step") and not _steps(scheduler)


def _calls(function: Any) -> bool:
    return callable(function) and not isinstance(function, type)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


# What each argument has to be: a test, the words for it, and the remedy.
ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "model": (_trainable, "a torch.nn.Module with weights, such as MLP(784, 10)", LAST),
    "batches": (_iterates, f"an iterable of {PAIRS}", f"{LOADER}; one batch alone is [(inputs, targets)]"),
    "validation": (_iterates, f"an iterable of {PAIRS}", f"{LOADER}; one batch alone is [(inputs, targets)]"),
    "loss_fn": (_calls, "a function of outputs and targets", "give nn.CrossEntropyLoss(), for instance"),
    "optimizer": (_steps, "an optimizer", "give torch.optim.Adam(model.parameters()), for instance"),
    "scheduler": (
        _schedules,
        "a scheduler",
        "give torch.optim.lr_scheduler.StepLR(optimizer, 10), for instance",
    ),
    "on_epoch": (_calls, "a function of the epoch and the history", "give its name, without brackets"),
    "forward": (_calls, "a function of the inputs", "give torch.compile(model), for instance"),
    "check_targets": (_flag, *FLAG),
    "progress": (_flag, *FLAG),
}


def check_arguments(**given: Any) -> None:
    """Refuse an argument that is no object of its kind, before anything is done with it."""
    for name, value in given.items():
        fits, expected, remedy = ARGUMENTS[name]
        if not fits(value):
            refuse(name, value, expected, remedy)


def check_pair(batch: Any, name: str = "batches") -> None:
    """Refuse a batch that is not (inputs, targets), with the targets a tensor of at least one sample."""
    if isinstance(batch, str | Tensor | Mapping) or not hasattr(batch, "__len__") or len(batch) != 2:
        raise ValueError(
            f"{name}: the first batch is {described(batch)}, expected a pair (inputs, targets): let the "
            "dataset or collate_fn return two things; several inputs go into one tuple or dict, "
            "((a, b), targets)"
        )
    inputs, targets = batch
    if inputs is None or isinstance(inputs, str) or type(inputs).__name__ == "ndarray":
        raise ValueError(
            f"{name}: the inputs of the first batch are {described(inputs)}, expected a tensor, or tensors "
            "in a tuple, list or mapping: give torch.as_tensor(inputs); a transform has to return its result"
        )
    single = isinstance(targets, int | float) or (isinstance(targets, Tensor) and not targets.ndim)
    if single or not isinstance(targets, Tensor):
        remedy = f"these are single samples, {LOADER}" if single else "give torch.as_tensor(targets)"
        raise ValueError(
            f"{name}: the targets of the first batch are {described(targets)}, expected a tensor [N, …] with "
            f"one entry a sample: {remedy}"
        )
    if not targets.shape[0]:
        raise ValueError(
            f"{name}: the first batch holds no sample, its targets are {described(targets)}, expected one or "
            "more: leave out empty batches"
        )


def pairs(batches: Pairs) -> Iterator[tuple[Any, ...]]:
    """Yield the batches, having looked at the first."""
    iterator = iter(batches)
    for batch in islice(iterator, 1):
        check_pair(batch)
        yield batch
    yield from iterator


def check_placement(
    model: nn.Module, device: torch.device | str, *, loss_fn: Any = None, optimizer: Any = None
) -> torch.device:
    """Return `device` with its index, having seen that everything which computes is on it."""
    device = torch.empty(0, device=choose_device(device)).device  # "cuda" -> cuda:0, as tensors report it
    _check_tensors("the model", model, device, "move the model first: model.to(device)")
    if isinstance(loss_fn, nn.Module):
        _check_tensors("the loss function", loss_fn, device, "move it too: loss_fn.to(device)")
    if optimizer is not None:
        _check_optimizer(optimizer, model, device)
    return device


def _check_tensors(owner: str, obj: Any, device: torch.device, remedy: str) -> None:
    for name, found in tensor_devices(obj).items():
        if found != device:
            raise DeviceError(f"{owner} has {name!r} on {found}, but the batches go to {device}: {remedy}")


def _check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, device: torch.device) -> None:
    rebuild = "build the optimizer after model.to(device), from model.parameters()"
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    ours = {id(parameter) for parameter in model.parameters()}
    shared = [parameter for parameter in held if id(parameter) in ours]
    if not shared:
        where = ", ".join(sorted({str(parameter.device) for parameter in held}))
        raise DeviceError(
            f"the optimizer holds none of the model's parameters: its own are on {where}, the model is on "
            f"{device}, and training would change nothing: {rebuild}"
        )
    if not any(parameter.requires_grad for parameter in shared):
        raise ValueError(
            f"all {len(shared)} parameters that the optimizer holds are frozen (requires_grad=False), and "
            "training would change nothing: unfreeze some by model.requires_grad_(True), or give the "
            "optimizer "
            "those that are not frozen"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "LBFGS computes the loss several times in a step, by a closure, and needs a loop of its own: "
            "take SGD or Adam here"
        )
    _check_tensors("the optimizer", [group["params"] for group in optimizer.param_groups], device, rebuild)
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.ndim and value.device != device:  # not a step counter
                raise DeviceError(
                    f"the optimizer keeps {name!r} on {value.device}, but the model is on {device}: it was "
                    f"moved after the first step; {rebuild}"
                )


def check_schedule(scheduler: Any, optimizer: Any, steps: int) -> None:
    """Refuse a scheduler of another optimizer, or one that ends before so many steps."""
    total = getattr(scheduler, "total_steps", None)  # of OneCycleLR
    if isinstance(total, int) and scheduler.last_epoch + steps > total:
        raise ValueError(
            f"scheduler is {described(scheduler)} of {total} steps, {scheduler.last_epoch} of them done, but "
            f"would be stepped {steps} times here: build it with total_steps={steps}, and mind "
            "scheduler_interval"
        )
    theirs = getattr(getattr(scheduler, "optimizer", None), "param_groups", None)
    if theirs is not None and not any(group is ours for group in theirs for ours in optimizer.param_groups):
        raise ValueError(
            f"scheduler is {described(scheduler)} of another optimizer, expected one of the "
            "optimizer given, whose rate would never change: build it anew, "
            f"{type(scheduler).__name__}(optimizer, …)"
        )


def not_finite(model: nn.Module) -> str:
    """Return the name of a trained parameter that holds NaN or infinity, or nothing; one host read."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad and p.numel()]
    if not named:
        return ""
    largest = torch.stack([torch.linalg.vector_norm(p.detach(), math.inf) for _, p in named]).tolist()
    return next((name for (name, _), x in zip(named, largest, strict=True) if not math.isfinite(x)), "")


def loss_reduction(loss_fn: Any) -> str:
    """Return ``"mean"`` or ``"sum"``: what one batch's loss says about its samples."""
    reduction = str(getattr(loss_fn, "reduction", "mean"))  # a plain function is taken to average
    if reduction in ("mean", "sum"):
        return reduction
    raise ValueError(
        f"the loss function has reduction={reduction!r}, which gives no single number to train on: "
        "use reduction='mean' (or 'sum')"
    )


def mean_over_samples(losses: list[float], sizes: list[int], reduction: str) -> float:
    """Combine the losses of batches so that every sample counts once, also those of a short last batch."""
    weights = [1] * len(sizes) if reduction == "sum" else sizes
    return math.fsum(map(mul, losses, weights)) / sum(sizes)


def class_indices(logits: Any, targets: Any) -> bool:
    """Tell whether `targets` are class indices ``[N, …]`` for logits ``[N, C, …]``."""
    return (
        isinstance(logits, Tensor)
        and isinstance(targets, Tensor)
        and not (targets.is_floating_point() or targets.is_complex())
        and logits.ndim == targets.ndim + 1
    )


def ignored_label(loss_fn: Any) -> int | None:
    """Return the label that the loss leaves out, if it names one: ``nn.CrossEntropyLoss()`` names -100."""
    label = getattr(loss_fn, "ignore_index", None)
    return label if isinstance(label, int) else None


def checked_step(
    model: nn.Module,
    forward: Callable[[Any], Any],
    batches: Pairs,
    loss_fn: LossFunction,
    device: torch.device,
    *,
    on_device: bool,
    first_loss: Callable[[Tensor], object] | None = None,
) -> Callable[[Any, Any, Any], tuple[Any, Tensor]]:
    """Return outputs and loss as a function of inputs, targets, and the targets before they moved.

    Errors of the model and the loss are told from the batch's side.
    Labels out of range are refused before the loss sees them: on CUDA such a label ends the process's use of
    the GPU. Labels that came on the CPU are looked at there, in every step: shuffling may bring new ones in
    any epoch. Labels on a device, where each look is a host read, are looked at only if `on_device` says so.
    If the batches hold all their tensors (as ``Batches`` does), all labels are looked at in the first step.
    Where ``nn.CrossEntropyLoss`` computes on the CPU, it looks at each label itself, and nothing else has to.
    The first step also tells whether the loss is a tensor. For training it must have a gradient, and is shown
    to `first_loss` where that makes nobody wait.
    """
    tensors = getattr(batches, "tensors", None)
    whole: Tensor | None = tensors[1] if isinstance(tensors, tuple) and len(tensors) == 2 else None
    step, ignored = 0, ignored_label(loss_fn)
    looks_itself = device.type == "cpu" and type(loss_fn) in (nn.CrossEntropyLoss, nn.NLLLoss)

    def compute(inputs: Any, targets: Any, given: Any) -> tuple[Any, Tensor]:
        nonlocal step
        step += 1
        try:
            outputs = forward(inputs)
        except _explain.RAW as error:
            _explain.model(error, step, model, inputs)
            raise
        if not looks_itself and (whole is None or step == 1) and class_indices(outputs, given):
            labels = given if whole is None else whole
            if on_device or labels.device.type == "cpu":
                _check_range(labels, outputs.shape[1], step, ignored)
        try:
            if step == 1 and _outer(outputs, targets):
                with _NoOuter(outputs, targets):
                    loss = loss_fn(outputs, targets)
            else:
                loss = loss_fn(outputs, targets)
        except _explain.RAW as error:
            if looks_itself and isinstance(error, IndexError) and class_indices(outputs, targets):
                _check_range(targets, outputs.shape[1], step, ignored)
            _explain.loss(error, step, loss_fn, outputs, targets)
            raise
        if step == 1 and not isinstance(loss, Tensor):
            raise TypeError(
                f"step 1: {_explain.name_of(loss_fn)} returned {described(loss)}, expected a tensor of one "
                "number: return the loss itself, without .item() or float()"
            )
        if loss.ndim:
            raise ValueError(
                f"step {step}: the loss function returned a tensor of shape {list(loss.shape)}, expected one "
                "number: use reduction='mean' (or 'sum')"
            )
        if step == 1 and first_loss is not None:
            _check_gradient(loss, loss_fn, outputs)
            if loss.device.type == "cpu":
                first_loss(loss)
        return outputs, loss

    return compute


def _check_gradient(loss: Tensor, loss_fn: Any, outputs: Any) -> None:
    if not loss.requires_grad:
        detached = isinstance(outputs, Tensor) and not outputs.requires_grad
        where = (
            "the model's outputs have"
            if detached
            else f"{_explain.name_of(loss_fn)} returned a loss that has"
        )
        raise ValueError(
            f"step 1: {where} no gradient, expected one for the backward pass: compute without "
            "torch.no_grad(), detach(), argmax() and NumPy, and leave some of the model's parameters unfrozen"
        )


class _OuterProductError(ValueError):
    """Outputs and targets would be compared each with each: a type of its own, which needs no explanation."""


def _outer(outputs: Any, targets: Tensor) -> bool:
    """Tell whether broadcasting would compare each output with each target: [N, 1] with [N]."""
    if not isinstance(outputs, Tensor) or outputs.ndim == targets.ndim:
        return False
    sizes = list(zip_longest(reversed(outputs.shape), reversed(targets.shape), fillvalue=1))
    broadcast = all(one == two or 1 in (one, two) for one, two in sizes)
    return broadcast and any(one < two for one, two in sizes) and any(one > two for one, two in sizes)


class _NoOuter(TorchFunctionMode):
    """Refuse to broadcast outputs and targets themselves against one another, in whatever function.

    A loss that brings them to one shape first is fine, and so is one that pairs all samples on purpose, by
    ``targets[:, None]``.
    """

    def __init__(self, outputs: Tensor, targets: Tensor) -> None:
        super().__init__()
        self.outputs, self.targets = outputs, targets

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [id(value) for value in (*args, *kwargs.values())]
        together = id(self.outputs) in given and id(self.targets) in given
        if together and func not in (F.cross_entropy, F.nll_loss):
            raise _OuterProductError(
                f"step 1: the loss would compare each of {described(self.outputs)}, the outputs, with "
                f"each of {described(self.targets)}, the targets, as these shapes broadcast: "
                f"{_explain.shape_remedy(self.outputs, self.targets)}"
            )
        return func(*args, **kwargs)


def _check_range(targets: Tensor, classes: int, step: int, ignored: int | None) -> None:
    low, high = _extremes(targets)
    if (low < 0 or high >= classes) and ignored is not None:
        low, high = _extremes(targets[targets.long() != ignored])  # bytes could not hold -100
    if low < 0 or high >= classes:
        raise ValueError(
            f"step {step}: the targets hold {low if low < 0 else high}, but must lie in 0 to {classes - 1}, "
            f"as the model gives {classes} logits a sample: correct the labels, give the model more outputs, "
            "or name one label to leave out: nn.CrossEntropyLoss(ignore_index=…)"
        )


def _extremes(targets: Tensor) -> tuple[int, int]:
    """Return the lowest and the highest label, or zeros if there is none; waits for a GPU."""
    if not targets.numel():
        return 0, 0
    if targets.device.type == "cpu":  # two reads are quicker here than an operator that joins them
        low, high = targets.aminmax()
        return int(low), int(high)
    low, high = torch.stack(targets.aminmax()).tolist()
    return low, high
