"""The moment of the most memory: against counting at every moment."""

import random

import pytest
from records import allocation, random_record, record

from gpulesson_tools.planning.memory.peak import peak


def held(program, position):
    """The numbers of what is alive after an event, and their bytes in blocks of 512."""
    alive = set()
    for event in program.events[: position + 1]:
        alive = alive | {event} if event >= 0 else alive - {~event}
    return alive, sum(-(-program.allocations[each].nbytes // 512) * 512 for each in alive)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_higher_than_the_peak_and_nothing_before_it_as_high(seed):
    program = random_record(random.Random(seed), 300)
    found = peak(program)
    every = [held(program, at)[1] for at in range(len(program.events))]
    assert found.nbytes == max(every)
    assert found.position == every.index(max(every))
    alive, _ = held(program, found.position)
    assert found.alive == [program.allocations[each] for each in sorted(alive)]


@pytest.mark.parametrize("sums", ["by_kind", "by_module", "by_line"])
def test_the_sums_tell_of_every_byte_the_most_first(sums):
    found = peak(random_record(random.Random(11), 300))
    figures = list(getattr(found, sums).values())
    assert len(figures) > 1
    assert sum(figures) == found.nbytes
    assert figures == sorted(figures, reverse=True)


def test_bytes_by_kind_module_and_line():
    program = record(
        [
            allocation(1000, kind="parameters", module="fc", filename="net.py", line=3),
            allocation(3000, kind="activations", module="fc", filename="net.py", line=9),
            allocation(2000, kind="activations"),
            allocation(100, kind="activations"),
        ],
        [0, 1, ~1, 1 + 1, 3, ~3],
    )
    found = peak(program)
    assert (found.position, found.nbytes) == (1, 4096)
    assert found.by_kind == {"activations": 3072, "parameters": 1024}
    assert found.by_module == {"fc": 4096}
    assert found.by_line == {"net.py:9": 3072, "net.py:3": 1024}


def test_what_has_no_line_has_an_empty_name():
    assert peak(record([allocation(1)], [0])).by_line == {"": 512}


def test_nothing_is_held_if_nothing_is_made():
    found = peak(record([], []))
    assert (found.position, found.nbytes, found.alive, found.by_kind) == (-1, 0, [], {})
