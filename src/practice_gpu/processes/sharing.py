"""Tensors sent to other processes: as with CUDA, both processes have the same memory.

PyTorch sends a CUDA tensor by ``_share_cuda_`` of its storage, and rebuilds it by ``_new_shared_cuda`` (see
``torch/multiprocessing/reductions.py``). Here these share host memory, with PyTorch's strategy
``file_system``, and enter it in the ledger of the other process.
"""

from typing import Any

import torch
from torch.multiprocessing import reductions

from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.patching.patches import Handler, Patches

_Storage = torch.UntypedStorage


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the replacements on :class:`torch.UntypedStorage`."""
    patches.handle(_Storage, "_share_cuda_", _share)
    patches.set(_Storage, "_new_shared_cuda", staticmethod(lambda *parts: _rebuild(gpu, *parts)))
    patches.set(_Storage, "_release_ipc_counter_cuda", staticmethod(_release))


def _share(gpu: PracticeGPU, original: Handler, storage: _Storage) -> tuple[Any, ...]:
    index = gpu.ledger.blocks[storage._cdata].index
    handle: tuple[Any, ...] = (None, index)  # for an empty storage
    if storage.nbytes():
        handle = tuple(storage._share_filename_cpu_())
        storage._shared_incref()  # type: ignore[no-untyped-call]  # for the other process
    return index, handle, max(1, storage.nbytes()), 0, handle, 0, b"", False


def _rebuild(gpu: PracticeGPU, index: int, handle: tuple[Any, ...], *_: Any) -> _Storage:
    if handle[0] is None:
        storage = _Storage(0)  # type: ignore[no-untyped-call]
    else:
        storage = _Storage._new_shared_filename_cpu(*handle)
        storage._shared_decref()
    gpu.ledger.place_storage(storage, index)
    return storage


def _release(handle: tuple[Any, ...], *_: Any, **__: Any) -> None:
    """Release a reference to a storage that this process already has."""
    if handle[0] is None:
        return
    storage = reductions.storage_from_cache(_Storage, (handle, 0))  # type: ignore[no-untyped-call]
    storage._shared_decref()
