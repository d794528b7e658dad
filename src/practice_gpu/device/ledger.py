"""Which simulated device every storage lives on.

A tensor on the practice GPU is an ordinary CPU tensor; what makes it a CUDA tensor is an entry here, under
the address of its *storage*. Views, ``detach()``, ``.data =`` and parameters share a storage, so they share
the entry.
"""

import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from practice_gpu import errors
from practice_gpu.device.allocator import Allocator, rounded

CPU = -1
HOST = torch.device("cpu")

UNPLACED_BIT = 1
"""Made inside a C++ operator on no known device: it takes the device of the first tensor it meets."""
CPU_BIT = 2
"""No entry in the ledger."""
GPU_BIT = 4
"""Bit of ``cuda:0``; ``cuda:1`` is the next, and so on."""

address_of: Callable[[torch.Tensor], int] = torch._C._storage_address  # type: ignore[attr-defined]
"""The address of a tensor's storage object; an error if it has no storage (sparse, or of torch.func).

PyTorch keeps one Python object per storage as long as the storage lives, so a weak reference notices its end.
"""

_NO_STORAGE = (RuntimeError, NotImplementedError)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""The types of nearly all tensors; these never wrap others."""


class Block(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a storage, with the device it is on and the bytes it takes there."""

    __slots__ = ("address", "bit", "index", "size")
    address: int
    bit: int
    index: int
    size: int


class Observer(Protocol):
    """Gets a call for every storage with memory that is allocated or freed on a device."""

    def born(self, block: Block) -> None:
        """Note that a block was just entered."""

    def died(self, block: Block) -> None:
        """Note that a block was just freed; this may happen at any moment."""


class Ledger:
    """The table of blocks, by the addresses of their storages, with an allocator for each device."""

    def __init__(self, count: int, capacity: int) -> None:
        self.blocks: dict[int, Block] = {}  # others keep references to both: change them, never replace them
        self.pinned: dict[int, Block] = {}
        self.any_unplaced = False
        """Whether there has been a tensor on no known device."""
        self.allocators = tuple(Allocator(index, capacity) for index in range(count))
        self.used = False
        """Whether CUDA is initialised, as PyTorch calls it: after the first use."""
        self.observers: list[Observer] = []
        self._process = os.getpid()
        self._forget = self._forgetting(self.blocks)
        self._forget_pinned = self._forgetting(self.pinned)

    # -- where a tensor is

    def index(self, tensor: torch.Tensor) -> int:
        """Return the number of the simulated device that `tensor` is on, or -1 for the CPU."""
        block = self._block(tensor)
        return CPU if block is None else block.index

    def bit(self, tensor: torch.Tensor) -> int:
        """Return the bit for the device that `tensor` is on."""
        block = self._block(tensor)
        return CPU_BIT if block is None else block.bit

    def is_unplaced(self, tensor: torch.Tensor) -> bool:
        """Return whether `tensor` is on no known device yet."""
        return self.bit(tensor) == UNPLACED_BIT

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return whether `tensor` is in page-locked host memory."""
        return any(address_of(part) in self.pinned for part in dense_parts(tensor))

    # -- changes

    def use(self) -> None:
        """Record that CUDA is used, or raise its error in a child forked after CUDA was used."""
        if self.is_forked():
            raise errors.forked()
        self.used, self._process = True, os.getpid()

    def is_forked(self) -> bool:
        """Return whether this is a child forked after CUDA was used."""
        return self.used and os.getpid() != self._process

    def enter(self, storage: torch.UntypedStorage, address: int, index: int) -> None:
        """Enter a storage for the first time, on device `index`, or raise CUDA's error if it does not fit."""
        if os.getpid() != self._process or not self.used:
            self.use()
        size = rounded(storage.nbytes())
        self.allocators[index].take(size)
        block = self.blocks[address] = Block(storage, self._forget)  # quicker than _note, in a hot path
        block.address, block.bit, block.index, block.size = address, GPU_BIT << index, index, size
        if size:
            for observer in self.observers:
                observer.born(block)

    def place(self, tensor: torch.Tensor, index: int) -> None:
        """Record that `tensor` is on device `index` (-1: the CPU), and allocate or free its memory."""
        for part in dense_parts(tensor):
            self.place_storage(part.untyped_storage(), index)

    def place_new(self, results: Any, index: int) -> None:
        """Like :meth:`place`, for all tensors in an operator's results that have no entry yet."""
        for tensor in tensors_in(results):
            if not tensor.is_meta and self.bit(tensor) == CPU_BIT:
                self.place(tensor, index)

    def place_storage(self, storage: torch.UntypedStorage, index: int) -> None:
        """Like :meth:`place`, for a storage."""
        block = self.blocks.get(storage._cdata)
        if block is not None:
            if block.index == index and block.bit != UNPLACED_BIT:
                return
            self._forget(block)
        if index >= 0:
            self.enter(storage, storage._cdata, index)

    def measure_again(self, storage: torch.UntypedStorage) -> None:
        """Update the entry of a storage that was resized."""
        block = self.blocks.get(storage._cdata)
        if block is not None and block.index >= 0 and block.size != rounded(storage.nbytes()):
            self._forget(block)
            self.enter(storage, storage._cdata, block.index)

    def mark_unplaced(self, results: Any) -> None:
        """Record that the tensors in an operator's results are on no known device yet."""
        for tensor in tensors_in(results):
            for part in dense_parts(tensor):
                storage = part.untyped_storage()
                if storage._cdata not in self.blocks:
                    self.any_unplaced = True
                    self._note(self.blocks, storage, UNPLACED_BIT, CPU)

    def mark_pinned(self, tensor: torch.Tensor) -> None:
        """Record that `tensor` is in page-locked host memory."""
        self._note(self.pinned, tensor.untyped_storage(), CPU_BIT, CPU)

    def note_wrapper(self, tensor: torch.Tensor, index: int) -> None:
        """Record that a tensor that wraps others is on device `index`, where it takes no memory itself."""
        self._note(self.blocks, tensor.untyped_storage(), GPU_BIT << index, index)

    # -- inside

    def _note(self, table: dict[int, Block], storage: torch.UntypedStorage, bit: int, index: int) -> None:
        """Enter a storage that takes no memory."""
        address = storage._cdata
        block = table[address] = Block(storage, self._forget_pinned if table is self.pinned else self._forget)
        block.address, block.bit, block.index, block.size = address, bit, index, 0

    def _forgetting(self, table: dict[int, Block]) -> Callable[[Block], None]:
        give_back = [allocator.give_back for allocator in self.allocators]
        observers = self.observers

        def forget(block: Block) -> None:
            # else the storage was entered again, or another has its address
            if table.get(block.address) is block:
                del table[block.address]
                if block.size:
                    give_back[block.index](block.size)
                    for observer in observers:
                        observer.died(block)

        return forget

    def _block(self, tensor: torch.Tensor) -> Block | None:
        try:
            block = self.blocks.get(address_of(tensor))
        except _NO_STORAGE:
            return self._block_of_parts(tensor)
        if block is None and type(tensor) not in _PLAIN and parts_of_wrapper(tensor):
            return self._block_of_parts(tensor)
        return block

    def _block_of_parts(self, tensor: torch.Tensor) -> Block | None:
        parts = dense_parts(tensor)
        return self.blocks.get(address_of(parts[0])) if parts else None


def wraps_others(kind: type) -> bool:
    """Return whether tensors of this class wrap others, as far as its ``__torch_dispatch__`` shows."""
    plain = kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
    return not plain and not kind.__module__.startswith("torch._subclasses")  # those of PyTorch's tracers


def parts_of_wrapper(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that another wraps, such as the local part of a ``DTensor``; else an empty list.

    Wrappers that PyTorch makes in C++ are not in the ledger; what they wrap is.
    """
    if not wraps_others(type(tensor)) or not hasattr(tensor, "__tensor_flatten__"):
        return []
    # it may still be under construction
    held = [getattr(tensor, name, None) for name in tensor.__tensor_flatten__()[0]]
    return [each for each in held if isinstance(each, torch.Tensor)]


def dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors with storages that `tensor` consists of: itself, or parts."""
    if type(tensor) not in _PLAIN and (parts := parts_of_wrapper(tensor)):
        return tuple(dense for part in parts for dense in dense_parts(part))
    layout = tensor.layout
    if layout is torch.strided or layout is torch.jagged:
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
        return (tensor,) if torch._C._has_storage(tensor) else ()
    with torch._C._DisableTorchDispatch():
        if layout is torch.sparse_coo:
            return tensor._values(), tensor._indices()
        if layout in (torch.sparse_csr, torch.sparse_bsr):
            return tensor.values(), tensor.crow_indices(), tensor.col_indices()
        if layout in (torch.sparse_csc, torch.sparse_bsc):
            return tensor.values(), tensor.ccol_indices(), tensor.row_indices()
    return ()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a tensor, a list or tuple of tensors, or lists of those."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
