"""Any batch from two: the line through two records, where they have to match, and the largest batch."""

import dataclasses
import itertools

import pytest
from records import allocation, operation, record

from gpulesson_tools.planning.memory.any_batch import at_batch, largest_batch
from gpulesson_tools.planning.memory.fitting import replay
from gpulesson_tools.planning.recording.record import Place

MIB = 2**20


def recorded(batch, *sizes, operations=(), events=None):
    """A record whose sizes are functions of the batch."""
    made = [
        allocation(size(batch), filename="train.py", line=n, operator="addmm") for n, size in enumerate(sizes)
    ]
    return record(made, events or list(range(len(made))), operations=list(operations), batch_size=batch)


@pytest.mark.parametrize(
    "size",
    [
        lambda b: 4096,
        lambda b: 400 * b,
        lambda b: 1000 + 12 * b,
        lambda b: 100 * (b - 1),
        lambda b: 4 * b * b,
        lambda b: 0,
    ],
    ids=["constant", "in proportion", "with a constant", "one less", "all pairs", "nothing"],
)
def test_sizes_are_what_another_batch_would_have(size):
    for pair, batch in itertools.product([(2, 3), (3, 2), (2, 4), (4, 7)], [1, 2, 3, 5, 8, 1000]):
        first, second = (recorded(each, size) for each in pair)
        predicted = at_batch(first, second, batch)
        assert predicted.allocations[0].nbytes == size(batch), (pair, batch)
        assert predicted.batch_size == batch
        assert predicted.events == first.events
        assert predicted.allocations[0].place == first.allocations[0].place


def test_sizes_between_whole_numbers_are_rounded_up():
    first, second = recorded(2, lambda b: 10), recorded(5, lambda b: 11)
    found = [at_batch(first, second, batch).allocations[0].nbytes for batch in (2, 3, 4, 5, 6)]
    assert found == [10, 11, 11, 11, 12]


@pytest.mark.parametrize("pair", [(2, 4), (4, 2)])
def test_what_shrinks_is_constant_at_the_larger_of_the_two(pair):
    first, second = (recorded(batch, lambda b: 1000 // b) for batch in pair)
    assert [at_batch(first, second, batch).allocations[0].nbytes for batch in (1, 2, 4, 64)] == [500] * 4


def test_operators_grow_as_well():
    first, second = (
        recorded(batch, operations=[operation("addmm", 10 * batch, 100 + batch, 1, 4 * batch)])
        for batch in (2, 3)
    )
    (predicted,) = at_batch(first, second, 50).operations
    assert (predicted.flop, predicted.least_flop) == (500, 200)
    assert (predicted.nbytes, predicted.launches) == (150, 1)


def test_the_order_of_deaths_between_two_births_is_no_difference():
    size = (lambda b: 8 * b,) * 3
    first = recorded(2, *size, events=[0, 1, ~0, ~1, 2])
    second = recorded(3, *size, events=[0, 1, ~1, ~0, 2])
    assert at_batch(first, second, 4).events == first.events


def changed(program, number, **what):
    program.allocations[number] = dataclasses.replace(program.allocations[number], **what)
    return program


SIZES = (lambda b: 8 * b,) * 3


@pytest.mark.parametrize(
    "second, said",
    [
        (
            changed(recorded(3, *SIZES), 1, operator="mm"),
            r"does not do the same: addmm .*train.py:1, but mm .*train.py:1",
        ),
        (
            changed(recorded(3, *SIZES), 2, place=Place("", "net.py", 9)),
            r"does not do the same: .*train.py:2.*net.py:9",
        ),
        (
            changed(recorded(3, *SIZES), 0, phase="backward"),
            r"does not do the same: addmm \(forward, .* addmm \(backward",
        ),
        (recorded(3, *SIZES, events=[0, 1, ~0, 2]), r"does not do the same: addmm .*, but the end of addmm"),
        (recorded(3, *SIZES, events=[0, 1]), r"does not do the same: addmm .*, but the end;"),
        (recorded(3, *SIZES, operations=[operation("mm", 1, 1)]), "0 operators against 1"),
    ],
    ids=["operator", "place", "phase", "death", "length", "operations"],
)
def test_records_that_do_not_match_are_refused_where_they_part(second, said):
    with pytest.raises(ValueError, match=said):
        at_batch(recorded(2, *SIZES), second, 8)


def test_operators_that_do_not_match_are_refused_where_they_part():
    first = recorded(2, operations=[operation("relu", 1, 1), operation("mm", 1, 1)])
    second = recorded(3, operations=[operation("relu", 1, 1), operation("addmm", 1, 1)])
    with pytest.raises(
        ValueError, match=r"operator 1 is not the same: mm .*train.py:7, but addmm .*train.py:7"
    ):
        at_batch(first, second, 8)


@pytest.mark.parametrize("batches", [(1, 2), (2, 1), (2, 2), (None, 2), (2, None)])
def test_two_known_different_batches_of_two_or_more_are_needed(batches):
    first, second = (dataclasses.replace(recorded(2, *SIZES), batch_size=batch) for batch in batches)
    with pytest.raises(ValueError, match=f"batches {batches[0]} and {batches[1]}"):
        at_batch(first, second, 8)


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_has_a_sample(batch):
    with pytest.raises(ValueError, match=f"batch is {batch}"):
        at_batch(recorded(2, *SIZES), recorded(3, *SIZES), batch)


@pytest.mark.parametrize("capacity", [50, 333, 1000])
def test_the_largest_batch_fits_and_the_next_one_does_not(capacity):
    sizes = (lambda b: 20 * MIB, lambda b: 3 * MIB * b, lambda b: 5 * MIB * b, lambda b: 700 * b)
    first, second = (recorded(batch, *sizes, events=[0, 1, 2, ~1, 3]) for batch in (2, 3))
    found = largest_batch(first, second, capacity * MIB)
    every = [
        batch
        for batch in range(1, 130)
        if replay(at_batch(first, second, batch), capacity * MIB).out_of_memory is None
    ]
    assert found in every
    assert found + 1 not in every
    assert found == max(every)


def test_no_batch_fits_if_the_model_does_not():
    sizes = (lambda b: 64 * MIB, lambda b: b)
    assert largest_batch(recorded(2, *sizes), recorded(3, *sizes), 32 * MIB) == 0


def test_there_is_no_largest_batch_if_nothing_grows():
    first, second = (recorded(batch, lambda b: 1000) for batch in (2, 3))
    with pytest.raises(ValueError, match="does not grow with the batch"):
        largest_batch(first, second, 32 * MIB)
