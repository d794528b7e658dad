"""Mistakes that `training` and `evaluation` catch before a device computes with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn

from gpulesson.device import DeviceError, choose_device, tensor_devices

LossFunction = Callable[[Any, Any], Tensor]
Pairs = Iterable[tuple[Any, ...]]  # (inputs, targets)


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
    if not any(id(parameter) in ours for parameter in held):
        where = ", ".join(sorted({str(parameter.device) for parameter in held}))
        raise DeviceError(
            f"the optimizer holds none of the model's parameters: its own are on {where}, the model is on "
            f"{device}, and training would change nothing: {rebuild}"
        )
    _check_tensors("the optimizer", [group["params"] for group in optimizer.param_groups], device, rebuild)
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.ndim and value.device != device:  # not a step counter
                raise DeviceError(
                    f"the optimizer keeps {name!r} on {value.device}, but the model is on {device}: it was "
                    f"moved after the first step; {rebuild}"
                )


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


def checked_loss(
    batches: Pairs, loss_fn: LossFunction, device: torch.device, *, on_device: bool
) -> Callable[[Any, Any, Any], Tensor]:
    """Return the loss as a function of outputs, targets, and the targets as they were before they moved.

    Labels out of range are refused before the loss sees them: on CUDA such a label ends the process's use of
    the GPU. Labels that came on the CPU are looked at there, in every step: shuffling may bring new ones in
    any epoch. Labels on a device, where each look is a host read, are looked at only if `on_device` says so.
    If the batches hold all their tensors (as ``Batches`` does), all labels are looked at in the first step.
    Where ``nn.CrossEntropyLoss`` computes on the CPU, it looks at each label itself, and nothing else has to.
    """
    tensors = getattr(batches, "tensors", None)
    whole: Tensor | None = tensors[1] if isinstance(tensors, tuple) and len(tensors) == 2 else None
    step, ignored = 0, ignored_label(loss_fn)
    looks_itself = device.type == "cpu" and type(loss_fn) in (nn.CrossEntropyLoss, nn.NLLLoss)

    def checked(outputs: Any, targets: Any, given: Any) -> Tensor:
        nonlocal step
        step += 1
        if looks_itself:
            try:
                loss = loss_fn(outputs, targets)
            except IndexError:
                _check_range(targets, outputs.shape[1], step, ignored)
                raise
        else:
            if (whole is None or step == 1) and class_indices(outputs, given):
                labels = given if whole is None else whole
                if on_device or labels.device.type == "cpu":
                    _check_range(labels, outputs.shape[1], step, ignored)
            loss = loss_fn(outputs, targets)
        if loss.ndim:
            raise ValueError(
                f"step {step}: the loss function returned a tensor of shape {list(loss.shape)}, expected one "
                "number: use reduction='mean' (or 'sum')"
            )
        return loss

    return checked


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
