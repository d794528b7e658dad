"""The five operators of ``SyncBatchNorm`` that PyTorch has only for CUDA, made from others that the CPU has.

Formulas: for channel c, with mean m and inverse standard deviation s = (var + eps)^-1/2 over all n values of
all processes, y = (x - m) s w + b; dx = (dy - mean(dy) - (x - m) s² mean(dy (x - m))) s w.
Source of what each computes: ``aten/src/ATen/native/cuda/Normalization.cuh``.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.patching.patches import Handler, Patches


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the replacements for the functions that :class:`torch.nn.SyncBatchNorm` calls."""
    for function in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    ):
        patches.handle(torch, function.__name__, functools.partial(_instead, function))


def _instead(function: Handler, gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return mean and inverse standard deviation of each channel, both of shape (C,), in float32 or more."""
    var, mean = torch.var_mean(_wide(input), _others(input), correction=0)
    return mean, (var + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return mean and inverse standard deviation over all processes, from those of each: shape (W, C)."""
    n = counts.to(mean.dtype).view(-1, 1)
    total = n.sum()
    joint = (mean * n).sum(0) / total
    var = ((invstd.pow(-2) - eps + (mean - joint).square()) * n).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(joint.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((var * total / (total - 1)).to(running_var.dtype), momentum)
    return joint, (var + eps).rsqrt()


def batch_norm_elemt(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    """Return the normalised input."""
    result = (_wide(input) - _along(mean, input)) * _along(invstd, input)
    if weight is not None:
        result = result * _along(weight, input)
    if bias is not None:
        result = result + _along(bias, input)
    return result.to(input.dtype)


def batch_norm_backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return, of shape (C,), the sums of dy and of dy (x - m), and the gradients of weight and bias."""
    grad = _wide(grad_out)
    sum_dy = grad.sum(_others(input))
    sum_dy_xmu = (grad * (_wide(input) - _along(mean, input))).sum(_others(input))
    dtype = mean.dtype if weight is None else weight.dtype
    grad_weight = (sum_dy_xmu * invstd).to(dtype) if weight_g else None
    return sum_dy, sum_dy_xmu, grad_weight, sum_dy.to(dtype, copy=True) if bias_g else None


def batch_norm_backward_elemt(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """Return the gradient of the input, from sums over all processes."""
    n = count.sum()
    slope = _along(invstd.square() * sum_dy_xmu / n, input)
    inner = _wide(grad_out) - _along(sum_dy / n, input) - (_wide(input) - _along(mean, input)) * slope
    scale = invstd if weight is None else invstd * weight
    return (inner * _along(scale, input)).to(grad_out.dtype)


def _wide(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _others(input: Tensor) -> list[int]:
    """Return all dimensions but that of the channels."""
    return [dim for dim in range(input.dim()) if dim != 1]


def _along(channels: Tensor, input: Tensor) -> Tensor:
    """Return a tensor of shape (C,) as a view that broadcasts to one of shape (N, C, …)."""
    return channels.view(-1, *[1] * (input.dim() - 2))
