"""Loops that take turns, so that both meet the same noise: twenty steps of one, forty of the other, twenty.

Each loop runs in its own thread, over batches that come only in its turns. So a turn is timed from
batch to batch, with all that the loop does in between, whatever library the loop is part of. On a CPU the
clock is that of the thread, which other programs do not move; so torch has to use one thread.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from gpulesson.data import Batches
from gpulesson.timing import synchronize

Batch = tuple[Tensor, ...]
Feed = Iterable[Batch]

STEPS = 20  # in a turn
WARM = 3  # fours at the beginning that do not count; nor does the last, which may hold a loop's end


class Turns:
    """The batches of one loop; it waits for its turn before each `STEPS` of them.

    All come in one pass, unless `per_pass` says how many do.
    """

    def __init__(
        self, batches: Feed, number: int, order: Order, device: torch.device, per_pass: int = 0
    ) -> None:
        self.batches, self.number, self.order, self.device = batches, number, order, device
        self.data = getattr(batches, "dataset", batches).tensors if not isinstance(batches, list) else ()
        if isinstance(batches, Batches):  # `fit` looks at all labels at once where it finds these
            self.tensors = batches.tensors
        self.batch_size = getattr(batches, "batch_size", None)
        self.per_pass = per_pass or number * STEPS
        self.seconds: list[float] = []
        self.start: float | None = None
        # On the CPU nothing waits for a device: the thread's own time leaves out what other programs take.
        self.clock = time.thread_time if device.type == "cpu" else time.perf_counter
        self.all = self.in_turns()

    def __len__(self) -> int:
        return self.per_pass

    @property
    def number_of_passes(self) -> int:
        """How many passes a loop has to make."""
        return self.number * STEPS // self.per_pass

    def __iter__(self) -> Iterator[Batch]:
        return islice(self.all, self.per_pass) if self.number_of_passes > 1 else self.all

    def in_turns(self) -> Iterator[Batch]:
        """Yield batches when it is their turn."""
        endless = passes(self.batches)
        for _ in range(self.number):
            self.order.wait(self)
            self.start = self.clock()
            for _ in range(STEPS):
                yield next(endless)
            self.end()

    def end(self) -> None:
        """End a turn; also called after a loop that counts its steps, and does not ask for one too many."""
        if self.start is not None:
            synchronize(self.device)  # the last step is done, not only queued
            self.seconds.append(self.clock() - self.start)
            self.start = None
            self.order.next()


def passes(batches: Feed) -> Iterator[Batch]:
    """Yield batches for ever, all full, so that every turn is the same work."""
    while True:
        yield from batches


class Order:
    """Decides whose turn it is. If a loop fails, all others end."""

    def __init__(self) -> None:
        self.turns: list[Turns] = []
        self.now = 0
        self.failed: BaseException | None = None
        self.changed = threading.Condition()

    def wait(self, who: Turns) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.failed is not None or self.turns[self.now] is who)
            if self.failed is not None:
                raise RuntimeError("another loop failed")

    def next(self) -> None:
        with self.changed:
            self.now += 1
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.failed = self.failed or error
            self.changed.notify_all()


def ratios(
    first: Callable[[Any], object],
    second: Callable[[Any], object],
    feed: Callable[[], Feed],
    *,
    pairs: int,
    per_pass: int = 0,
    swapped: bool = False,
) -> list[float]:
    """Run two loops in turns A B B A and return, for each such four, the time of `second` over `first`.

    Parameters
    ----------
    first, second : callable
        Trains on the batches that it is given, in one pass.
    feed : callable
        Makes the batches of one side: all full, and in the same order for both.
    pairs : int
        How many ratios.
    per_pass : int
        How many batches come in one pass; 0: all. A loop finds `number_of_passes` on what it is given.
    swapped : bool
        Give `second` the first place, which makes a difference; the ratios are still those of `second`.
    """
    if swapped:
        return [1 / ratio for ratio in ratios(second, first, feed, pairs=pairs, per_pass=per_pass)]
    order = Order()
    number = 2 * (pairs + WARM + 1)
    device = next(iter(feed()))[0].device
    sides = [Turns(feed(), number, order, device, per_pass) for _ in range(2)]
    order.turns = [sides[number] for _ in range(pairs + WARM + 1) for number in (0, 1, 1, 0)]

    def run(loop: Callable[[Any], object], batches: Turns) -> None:
        try:
            torch.set_num_threads(1)  # which each thread has for itself
            loop(batches)
            batches.end()
            if len(batches.seconds) < number:
                raise RuntimeError(f"a loop ended after {len(batches.seconds)} of {number} turns")
        except BaseException as error:
            order.fail(error)

    workers = [
        threading.Thread(target=run, args=pair, daemon=True)
        for pair in zip((first, second), sides, strict=True)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if order.failed is not None:
        raise order.failed
    one, other = ([sum(pair) for pair in twos(side.seconds)][WARM:-1] for side in sides)
    return [b / a for a, b in zip(one, other, strict=True)]


def resident(*data: Tensor, batch_size: int = 64) -> Callable[[], Feed]:
    """Return what makes `Batches` of these tensors, all full."""
    seed = torch.Generator
    return lambda: Batches(
        *data, batch_size=batch_size, shuffle=True, generator=seed().manual_seed(0), drop_last=True
    )


def loaded(*data: Tensor, batch_size: int = 64) -> Callable[[], Feed]:
    """Return what makes a ``DataLoader`` of these tensors, as most scripts have it, all batches full."""
    seed = torch.Generator
    return lambda: DataLoader(
        TensorDataset(*data), batch_size, shuffle=True, generator=seed().manual_seed(0), drop_last=True
    )


def listed(*data: Tensor, batch_size: int = 64) -> Callable[[], Feed]:
    """Return what makes a list of batches, cut from these tensors."""
    return lambda: list(resident(*data, batch_size=batch_size)())


def twos(values: list[float]) -> Iterator[tuple[float, float]]:
    """Take the two turns of each four together."""
    return zip(values[::2], values[1::2], strict=True)


def steady(control: Sequence[float]) -> bool:
    """Return whether a loop against itself gave one, to a hundredth: else nothing can be concluded."""
    return 0.99 <= statistics.median(control) <= 1.01
