"""The memory of one simulated device, counted in blocks of 512 bytes.

The sizes are those of ``c10/core/AllocatorConfig.h`` in PyTorch 2.15.
"""

import re
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from practice_gpu import errors

BLOCK = 512
"""Requests are rounded up to a multiple of this (``kMinBlockSize`` of CUDA's allocator)."""
SMALL = 2**20
"""Requests up to here come from the small pool, larger ones from the large pool (``kSmallSize``)."""
SMALL_SEGMENT = 2 * 2**20
"""A segment of the small pool (``kSmallBuffer``)."""
MEDIUM = 10 * 2**20
"""From this size on, a request gets its own segment (``kMinLargeAlloc``)."""
LARGE_SEGMENT = 20 * 2**20
"""A segment that smaller requests of the large pool share (``large_segment_size_mb``)."""
ROUND_LARGE = 2 * 2**20
"""A request's own segment is rounded up to a multiple of this (``kRoundLarge``)."""


@dataclass(frozen=True)
class Memory:
    """Memory of one simulated device, in bytes; a real GPU's figures differ.

    Attributes
    ----------
    allocated, peak, reserved, capacity : int
        Held by tensors now; the most so far; what the allocator would hold; what the device has.
    requests : int
        Storages allocated so far.
    """

    allocated: int
    peak: int
    reserved: int
    capacity: int
    requests: int


@dataclass
class Pool:
    """Memory of one device reserved for CUDA graphs, in bytes: held by tensors now, and at most.

    While `capturing`, new tensors go there; once `released`, no graph uses it any more.
    """

    live: int = 0
    peak: int = 0
    capturing: bool = False
    released: bool = False

    @property
    def spare(self) -> int:
        """Bytes that no tensor holds and only those graphs may use."""
        return 0 if self.capturing else self.peak - self.live


class Allocator:
    """Counts the memory of one device; nothing is really allocated.

    ``allowed`` bytes may be used: ``torch.cuda.set_per_process_memory_fraction`` lowers it. ``pools`` belong
    to the CUDA graphs that exist.
    """

    def __init__(self, index: int, capacity: int) -> None:
        self.index = index
        self.capacity = self.allowed = capacity
        self._allocated = self._peak = self._reserved = self._requests = 0
        self._reserved_peak = self._given_back = self._bytes_given_back = self._blocks_peak = 0
        self._failures = 0
        self._freed: deque[int] = deque()
        self.give_back = self._freed.append
        """Queue bytes to be freed: a storage may be freed at any moment, even while the lock is held."""
        self._lock = threading.Lock()
        self.pools: list[Pool] = []

    def take(self, size: int) -> None:
        """Count `size` bytes more, a multiple of 512, or raise CUDA's error if they do not fit."""
        with self._lock:
            if self._freed:
                self._settle()
            used = allocated = self._allocated + size
            if self.pools:
                used += self._spare()
            if used > self.allowed:
                raise self._full(size)
            self._allocated = allocated
            self._requests += 1
            if allocated > self._peak:
                self._peak = allocated
            if self._requests - self._given_back > self._blocks_peak:
                self._blocks_peak = self._requests - self._given_back
            if used > self._reserved:
                self._reserved = used
                self._reserved_peak = max(self._reserved_peak, used)

    def require(self, nbytes: int) -> None:
        """Raise CUDA's out-of-memory error if `nbytes` more would not fit."""
        size = rounded(nbytes)
        with self._lock:
            self._settle()
            if self._allocated + self._spare() + size > self.allowed:
                raise self._full(size)

    def error_if_host_full(self, error: Exception) -> RuntimeError | None:
        """Return CUDA's error if `error` says that the host has no memory to compute with; else None."""
        asked = re.search(r"DefaultCPUAllocator: .* you tried to allocate (\d+) bytes", str(error))
        return None if asked is None else self._full(int(asked.group(1)))

    def memory(self) -> Memory:
        """Return the counts as they are now."""
        with self._lock:
            self._settle()
            return Memory(self._allocated, self._peak, self._reserved, self.capacity, self._requests)

    def reset_peak(self) -> None:
        """Forget the peak."""
        with self._lock:
            self._settle()
            self._peak, self._reserved_peak = self._allocated, self._reserved
            self._blocks_peak = self._requests - self._given_back

    def statistics(self) -> dict[str, Any]:
        """Return what ``torch.cuda.memory_stats_as_nested_dict`` returns, for all pools together.

        The names are those of ``THCPModule_memoryStats`` in PyTorch's ``torch/csrc/cuda/Module.cpp``.
        """
        with self._lock:
            self._settle()
            blocks = _figures(self._requests - self._given_back, self._blocks_peak, self._given_back)
            nbytes = _figures(self._allocated, self._peak, self._bytes_given_back)
            return {
                "num_alloc_retries": self._failures,
                "num_ooms": self._failures,
                "num_sync_all_streams": 0,
                "max_split_size": -1,
                **{name: {"all": dict(blocks)} for name in ("allocation", "active")},
                **{name: {"all": dict(nbytes)} for name in ("allocated_bytes", "active_bytes")},
                "reserved_bytes": {"all": {"current": self._reserved, "peak": self._reserved_peak}},
                "oversize_allocations": _figures(0, 0, 0),
                "oversize_segments": _figures(0, 0, 0),
            }

    def empty_cache(self) -> None:
        """Free what is reserved but not allocated."""
        with self._lock:
            self._settle()
            self._reserved = self._allocated + self._spare()

    def _spare(self) -> int:
        return sum(pool.spare for pool in self.pools)

    def free(self) -> int:
        """Return the free bytes."""
        with self._lock:
            self._settle()
            return self.capacity - self._allocated - self._spare()

    def _settle(self) -> None:
        while self._freed:
            size = self._freed.popleft()
            self._allocated -= size
            self._bytes_given_back += size
            self._given_back += 1

    def _full(self, size: int) -> RuntimeError:
        spare = self._spare()
        self._failures += 1
        self._reserved = self._allocated + spare  # the allocator frees its cache before it gives up
        asked = segment_size(size)  # CUDA's allocator names what it asked for, not the tensor
        return errors.out_of_memory(asked, self.index, self.capacity, self.allowed, self._allocated, spare)


def _figures(current: int, peak: int, freed: int) -> dict[str, int]:
    return {"current": current, "peak": peak, "allocated": current + freed, "freed": freed}


def rounded(nbytes: int) -> int:
    """Round bytes up to a multiple of `BLOCK`."""
    return (nbytes + BLOCK - 1) & -BLOCK


def segment_size(size: int) -> int:
    """Return the bytes that PyTorch asks CUDA for if no free block is large enough for `size` bytes."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < MEDIUM else rounded_up(size, ROUND_LARGE)


def rounded_up(nbytes: int, multiple: int) -> int:
    """Round bytes up to any multiple."""
    return -(-nbytes // multiple) * multiple
