"""Libraries that programs call through PyTorch: CUDA's runtime, and NVTX, which marks a timeline."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.patching.absent import refuse
from practice_gpu.patching.patches import Patches

_UNWATCHED = -2
"""What NVTX returns instead of a depth where no profiler listens: ``NVTX_NO_PUSH_POP_TRACKING``."""


class CudaStatus(int):
    """A status of CUDA's runtime, such as ``cudart().cudaError.success``."""

    success = 0


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan ``torch.cuda.cudart()`` and :mod:`torch.cuda.nvtx`."""
    patches.set(torch.cuda, "_cudart", _runtime(gpu, getattr(torch.cuda, "_cudart", None)))
    patches.set(torch.cuda.nvtx, "_nvtx", _nvtx())


def _runtime(gpu: PracticeGPU, original: Any) -> SimpleNamespace:
    """Return a substitute for the runtime: no profiler is attached, and any host memory can be registered."""

    def error_string(status: int) -> str:
        if original is None:  # PyTorch without CUDA
            return f"status {int(status)} of CUDA's runtime"
        return str(original.cudaGetErrorString(original.cudaError(int(status))))

    succeed: Callable[..., CudaStatus] = lambda *_: CudaStatus(0)  # noqa: E731
    return SimpleNamespace(
        cudaError=CudaStatus,
        cudaGetErrorString=error_string,
        cudaProfilerStart=succeed,
        cudaProfilerStop=succeed,
        cudaHostRegister=succeed,
        cudaHostUnregister=succeed,
        cudaMemGetInfo=lambda device: (gpu.ledger.allocators[gpu.number(device)].free(), gpu.capacity),
        cudaStreamCreate=refuse("cudaStreamCreate"),
        cudaStreamDestroy=refuse("cudaStreamDestroy"),
    )


def _nvtx() -> SimpleNamespace:
    numbers = itertools.count(1)
    return SimpleNamespace(
        rangePushA=lambda message: _UNWATCHED,
        rangePop=lambda: _UNWATCHED,
        rangeStartA=lambda message: next(numbers),
        rangeEnd=lambda number: None,
        markA=lambda message: None,
        deviceRangeStart=lambda message, stream=0: next(numbers),
        deviceRangeEnd=lambda number, stream=0: None,
    )
