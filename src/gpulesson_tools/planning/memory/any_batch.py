"""Any batch, from records of the same program with two small ones.

What grows with the batch grows in a straight line: two batches give the line, for each allocation and each
operator by itself. The records have to match one to one, so neither may be of a batch of 1: for one sample
PyTorch chooses other operators (views where two samples need copies).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

from gpulesson_tools.planning.memory.fitting import replay
from gpulesson_tools.planning.recording.record import Allocation, Operation, Record

_COUNTS = "flop", "least_flop", "nbytes", "launches"  # of an operator

Something = TypeVar("Something", Allocation, Operation)


def at_batch(first: Record, second: Record, batch: int) -> Record:
    """Predict the record of the same program with another batch.

    Parameters
    ----------
    first, second : Record
        Of batches of two different sizes, each 2 or more.
    batch : int
        The size to predict, 1 or more. For a batch of 1 the real program may choose other operators.

    Returns
    -------
    Record
        The events of `first`. Bytes, FLOP and launches are those of the line through the two records,
        rounded up. Two exceptions: what is larger in the record of the smaller batch is taken to be constant,
        at the larger of the two; what grows exactly with the square of the batch (the similarities of all
        pairs of samples) is continued as a square.

    Raises
    ------
    ValueError
        If the sizes of the batches are not known, or are equal or less than 2; if the two records do not
        match: the message says where they part; if `batch` is less than 1.

    Examples
    --------
    >>> from gpulesson_tools.planning.recording.record import Allocation, Place, Record
    >>> def recorded(batch):
    ...     sizes = [4096, 400 * batch]  # a weight, and 100 numbers for each sample
    ...     tensors = [Allocation(nbytes, 0, "forward", "addmm", Place()) for nbytes in sizes]
    ...     return Record(tensors, [0, 1], batch_size=batch)
    >>> [each.nbytes for each in at_batch(recorded(2), recorded(3), 64).allocations]
    [4096, 25600]
    """
    x, y = _batches(first, second)
    _check_match(first, second)
    sizes = list(_sizes(first, second, x, y, batch))
    operations = []
    for one, other in zip(first.operations, second.operations, strict=True):
        counts: Any = {name: _line(getattr(one, name), getattr(other, name), x, y, batch) for name in _COUNTS}
        operations.append(replace(one, **counts))
    return replace(first.with_sizes(sizes), operations=operations, batch_size=batch)


def largest_batch(first: Record, second: Record, capacity: int, workspace: int = 0) -> int:
    """Return the largest batch whose replay fits.

    It and the one before it fit, the next one does not; 0 if none fits. A larger one may fit by luck: how
    blocks fall into segments changes from one batch to the next.

    Parameters
    ----------
    first, second : Record
        As for :func:`at_batch`, with its errors; also if nothing grows with the batch.
    capacity : int
        Bytes that CUDA has for tensors: the GPU's memory without the context.
    workspace : int
        As for :func:`gpulesson_tools.planning.memory.fitting.replay`.

    Examples
    --------
    >>> from gpulesson_tools.planning.recording.record import Allocation, Place, Record
    >>> def recorded(batch):
    ...     tensors = [Allocation(2**20 * batch, 0, "forward", "addmm", Place())]
    ...     return Record(tensors, [0], batch_size=batch)
    >>> largest_batch(recorded(2), recorded(3), capacity=2**30)
    1024
    """
    x, y = _batches(first, second)
    _check_match(first, second)

    def fits(batch: int) -> bool:
        record = first.with_sizes(list(_sizes(first, second, x, y, batch)))
        return replay(record, capacity, workspace=workspace).out_of_memory is None

    if list(_sizes(first, second, x, y, x)) == list(_sizes(first, second, x, y, 2 * x)):
        raise ValueError(
            f"the records of batches {x} and {y} hold the same: the memory does not grow with the batch; "
            "check that the loader that feeds the steps has the two batch sizes"
        )
    good, bad = 0, 1
    while fits(bad):
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    while good > 1 and not fits(good - 1):
        good -= 2
    return good


def _batches(first: Record, second: Record) -> tuple[int, int]:
    x, y = first.batch_size, second.batch_size
    if x is None or y is None:
        raise ValueError(
            f"the records are of batches {x} and {y}: without a loader the size is not known; "
            "set batch_size of both"
        )
    if min(x, y) < 2 or x == y:
        raise ValueError(
            f"the records are of batches {x} and {y}: record two different sizes, each 2 or more "
            "(PyTorch chooses other operators for a single sample)"
        )
    return x, y


def _check_match(first: Record, second: Record) -> None:
    """Raise an error if the two records differ in more than sizes."""
    pairs = zip(_runs(first), _runs(second), strict=False)
    for one, other in pairs:
        if one != other:
            at = min(one[0], other[0])
            raise ValueError(
                f"with batches of {first.batch_size} and {second.batch_size} the program does not do the "
                f"same: {_event(first, at)}, but {_event(second, at)}; {_REMEDY}"
            )
    if len(first.events) != len(second.events):
        raise ValueError(
            f"the two records do not match: {len(first.events)} events against {len(second.events)}; "
            "record the same number of steps of both"
        )
    for number, (this, that) in enumerate(zip(first.operations, second.operations, strict=False)):
        if _what(this) != _what(that):
            raise ValueError(
                f"with batches of {first.batch_size} and {second.batch_size} operator {number} is not the "
                f"same: {_named(this)}, but {_named(that)}; {_REMEDY}"
            )
    if len(first.operations) != len(second.operations):
        raise ValueError(
            f"the two records do not match: {len(first.operations)} operators against "
            f"{len(second.operations)}; {_REMEDY}"
        )


_REMEDY = "record two other batch sizes, or a program that does the same in every step"


def _what(each: Something) -> tuple[object, ...]:
    return each.step, each.phase, each.operator, each.place


def _named(each: Something) -> str:
    place = each.place
    where = f" at {place.filename}:{place.line}" if place.filename else ""
    return f"{each.operator} ({each.phase}, step {each.step + 1}){where}"


def _runs(record: Record) -> Iterator[tuple[int, object]]:
    """Yield each birth, and the deaths between two births as one set: their order changes nothing."""
    deaths: set[int] = set()
    for at, event in enumerate(record.events):
        if event < 0:
            deaths.add(event)
            continue
        if deaths:
            yield at, frozenset(deaths)
            deaths = set()
        yield at, _what(record.allocations[event])
    yield len(record.events), frozenset(deaths)


def _event(record: Record, at: int) -> str:
    if at >= len(record.events):
        return "the end"
    event = record.events[at]
    allocation = record.allocations[max(event, ~event)]
    return f"{'' if event >= 0 else 'the end of '}{_named(allocation)}"


def _sizes(first: Record, second: Record, x: int, y: int, batch: int) -> Iterator[int]:
    if batch < 1:
        raise ValueError(f"batch is {batch}; a batch has 1 sample or more")
    for one, other in zip(first.allocations, second.allocations, strict=True):
        yield _line(one.nbytes, other.nbytes, x, y, batch)


def _line(one: int, other: int, x: int, y: int, batch: int) -> int:
    """Return the value at `batch`, rounded up, of what is `one` at `x` and `other` at `y`."""
    if x > y:
        one, other, x, y = other, one, y, x
    if other <= one:
        return one
    if one * y * y == other * x * x:
        return -(-one * batch * batch // (x * x))
    return max(-(-(one * (y - x) + (other - one) * (batch - x)) // (y - x)), 0)
