"""A record's events in the caching allocator, and whether a program fits."""

import random

import pytest
from records import allocation, random_record, record

from gpulesson_tools.planning.memory.caching import CachingAllocator
from gpulesson_tools.planning.memory.fitting import (
    CONTEXT,
    CUBLAS,
    CUDNN,
    Replay,
    cublas_workspace,
    replay,
    verdict,
)

MIB, GIB = 2**20, 2**30


def sizes(*mib):
    return [allocation(each * MIB) for each in mib]


@pytest.mark.parametrize("expandable", [False, True])
def test_a_replay_is_what_the_allocator_says_step_by_step(expandable):
    program = random_record(random.Random(3), 2000)
    allocator, blocks = CachingAllocator(None, expandable), {}
    for event in program.events:
        if event >= 0:
            blocks[event] = allocator.malloc(program.allocations[event].nbytes)
        else:
            allocator.free(blocks.pop(~event))
    answer = replay(program, expandable_segments=expandable)
    assert answer == Replay(allocator.peak_allocated, allocator.peak_reserved, 0, None)


def test_more_is_reserved_without_a_limit_than_the_program_needs_with_one():
    program = record(sizes(30, 40, 50), [0, ~0, 1, ~1, 2])
    assert replay(program).peak_reserved == 120 * MIB
    limited = replay(program, capacity=50 * MIB)
    assert (limited.out_of_memory, limited.retries, limited.peak_reserved) == (None, 2, 50 * MIB)
    assert replay(program, capacity=50 * MIB - 1).out_of_memory == 4


def test_tensors_without_elements_take_nothing():
    assert replay(record([allocation(0), allocation(1)], [0, ~0, 1])).peak_allocated == 512
    assert replay(record([], [])).peak_allocated == 0


@pytest.mark.parametrize("phases, workspaces", [(["forward"], 1), (["forward", "backward"], 2)])
def test_each_thread_has_a_cublas_workspace(phases, workspaces):
    program = record([allocation(512, phase=phase) for phase in phases], list(range(len(phases))))
    answer = replay(program, workspace=8_519_680)
    assert answer.peak_allocated == workspaces * 8_519_680 + 512 * len(phases)
    assert answer.peak_reserved == 22 * MIB
    assert replay(program, capacity=20 * MIB, workspace=32 * MIB).out_of_memory == 0


@pytest.mark.parametrize(
    "capability, expected", [((7, 5), 8_519_680), ((9, 0), 32 * MIB), ((12, 0), 32 * MIB)]
)
def test_the_workspace_depends_on_the_gpu(capability, expected):
    assert cublas_workspace(capability) == expected


# 16 GiB leave 15.73 GiB with the smallest context and 14.69 with the largest, 85 % of which is 12.48
@pytest.mark.parametrize(
    "needed, answer", [(12.4, "fits"), (12.5, "close"), (15.6, "close"), (15.8, "does not fit")]
)
def test_fits_close_and_does_not(needed, answer):
    given = verdict(record([allocation(int(needed * GIB))], [0]), 16 * GIB, (7, 5))
    assert given.answer == answer
    assert (given.replay.out_of_memory is None) == (answer != "does not fit")
    assert given.most_left == 16 * GIB - 287_047_680
    assert given.least_left == 16 * GIB - 1343 * MIB
    assert given.unknown == (CONTEXT, CUBLAS, CUDNN)


def test_a_gpu_smaller_than_its_context_fits_nothing():
    assert verdict(record([allocation(1)], [0]), 100 * MIB).answer == "does not fit"


def test_what_is_cached_is_not_needed():
    program = record(sizes(8000, 9000), [0, ~0, 1])
    assert replay(program).peak_reserved == 17_000 * MIB
    assert verdict(program, 12 * GIB).answer == "fits"
