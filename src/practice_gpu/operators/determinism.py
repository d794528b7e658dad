"""``torch.use_deterministic_algorithms(True)``: the operators that CUDA then refuses, or warns about.

PyTorch's Python code avoids some of them (``F.interpolate``, ``F.pad``), on the practice GPU as on a real
one. The kernels and their names come from a CUDA build of PyTorch 2.15, by the tests' ``stand_in.py``.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from practice_gpu import errors
from practice_gpu.device.events import where
from practice_gpu.operators import cublas

Check = Callable[[Sequence[Any], Mapping[str, Any]], None]
"""Called with the arguments of an operator that is about to run on a device."""

CUBLAS_IS_ASKED = "CUBLAS_WORKSPACE_CONFIG" in (torch.use_deterministic_algorithms.__doc__ or "")
"""Whether PyTorch checks how cuBLAS is configured: before 2.10, and its documentation says so."""

_KERNELS = {
    "_adaptive_avg_pool2d_backward": "adaptive_avg_pool2d_backward_cuda",
    "_adaptive_avg_pool3d_backward": "adaptive_avg_pool3d_backward_cuda",
    "_ctc_loss_backward": "ctc_loss_backward_gpu",
    "_embedding_bag_backward": "embedding_bag_backward_cuda_max",
    "_embedding_bag_dense_backward": "embedding_bag_backward_cuda_max",
    "_upsample_bicubic2d_aa_backward": "upsample_bicubic2d_aa_backward_out_cuda",
    "_upsample_bilinear2d_aa_backward": "upsample_bilinear2d_aa_backward_out_cuda",
    "adaptive_max_pool2d_backward": "adaptive_max_pool2d_backward_cuda",
    "avg_pool3d_backward": "avg_pool3d_backward_cuda",
    "bincount": "_bincount_cuda",
    "fractional_max_pool2d_backward": "fractional_max_pool2d_backward_cuda",
    "fractional_max_pool3d_backward": "fractional_max_pool3d_backward_cuda",
    "grid_sampler_2d_backward": "grid_sampler_2d_backward_cuda",
    "grid_sampler_3d_backward": "grid_sampler_3d_backward_cuda",
    "histc": "_histc_cuda with floating point input",
    "index_reduce": "index_reduce_cuda",
    "max_pool3d_with_indices_backward": "max_pool3d_with_indices_backward_cuda",
    "median.dim": "median CUDA with indices output",
    "median.dim_values": "median CUDA with indices output",
    "nanmedian.dim": "median CUDA with indices output",
    "nanmedian.dim_values": "median CUDA with indices output",
    "nll_loss2d_forward": "nll_loss2d_forward_out_cuda_template",
    "put": "put_",
    "reflection_pad1d_backward": "reflection_pad1d_backward_out_cuda",
    "reflection_pad3d_backward": "reflection_pad3d_backward_out_cuda",
    "replication_pad2d_backward": "replication_pad2d_backward_cuda",
    "replication_pad3d_backward": "replication_pad3d_backward_cuda",
    "scatter.reduce": "scatter_reduce_cuda_kernel",
    "scatter_reduce": "scatter_reduce_cuda_prod_",
    "upsample_bicubic2d_backward": "upsample_bicubic2d_backward_out_cuda",
    "upsample_bilinear2d_backward": "upsample_bilinear2d_backward_out_cuda",
    "upsample_linear1d_backward": "upsample_linear1d_backward_out_cuda",
    "upsample_trilinear3d_backward": "upsample_trilinear3d_backward_out_cuda",
}
"""The kernel that CUDA names, by operator (and overload); the CPU itself refuses ``max_unpool2d``."""

_UNLESS: dict[str, Callable[[Sequence[Any], Mapping[str, Any]], bool]] = {
    "_embedding_bag_backward": lambda args, _: args[8] != 2,  # mode="max"
    "_embedding_bag_dense_backward": lambda args, _: args[7] != 2,
    "bincount": lambda args, _: len(args) < 2 or args[1] is None,  # weights
    "histc": lambda args, _: not args[0].is_floating_point(),
    "nll_loss2d_forward": lambda args, _: args[3] == 0,  # reduction="none"
    "put": lambda args, _: len(args) < 4 or not args[3],  # accumulate=False: the CPU refuses that, too
    "scatter.reduce": lambda args, named: named["reduce"] == "add" and args[0].is_floating_point(),
    "scatter_reduce": lambda args, _: args[4] != "prod",
}
"""When they are deterministic nevertheless."""


def check_of(name: str, overload: str) -> Check | None:
    """Return the check to call before an operator runs on a device, or None if it is always deterministic."""
    name = name.removesuffix("_")
    if CUBLAS_IS_ASKED and name in cublas.OPERATORS:
        return _ask_cublas
    key = name if name in _KERNELS else f"{name}.{overload}"
    if key not in _KERNELS:
        return None
    kernel, unless = _KERNELS[key], _UNLESS.get(key)

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if torch.are_deterministic_algorithms_enabled() and not (unless and unless(args, kwargs)):
            called = "cudnn_grid_sampler_backward" if _is_cudnns(name, args) else kernel
            _alert(errors.not_deterministic(called, torch.is_deterministic_algorithms_warn_only_enabled()))

    return check


def _is_cudnns(name: str, args: Sequence[Any]) -> bool:
    """Return whether cuDNN does it: two dimensions, bilinear, zeros outside, aligned corners."""
    return name == "grid_sampler_2d_backward" and tuple(args[3:6]) == (0, 0, True) and args[1].size(1) <= 1024


def _ask_cublas(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if torch.are_deterministic_algorithms_enabled():
        first = next(arg for arg in args if isinstance(arg, torch.Tensor))
        config = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
        if (first.is_floating_point() or first.is_complex()) and config not in (":4096:8", ":16:8"):
            _alert(errors.cublas_not_deterministic())


def _alert(error: RuntimeError) -> None:
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise error
    filename, line = where()
    warnings.warn_explicit(str(error), UserWarning, filename, line)
