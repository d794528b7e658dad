"""What PyTorch's caching allocator makes of a record: how much memory it reserves, and when it is full.

PyTorch asks CUDA for memory in segments, hands out blocks of them, and keeps a segment when its blocks are
free again. So more is reserved than is allocated, and a program can fail although enough bytes are free: no
free block is long enough. :class:`CachingAllocator` follows the rules of PyTorch's own allocator,
`c10/cuda/CUDACachingAllocator.cpp
<https://github.com/pytorch/pytorch/blob/eb42ad6eca0ce61e7c581212b4bf32f991425571/c10/cuda/CUDACachingAllocator.cpp>`_,
with its default settings and one stream; the sizes are those of ``c10/core/AllocatorConfig.h`` in PyTorch
2.15. :func:`gpulesson_tools.planning.memory.fitting.replay` gives it the events of a record.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import cast

from practice_gpu import errors
from practice_gpu.device.allocator import (
    BLOCK,
    LARGE_SEGMENT,
    SMALL,
    SMALL_SEGMENT,
    rounded,
    rounded_up,
    segment_size,
)

MIB = 2**20

_PAGES = 2**40  # of the address space of an expandable segment: no GPU has as many


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment, with its neighbours there."""

    address: int
    size: int  # bytes: what was asked for, rounded up, and a rest that was not cut off
    small: bool  # it belongs to the small pool
    expandable: bool = False  # its segment is
    used: bool = False  # a tensor has it
    mapped: bool = True  # there is memory behind its addresses: always, except in an expandable segment
    previous: Block | None = field(default=None, repr=False)
    next: Block | None = field(default=None, repr=False)

    @property
    def alone(self) -> bool:
        """It is the whole of its segment."""
        return self.previous is None and self.next is None

    @property
    def extent(self) -> int:
        """Its size, with the addresses after it that have no memory yet."""
        return self.size + (self.next.size if self.next and not self.next.mapped else 0)

    @property
    def room(self) -> int:
        """Bytes from its begin to the next block that is used, or to the end of the segment."""
        size, block = 0, cast("Block | None", self)
        while block and not block.used:
            size, block = size + block.size, block.next
        return size

    def cut(self, size: int) -> Block:
        """Keep the first `size` bytes; return the rest, its new neighbour."""
        rest = Block(self.address + size, self.size - size, self.small, self.expandable, mapped=self.mapped)
        rest.previous, rest.next = self, self.next
        if self.next:
            self.next.previous = rest
        self.size, self.next = size, rest
        return rest

    def join(self) -> None:
        """Take in the next block."""
        assert self.next is not None
        self.size += self.next.size
        self.next = self.next.next
        if self.next:
            self.next.previous = self


class CachingAllocator:
    """PyTorch's caching allocator for one GPU and one stream, with nothing behind its addresses.

    Parameters
    ----------
    capacity : int or None
        Bytes that CUDA has for it; None for as many as it asks for.
    expandable_segments : bool
        As ``PYTORCH_ALLOC_CONF=expandable_segments:True``: each pool is one segment that grows.

    Attributes
    ----------
    allocated, reserved : int
        Bytes in blocks that are used, and in all segments: ``torch.cuda.memory_allocated()`` and
        ``torch.cuda.memory_reserved()``.
    peak_allocated, peak_reserved : int
        The most so far.
    retries : int
        How often CUDA had no more, so that cached segments were given back to it
        (``num_alloc_retries`` of ``torch.cuda.memory_stats()``).

    Notes
    -----
    Not followed: CUDA's choice of addresses (here, each segment lies behind those before it), several
    streams, and the settings of ``PYTORCH_ALLOC_CONF`` other than ``expandable_segments``. The address
    space of an expandable segment has no end here; CUDA's is 9/8 of the GPU's memory.

    Examples
    --------
    >>> allocator = CachingAllocator()
    >>> small, large = allocator.malloc(1000), allocator.malloc(3_000_000)
    >>> allocator.allocated, allocator.reserved  # 1024 + 3000320; segments of 2 MiB and of 20 MiB
    (3001344, 23068672)
    >>> allocator.free(large)
    >>> allocator.empty_cache()
    >>> allocator.allocated, allocator.reserved
    (1024, 2097152)
    """

    def __init__(self, capacity: int | None = None, expandable_segments: bool = False) -> None:
        self.capacity, self.expandable_segments = capacity, expandable_segments
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = self.retries = 0
        # by pool, small or not: free blocks by size, then address; addresses without memory in their order
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._unmapped: dict[bool, list[tuple[int, Block]]] = {True: [], False: []}
        self._end = 0  # the address after the last segment
        if expandable_segments:
            for small in (False, True):  # in this order each begins at a multiple of its pages
                self._put(self._segment(page_size(small) * _PAGES, small, mapped=False))

    def malloc(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes` bytes.

        Raises
        ------
        ValueError
            If `nbytes` is less than 1.
        torch.OutOfMemoryError
            With PyTorch's own words, if neither a free block nor what CUDA has left is enough.
        """
        if nbytes < 1:
            raise ValueError(f"nbytes is {nbytes}; only tensors with elements have memory: give 1 or more")
        size = rounded(nbytes)
        block = self._cached(size) or self._new(size)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._new(size)
        if block is None:
            raise self._full(size)
        block.used = True
        rest = block.size - size
        if rest >= BLOCK if block.small or self.expandable_segments else rest > SMALL:
            self._put(block.cut(size))
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Take a block back. It is cached: CUDA does not get it."""
        if not block.used:
            raise ValueError(f"the block at address {block.address} is free already")
        block.used = False
        self.allocated -= block.size
        self._put(block)

    def empty_cache(self) -> None:
        """Give memory back to CUDA: whole segments that are free, or the free pages of expandable ones."""
        for free in self._free.values():
            for _, _, block in tuple(free):
                if block.expandable:
                    self._unmap(block)
                elif block.alone:
                    self._take(block)
                    self.reserved -= block.size

    # -- free blocks

    def _put(self, block: Block) -> Block:
        """File a block that nothing uses, joined with such neighbours; return the whole."""
        after, before = block.next, block.previous
        if after and not after.used and after.mapped == block.mapped:
            self._take(after)
            block.join()
        if before and not before.used and before.mapped == block.mapped:
            self._take(before)
            before.join()
            block = before
        if block.mapped:
            insort(self._free[block.small], (block.size, block.address, block))
        else:
            insort(self._unmapped[block.small], (block.address, block))
        return block

    def _take(self, block: Block) -> None:
        """Remove a block from where it is filed."""
        if block.mapped:
            free = self._free[block.small]
            del free[bisect_left(free, (block.size, block.address))]
        else:
            unmapped = self._unmapped[block.small]
            del unmapped[bisect_left(unmapped, (block.address,))]

    def _cached(self, size: int) -> Block | None:
        """Take the smallest free block that is large enough, of equals the one with the lowest address."""
        free = self._free[size <= SMALL]
        at = bisect_left(free, (size,))
        if at == len(free):
            return None
        if self.expandable_segments:  # a block that can still grow counts as if it had grown
            while at + 1 < len(free) and free[at + 1][2].extent < free[at][2].extent:
                at += 1
        return free.pop(at)[2]

    # -- memory from CUDA

    def _new(self, size: int) -> Block | None:
        """Return a block with memory from CUDA, or None if it has too little."""
        if self.expandable_segments:
            return self._grown(size)
        return self._segment(segment_size(size), size <= SMALL) if self._reserve(segment_size(size)) else None

    def _segment(self, size: int, small: bool, mapped: bool = True) -> Block:
        block = Block(self._end, size, small, not mapped, mapped=mapped)
        self._end += size
        return block

    def _reserve(self, nbytes: int) -> bool:
        if self.capacity is not None and self.reserved + nbytes > self.capacity:
            return False
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return True

    def _grown(self, size: int) -> Block | None:
        """Put memory behind the lowest addresses at which `size` bytes have room; return what is there."""
        block: Block | None = self._room(size)
        if block and not block.mapped:
            block = self._map(block, size)
        while block and block.size < size:
            block = self._map(block.next, size - block.size)
        if block:
            self._take(block)
        return block

    def _room(self, size: int) -> Block:
        """Return the first of neighbours that no tensor has, which are long enough together."""
        for _, block in self._unmapped[size <= SMALL]:
            before = block.previous
            first = before if before and not before.used else block
            if first.room >= size:
                return first
        raise AssertionError("the address space of an expandable segment has no end")

    def _map(self, block: Block | None, size: int) -> Block | None:
        """Put memory behind the first `size` bytes, in whole pages; None if CUDA has too little."""
        assert block is not None and not block.mapped
        nbytes = min(rounded_up(size, page_size(block.small)), block.size)
        if not self._reserve(nbytes):
            return None
        self._take(block)
        rest = block.cut(nbytes) if nbytes < block.size else None
        block.mapped = True
        if rest:
            self._put(rest)
        return self._put(block)

    def _unmap(self, block: Block) -> None:
        """Give the whole pages in a free block back to CUDA."""
        page = page_size(block.small)
        start, end = rounded_up(block.address, page), (block.address + block.size) // page * page
        if start >= end:
            return
        self._take(block)
        middle = block.cut(start - block.address) if start > block.address else block
        pieces = [] if middle is block else [block]
        if end < middle.address + middle.size:
            pieces.append(middle.cut(end - start))
        middle.mapped = False
        self.reserved -= middle.size
        for piece in [*pieces, middle]:
            self._put(piece)

    def _full(self, size: int) -> RuntimeError:
        assert self.capacity is not None
        spare = self.reserved - self.allocated
        return errors.out_of_memory(
            segment_size(size), 0, self.capacity, self.capacity, self.allocated, spare
        )


def page_size(small: bool) -> int:
    """Return the bytes by which an expandable segment grows."""
    return SMALL_SEGMENT if small else LARGE_SEGMENT
