"""``torch.autocast("cuda")``: the CPU computes, so the CPU's autocast is switched on with it.

The CPU's autocast leaves some functions in half precision that CUDA's computes in float32: their inputs are
converted here.
"""

from typing import Any

import torch
import torch.nn.functional as F

from practice_gpu import errors
from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.patching.patches import Handler, Patches

IN_FLOAT32 = """
    __pow__ __rpow__ __rtruediv__ acos asin cdist cosh cosine_embedding_loss cosine_similarity cumprod
    cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss huber_loss interpolate kl_div l1_loss
    layer_norm log log10 log1p log2 log_softmax logsumexp margin_ranking_loss matrix_norm multi_margin_loss
    multilabel_margin_loss norm pdist poisson_nll_loss pow prod reciprocal renorm rms_norm rsqrt sinh
    smooth_l1_loss soft_margin_loss softmax softplus sum tan triplet_margin_loss vector_norm
"""
"""Functions that CUDA's autocast computes in float32: ``AT_FORALL_FP32…`` in ``ATen/autocast_mode.h``."""

_HALF = (torch.float16, torch.bfloat16)


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the replacements on :class:`torch.autocast`, and of the functions that it affects."""
    patches.handle(torch.autocast, "__enter__", _enter)
    patches.handle(torch.autocast, "__exit__", _exit)
    for owner in (torch, torch.Tensor, F, torch.linalg):
        for name in IN_FLOAT32.split():
            patches.handle(owner, name, _in_float32)
    patches.handle(F, "binary_cross_entropy", _unsafe)


def _enter(gpu: PracticeGPU, original: Handler, autocast: Any) -> Any:
    result = original(autocast)
    if autocast.device == "cuda":
        autocast._practice_before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        torch.set_autocast_enabled("cpu", torch.is_autocast_enabled("cuda"))
        torch.set_autocast_dtype("cpu", torch.get_autocast_dtype("cuda"))
    return result


def _exit(gpu: PracticeGPU, original: Handler, autocast: Any, *exception: Any) -> Any:
    result = original(autocast, *exception)
    if autocast.device == "cuda":
        enabled, dtype = autocast._practice_before
        torch.set_autocast_enabled("cpu", enabled)
        torch.set_autocast_dtype("cpu", dtype)
    return result


def _in_float32(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    if torch.is_autocast_enabled("cuda") and kwargs.get("dtype") is None:
        args = tuple(_float32(gpu, value) for value in args)
        kwargs = {name: _float32(gpu, value) for name, value in kwargs.items()}
    return original(*args, **kwargs)


def _float32(gpu: PracticeGPU, value: Any) -> Any:
    half = isinstance(value, torch.Tensor) and value.dtype in _HALF and gpu.ledger.index(value) >= 0
    return value.float() if half else value


def _unsafe(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    if torch.is_autocast_enabled("cuda") and gpu.ledger.index(args[0]) >= 0:
        raise errors.unsafe_to_autocast()
    return original(*args, **kwargs)
