"""The caching allocator: against the rules written down a second time, and against what users have seen."""

import itertools
import os
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpulesson_tools.planning.memory.caching import CachingAllocator

MIB = 2**20

# ---------------------------------------------------------------------------------------------------------
# The rules a second time: a segment is a list of pieces, each search looks at every piece, nothing is linked.

FREE, HOLE = "free", "hole"  # nobody has it; there is no memory behind it
ENDLESS = 2**40  # pages


class Oracle:
    """Segments are [address, small, pieces]; a piece is [bytes, owner]: FREE, HOLE, or a number."""

    def __init__(self, capacity, expandable):
        self.capacity, self.expandable = capacity, expandable
        self.segments, self.retries, self.end = [], 0, 0
        if expandable:
            large, small = 20 * MIB * ENDLESS, 2 * MIB * ENDLESS
            self.segments = [[0, False, [[large, HOLE]]], [large, True, [[small, HOLE]]]]

    def pieces(self):
        """Every piece as (segment, place in it, address, bytes, owner)."""
        for segment in self.segments:
            address = segment[0]
            for at, (size, owner) in enumerate(segment[2]):
                yield segment, at, address, size, owner
                address += size

    @property
    def reserved(self):
        return sum(size for *_, size, owner in self.pieces() if owner != HOLE)

    @property
    def allocated(self):
        return sum(size for *_, size, owner in self.pieces() if owner not in (FREE, HOLE))

    def address(self, number):
        return next(address for _, _, address, _, owner in self.pieces() if owner == number)

    def malloc(self, number, nbytes):
        size = max(512, (nbytes + 511) // 512 * 512)
        small = size <= MIB
        found = self.best_fit(size, small)
        if found is None:
            found = self.from_cuda(size, small)
        if found is None:
            self.release()
            self.retries += 1
            found = self.from_cuda(size, small)
        if found is None:
            return False
        segment, at = found
        rest = segment[2][at][0] - size
        keep = rest < 512 if small or self.expandable else rest <= MIB
        segment[2][at : at + 1] = [[size + rest, number]] if keep else [[size, number], [rest, FREE]]
        return True

    def free(self, number):
        for _, pieces in ((segment[0], segment[2]) for segment in self.segments):
            for piece in pieces:
                if piece[1] == number:
                    piece[1] = FREE
        self.tidy()

    def tidy(self):
        for segment in self.segments:
            tidied = []
            for size, owner in segment[2]:
                if tidied and owner in (FREE, HOLE) and tidied[-1][1] == owner:
                    tidied[-1][0] += size
                elif size:
                    tidied.append([size, owner])
            segment[2] = tidied

    def best_fit(self, size, small):
        fitting = sorted(
            (length, address, segment, at)
            for segment, at, address, length, owner in self.pieces()
            if owner == FREE and segment[1] == small and length >= size
        )

        def could_be(entry):
            length, _, segment, at = entry
            behind = segment[2][at + 1 : at + 2]
            return length + (behind[0][0] if behind and behind[0][1] == HOLE else 0)

        while self.expandable and len(fitting) > 1 and could_be(fitting[1]) < could_be(fitting[0]):
            del fitting[0]
        return fitting[0][2:] if fitting else None

    def can_have(self, more):
        return self.capacity is None or self.reserved + more <= self.capacity

    def from_cuda(self, size, small):
        if self.expandable:
            return self.grow(size, small)
        more = (
            2 * MIB if small else 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        )
        if not self.can_have(more):
            return None
        self.segments.append([self.end, small, [[more, FREE]]])
        self.end += more
        return self.segments[-1], 0

    def grow(self, size, small):
        """In the first run of pieces that nobody has, with a hole, that is long enough: fill its holes."""
        (segment,) = (each for each in self.segments if each[1] == small)
        start, page = self.first_run(segment[2], size), (2 if small else 20) * MIB
        while True:
            length, owner = segment[2][start]
            if owner == FREE and length >= size:
                return segment, start
            at, have = (start, 0) if owner == HOLE else (start + 1, length)
            hole = segment[2][at][0]
            more = min((size - have + page - 1) // page * page, hole)
            if not self.can_have(more):
                return None
            segment[2][at : at + 1] = [[more, FREE], [hole - more, HOLE]]
            self.tidy()

    def first_run(self, pieces, size):
        for start in range(len(pieces)):
            run = list(itertools.takewhile(lambda piece: piece[1] in (FREE, HOLE), pieces[start:]))
            if any(owner == HOLE for _, owner in run) and sum(length for length, _ in run) >= size:
                return start
        raise AssertionError("no room")

    def release(self):
        """Drop whole free segments; of an expandable one, make holes of the pages that are wholly free."""
        if not self.expandable:
            self.segments = [each for each in self.segments if [owner for _, owner in each[2]] != [FREE]]
        for segment, at, address, size, owner in reversed(list(self.pieces())):
            if owner == FREE and self.expandable:
                page, begin = (2 if segment[1] else 20) * MIB, address - segment[0]
                first, last = (begin + page - 1) // page * page, (begin + size) // page * page
                if first < last:
                    ends = [[first - begin, FREE], [last - first, HOLE], [begin + size - last, FREE]]
                    segment[2][at : at + 1] = ends
        self.tidy()

    def pieces_with_memory(self):
        """The pieces with memory behind them: (address, bytes, is used)."""
        return [(address, size, owner != FREE) for *_, address, size, owner in self.pieces() if owner != HOLE]


SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, MIB),
    st.integers(MIB - 600, MIB + 600),
    st.integers(MIB, 10 * MIB),
    st.integers(10 * MIB - 600, 10 * MIB + 600),
    st.integers(10 * MIB, 45 * MIB),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES),
        st.tuples(st.just("free"), st.integers(0, 30)),
        st.tuples(st.just("empty"), st.just(0)),
    ),
    max_size=60,
)
CAPACITY = st.one_of(st.none(), st.integers(10, 150).map(lambda mib: mib * MIB))


def compare(steps, capacity, expandable):
    """Let both serve the same steps; return how often there was too little."""
    allocator, oracle = CachingAllocator(capacity, expandable), Oracle(capacity, expandable)
    blocks, failures = {}, 0
    for number, (what, value) in enumerate(steps):
        if what == "malloc":
            fitted = oracle.malloc(number, value)
            if fitted:
                blocks[number] = allocator.malloc(value)
            else:
                failures += 1
                with pytest.raises(torch.OutOfMemoryError):
                    allocator.malloc(value)
        elif what == "free" and blocks:
            chosen = sorted(blocks)[value % len(blocks)]
            allocator.free(blocks.pop(chosen))
            oracle.free(chosen)
        elif what == "empty":
            allocator.empty_cache()
            oracle.release()
        assert (allocator.allocated, allocator.reserved) == (oracle.allocated, oracle.reserved)
        assert allocator.retries == oracle.retries
        assert pieces_with_memory(allocator, blocks.values()) == oracle.pieces_with_memory()
        assert allocator.peak_allocated >= allocator.allocated
        assert capacity is None or allocator.peak_reserved <= capacity
    return failures


def pieces_with_memory(allocator, used):
    """All blocks with memory behind them: (address, bytes, is used)."""
    free = [block for pool in allocator._free.values() for _, _, block in pool]
    return sorted((block.address, block.size, block.used) for block in (*used, *free))


FUZZ = settings(
    max_examples=int(os.environ.get("GPULESSON_FUZZ_EXAMPLES", "300")),
    deadline=None,  # a busy machine fails no test
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.slow
@FUZZ
@given(STEPS, CAPACITY)
def test_random_programs_get_the_blocks_that_the_rules_say(steps, capacity):
    compare(steps, capacity, expandable=False)


@FUZZ
@given(STEPS, CAPACITY)
def test_random_programs_get_the_blocks_that_the_rules_say_in_expandable_segments(steps, capacity):
    compare(steps, capacity, expandable=True)


def random_steps(seed, count):
    """A long program: mostly small requests, in a memory that is nearly full."""
    chance = random.Random(seed)
    sizes = [600, 5000, 300_000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB, 11 * MIB, 27 * MIB]
    for _ in range(count):
        what = chance.choices(["malloc", "free", "empty"], [60, 55, 1])[0]
        yield (
            what,
            chance.randrange(1000)
            if what == "free"
            else int(chance.choice(sizes) * chance.uniform(0.5, 1.5)),
        )


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("capacity", [None, 100 * MIB, 400 * MIB])
def test_long_programs_get_the_blocks_that_the_rules_say(capacity, expandable):
    failures = sum(compare(list(random_steps(seed, 300)), capacity, expandable) for seed in range(3))
    assert bool(failures) == (capacity == 100 * MIB)


# ---------------------------------------------------------------------------------------------------------
# What users have seen on GPUs


def test_a_first_small_tensor_reserves_2_mib():
    allocator = CachingAllocator()
    allocator.malloc(4)
    assert (allocator.allocated, allocator.reserved) == (512, 2_097_152)


def test_a_cublas_workspace_takes_a_segment_of_20_mib():
    # https://github.com/pytorch/pytorch/issues/95668 has the 8519680 bytes
    allocator = CachingAllocator()
    allocator.malloc(8_519_680)
    assert (allocator.allocated, allocator.reserved) == (8_519_680, 20_971_520)


@pytest.mark.parametrize(
    "nbytes, reserved",
    [
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
    ],
)
def test_a_segment_is_as_large_as_the_request_decides(nbytes, reserved):
    allocator = CachingAllocator()
    allocator.malloc(nbytes)
    assert allocator.reserved == reserved


@pytest.mark.parametrize("asked, taken", [(19 * MIB - 512, 19 * MIB - 512), (19 * MIB, 20 * MIB)])
def test_in_the_large_pool_a_rest_of_up_to_1_mib_is_not_cut_off(asked, taken):
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(20 * MIB))
    assert allocator.malloc(asked).size == allocator.allocated == taken
    assert CachingAllocator(expandable_segments=True).malloc(asked).size == asked


def test_free_memory_is_cached_until_the_cache_is_emptied():
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(30 * MIB))
    assert (allocator.allocated, allocator.reserved) == (0, 30 * MIB)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved) == (0, 0)
    assert (allocator.peak_allocated, allocator.peak_reserved) == (30 * MIB, 30 * MIB)


def fragmented(**settings):
    """Four tensors of 10 MiB side by side; the second and the fourth are gone."""
    allocator = CachingAllocator(**settings)
    allocator.free(allocator.malloc(40 * MIB))
    blocks = [allocator.malloc(10 * MIB) for _ in range(4)]
    for block in blocks[1::2]:
        allocator.free(block)
    return allocator


def test_enough_free_bytes_are_not_enough_if_they_lie_apart():
    allocator = fragmented(capacity=40 * MIB)
    assert allocator.reserved - allocator.allocated == 20 * MIB
    with pytest.raises(torch.OutOfMemoryError) as caught:
        allocator.malloc(20 * MIB)
    assert "Tried to allocate 20.00 MiB" in str(caught.value)
    assert "20.00 MiB is reserved by PyTorch but unallocated" in str(caught.value)


def test_expandable_segments_cure_fragmentation():
    with pytest.raises(torch.OutOfMemoryError):
        fragmented(capacity=60 * MIB).malloc(30 * MIB)
    allocator = fragmented(capacity=60 * MIB, expandable_segments=True)
    block = allocator.malloc(30 * MIB)  # the last 10 MiB, and a page of 20 MiB behind them
    assert (block.address, block.size, allocator.reserved) == (30 * MIB, 30 * MIB, 60 * MIB)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_a_request_without_bytes_is_refused(nbytes):
    with pytest.raises(ValueError, match=f"nbytes is {nbytes}"):
        CachingAllocator().malloc(nbytes)


def test_a_block_is_given_back_once():
    allocator = CachingAllocator()
    block = allocator.malloc(1)
    allocator.free(block)
    with pytest.raises(ValueError, match="is free already"):
        allocator.free(block)
