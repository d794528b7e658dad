"""Does it fit on a GPU: an answer from a replay with that GPU's memory, and what such an answer cannot know.

What is taken beside the tensors is given as a range: published measurements, and PyTorch's own constants.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpulesson_tools.planning.memory.caching import MIB, Block, CachingAllocator
from gpulesson_tools.planning.recording.record import BACKWARD, Record

FITS, CLOSE, DOES_NOT_FIT = "fits", "close", "does not fit"

MARGIN = 0.85
"""The share of the memory left for tensors up to which a program counts as fitting."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What the caching allocator made of a record.

    Attributes
    ----------
    peak_allocated, peak_reserved : int
        Bytes, as ``torch.cuda.max_memory_allocated()`` and ``torch.cuda.max_memory_reserved()`` would say.
        A block whose rest is not cut off counts whole, so `peak_allocated` can be more than the sum of the
        tensors.
    retries : int
        How often cached segments had to be given back to CUDA, which takes time.
    out_of_memory : int or None
        Position of the event at which the memory was not enough; None if it was enough to the end.
    """

    peak_allocated: int
    peak_reserved: int
    retries: int
    out_of_memory: int | None


def replay(
    record: Record, capacity: int | None = None, expandable_segments: bool = False, workspace: int = 0
) -> Replay:
    """Let the caching allocator serve a record's events.

    Parameters
    ----------
    record : Record
        Of the program.
    capacity : int or None
        Bytes that CUDA has for tensors; None for as many as are asked for.
    expandable_segments : bool
        As ``PYTORCH_ALLOC_CONF=expandable_segments:True``.
    workspace : int
        Bytes that each cuBLAS handle keeps (:func:`cublas_workspace`). The thread that runs forward has one
        and, if there is a backward pass, autograd's thread has another. They are made first here.

    Examples
    --------
    >>> from gpulesson_tools.planning.recording.record import Allocation, Place, Record
    >>> tensors = [Allocation(3_000_000, 0, "forward", "empty", Place()) for _ in range(2)]
    >>> replay(Record(tensors, [0, ~0, 1]))
    Replay(peak_allocated=3000320, peak_reserved=20971520, retries=0, out_of_memory=None)
    """
    allocator = CachingAllocator(capacity, expandable_segments)
    blocks: dict[int, Block] = {}
    position, failed = 0, None
    try:
        if workspace:
            threads = 2 if any(each.phase == BACKWARD for each in record.allocations) else 1
            for _ in range(threads):
                allocator.malloc(workspace)
        for position, event in enumerate(record.events):  # noqa: B007
            if event < 0:
                if ~event in blocks:
                    allocator.free(blocks.pop(~event))
            elif record.allocations[event].nbytes:
                blocks[event] = allocator.malloc(record.allocations[event].nbytes)
    except torch.OutOfMemoryError:
        failed = position
    return Replay(allocator.peak_allocated, allocator.peak_reserved, allocator.retries, failed)


@dataclass(frozen=True)
class Unknown:
    """Memory on a GPU of which a record has nothing, in bytes as published; `most` is 0 without a figure."""

    name: str
    least: int
    most: int
    sources: tuple[str, ...]  # addresses


CONTEXT = Unknown(  # code and tables of CUDA and its libraries: nvidia-smi counts it, PyTorch does not
    "CUDA context",
    287_047_680,
    1343 * MIB,
    (
        # 287,047,680 B with kernels that are loaded when they are needed; then 1343 MiB, on a V100
        "https://github.com/pytorch/pytorch/pull/86509",
        "https://github.com/huggingface/transformers/blob/main/docs/source/en/model_memory_anatomy.md",
    ),
)
CUBLAS = Unknown(
    # One for each thread that multiplies matrices, counted as allocated: the larger from compute capability
    # 9.0 on. PyTorch 2.15 keeps them after a product only if TORCH_CUBLAS_WORKSPACE_CACHE asks for it.
    "cuBLAS workspaces",
    8_519_680,
    32 * MIB,
    (
        "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/cuda/CublasHandlePool.cpp",
        "https://github.com/pytorch/pytorch/issues/95668",  # 8,519,680 B seen after one Linear
    ),
)
CUDNN = Unknown(  # as the chosen algorithm of a convolution asks, only while it runs
    "cuDNN workspaces",
    0,
    0,
    ("https://docs.nvidia.com/deeplearning/cudnn/latest/api/cudnn-cnn-library.html",),
)


@dataclass(frozen=True)
class Verdict:
    """Whether a program fits on a GPU.

    Attributes
    ----------
    answer : str
        ``"fits"``: with 85 % of what the largest context leaves. ``"close"``: only with more than that.
        ``"does not fit"``: not even with what the smallest context leaves.
    replay : Replay
        With what the smallest context leaves.
    least_left, most_left : int
        Bytes that the largest and the smallest context leave for tensors.
    unknown : tuple of Unknown
        Memory of which the record has nothing.
    """

    answer: str
    replay: Replay
    least_left: int
    most_left: int
    unknown: tuple[Unknown, ...]


def cublas_workspace(capability: tuple[int, int]) -> int:
    """Return the bytes of one cuBLAS workspace, for a GPU's compute capability.

    Examples
    --------
    >>> cublas_workspace((8, 0)), cublas_workspace((9, 0))
    (8519680, 33554432)
    """
    return CUBLAS.most if capability[0] >= 9 else CUBLAS.least


def verdict(record: Record, gpu_bytes: int, capability: tuple[int, int] = (8, 0)) -> Verdict:
    """Return whether a program fits on a GPU with `gpu_bytes`, of which nobody else uses any.

    Its compute capability decides how much cuBLAS keeps.

    Examples
    --------
    >>> from gpulesson_tools.planning.recording.record import Allocation, Place, Record
    >>> tensor = Allocation(10 * 2**30, 0, "forward", "empty", Place())
    >>> [verdict(Record([tensor], [0]), n * 2**30).answer for n in (8, 12, 16)]
    ['does not fit', 'close', 'fits']
    """
    workspace = cublas_workspace(capability)
    least, most = (max(gpu_bytes - context, 0) for context in (CONTEXT.most, CONTEXT.least))
    widest = replay(record, most, workspace=workspace)
    if widest.out_of_memory is not None:
        answer = DOES_NOT_FIT
    else:
        narrow = replay(record, int(MARGIN * least), workspace=workspace)
        answer = FITS if narrow.out_of_memory is None else CLOSE
    return Verdict(answer, widest, least, most, (CONTEXT, CUBLAS, CUDNN))
