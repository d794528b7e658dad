"""Storages: on which devices they are, and how they are copied, saved and loaded."""

import functools
from typing import Any

import torch

from practice_gpu.device.events import TO_DEVICE, TO_HOST
from practice_gpu.device.gpu import PracticeGPU, as_device
from practice_gpu.device.ledger import CPU
from practice_gpu.patching.patches import Handler, Patches

_Storage = torch.UntypedStorage


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the replacements on :class:`torch.UntypedStorage`, which ``torch.save`` and ``load`` use."""
    handlers: dict[str, Handler] = {
        "__new__": _new,
        "clone": _clone,
        "cpu": _cpu,
        "is_shared": _is_shared,
        "resize_": _resize,
        "to": _to,
    }
    for name, handler in handlers.items():
        patches.handle(_Storage, name, handler)
    patches.wrap(_Storage, "device", functools.partial(_device, gpu))
    patches.wrap(_Storage, "_new_shared", functools.partial(_new_shared, gpu))


def _device(gpu: PracticeGPU, original: Any) -> property:
    def read(storage: _Storage) -> torch.device:
        block = gpu.ledger.blocks.get(storage._cdata)
        if block is None or block.index < 0:
            return original.__get__(storage)  # type: ignore[no-any-return]
        return gpu.devices[block.index]

    return property(read)


def _new(
    gpu: PracticeGPU, original: Handler, kind: type, *args: Any, device: Any = None, **kwargs: Any
) -> _Storage:
    """Make a storage, in host memory also for a device."""
    if device is None or as_device(device).type != "cuda":
        return original(kind, *args, device=device, **kwargs)  # type: ignore[no-any-return]
    target = gpu.index_of(as_device(device))
    storage: _Storage = original(kind, *args, **kwargs)
    gpu.ledger.place_storage(storage, target)
    return storage


def _copy(gpu: PracticeGPU, storage: _Storage, target: int) -> _Storage:
    if target >= 0:
        gpu.ledger.use()
        gpu.ledger.allocators[target].require(storage.nbytes())
    result = torch.UntypedStorage(storage.nbytes())  # type: ignore[no-untyped-call]
    result.copy_(storage)
    gpu.ledger.place_storage(result, target)
    return result


def _clone(gpu: PracticeGPU, original: Handler, storage: _Storage) -> _Storage:
    if storage.device.type == "meta":
        return original(storage)  # type: ignore[no-any-return]
    return _copy(gpu, storage, gpu.index_of(storage.device))


def _cpu(gpu: PracticeGPU, original: Handler, storage: _Storage) -> _Storage:
    if storage.device.type != "cuda":
        return original(storage)  # type: ignore[no-any-return]
    gpu.record(TO_HOST, "storage.cpu()", storage.nbytes())
    return _copy(gpu, storage, CPU)


def _to(
    gpu: PracticeGPU, original: Handler, storage: _Storage, *, device: Any, non_blocking: bool = False
) -> _Storage:
    device = as_device(device)
    if device.type not in ("cpu", "cuda"):
        return original(storage, device=device, non_blocking=non_blocking)  # type: ignore[no-any-return]
    source, target = gpu.index_of(storage.device), gpu.index_of(device)
    if source == target:
        return storage
    gpu.record(TO_DEVICE if target >= 0 else TO_HOST, "storage.to()", storage.nbytes())
    return _copy(gpu, storage, target)


def _new_shared(gpu: PracticeGPU, original: Handler) -> Any:
    """Make the shared storage into which DataLoader workers collate, on the device of the samples."""

    def new_shared(size: int, *, device: Any = "cpu") -> _Storage:
        target = gpu.index_of(as_device(device))
        if target < 0:
            return original(size, device=device)  # type: ignore[no-any-return]
        return _copy(gpu, torch.UntypedStorage(size), target)  # type: ignore[no-untyped-call]

    return staticmethod(new_shared)


def _is_shared(gpu: PracticeGPU, original: Handler, storage: _Storage) -> bool:
    return storage.device.type == "cuda" or original(storage)  # a GPU's memory always is


def _resize(gpu: PracticeGPU, original: Handler, storage: _Storage, size: int) -> Any:
    result = original(storage, size)
    gpu.ledger.measure_again(storage)
    return result
