"""Several devices in one process: the functions that ``DataParallel`` and ``torch.cuda.comm`` call."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn.parallel import _functions

from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.device.ledger import CPU
from practice_gpu.patching.patches import Patches
from practice_gpu.surface.tensors import move

_Tensors = Sequence[torch.Tensor]


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the functions of ``torch._C`` below :mod:`torch.nn.parallel.comm`."""
    communication = _Communication(gpu)
    for name in ("broadcast", "broadcast_out", "broadcast_coalesced", "scatter", "scatter_out", "gather"):
        patches.set(torch._C, f"_{name}", getattr(communication, name))
    patches.set(torch._C, "_gather_out", communication.gather_out)
    patches.set(_functions, "_streams", None)  # its table of streams


class _Communication:
    """Sends tensors between devices.

    The arguments are those of the functions in PyTorch's ``torch/csrc/cuda/python_comm.cpp``. A negative
    device number is the CPU, and None the current device.
    """

    def __init__(self, gpu: PracticeGPU) -> None:
        self._gpu = gpu

    def _send(self, tensor: torch.Tensor, index: int | None, call: str) -> torch.Tensor:
        target = self._gpu.current if index is None else CPU if index < 0 else self._gpu.number(index)
        return move(self._gpu, tensor, target, f"torch.cuda.comm.{call}()")

    def broadcast(self, tensor: torch.Tensor, devices: Iterable[int]) -> list[torch.Tensor]:
        return [self._send(tensor, index, "broadcast") for index in devices]

    def broadcast_out(self, tensor: torch.Tensor, out_tensors: _Tensors) -> _Tensors:
        for out in out_tensors:
            out.copy_(tensor)
        return out_tensors

    def broadcast_coalesced(
        self, tensors: _Tensors, devices: Sequence[int], buffer_size: int
    ) -> list[list[torch.Tensor]]:
        return [[self._send(tensor, index, "broadcast") for tensor in tensors] for index in devices]

    def scatter(
        self,
        tensor: torch.Tensor,
        devices: Sequence[int],
        chunk_sizes: Sequence[int] | None = None,
        dim: int = 0,
        streams: Any = None,
    ) -> list[torch.Tensor]:
        pieces: Sequence[torch.Tensor] = tensor.chunk(len(devices), dim)
        if chunk_sizes is not None:
            pieces = tensor.split_with_sizes(list(chunk_sizes), dim)
        return [
            self._send(piece, index, "scatter").contiguous()
            for piece, index in zip(pieces, devices, strict=False)
        ]

    def scatter_out(
        self, tensor: torch.Tensor, out_tensors: _Tensors, dim: int = 0, streams: Any = None
    ) -> _Tensors:
        pieces = tensor.split_with_sizes([out.size(dim) for out in out_tensors], dim)
        for out, piece in zip(out_tensors, pieces, strict=True):
            out.copy_(piece)
        return out_tensors

    def gather(self, tensors: _Tensors, dim: int = 0, destination_index: int | None = None) -> torch.Tensor:
        return torch.cat([self._send(tensor, destination_index, "gather") for tensor in tensors], dim)

    def gather_out(self, tensors: _Tensors, out_tensor: torch.Tensor, dim: int = 0) -> torch.Tensor:
        pieces = out_tensor.split_with_sizes([tensor.size(dim) for tensor in tensors], dim)
        for piece, tensor in zip(pieces, tensors, strict=True):
            piece.copy_(tensor)
        return out_tensor
