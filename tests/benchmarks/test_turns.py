"""Loops that take turns: each gets its batches, a planted difference shows, failures come out."""

from __future__ import annotations

import threading

import pytest
import torch

from gpulesson.data import Batches
from turns import STEPS, WARM, Order, Turns, listed, loaded, ratios, resident, steady


def data(samples: int = 100):
    return torch.arange(samples, dtype=torch.float32), torch.arange(samples)


def test_both_loops_get_the_same_batches_in_turns():
    seen: list[tuple[str, list[int]]] = []

    def loop(name):
        return lambda batches: [seen.append((name, targets.tolist())) for _, targets in batches]

    found = ratios(loop("A"), loop("B"), resident(*data(), batch_size=30), pairs=2)
    assert len(found) == 2 and all(ratio > 0 for ratio in found)
    names = [name for name, _ in seen]
    fours = 2 + WARM + 1
    assert names == (["A"] * STEPS + ["B"] * 2 * STEPS + ["A"] * STEPS) * fours
    ours, theirs = ([targets for name, targets in seen if name == side] for side in "AB")
    assert ours == theirs
    assert {len(targets) for targets in ours} == {30}  # no short one
    first_pass = [target for batch in ours[:3] for target in batch]
    assert len(set(first_pass)) == 90  # no image twice


@pytest.mark.parametrize("feed", [resident, listed, loaded])
def test_one_batch_an_epoch(feed):
    """A loop makes a pass for each batch, and a turn is still twenty steps of one loop."""
    seen: list[str] = []

    def loop(name):
        def train(batches):
            assert len(batches) == 1
            for _ in range(batches.number_of_passes):
                seen.extend(name for _ in batches)

        return train

    assert len(ratios(loop("A"), loop("B"), feed(*data()), pairs=1, per_pass=1)) == 1
    assert seen == (["A"] * STEPS + ["B"] * 2 * STEPS + ["A"] * STEPS) * (1 + WARM + 1)


@pytest.mark.parametrize("feed", [resident, listed, loaded])
def test_each_feed_gives_the_same_full_batches_again(feed):
    make = feed(*data(), batch_size=30)
    one, other = ([targets.tolist() for _, targets in make()] for _ in range(2))
    assert one == other and [len(targets) for targets in one] == [30, 30, 30]
    assert one[0] != list(range(30)), "not shuffled"


def test_three_times_the_work_is_seen(monkeypatch):
    """By a clock that each thread moves with its work alone, so that no other program can move it."""
    threads = threading.local()
    monkeypatch.setattr("turns.time.thread_time", lambda: getattr(threads, "worked", 0))

    def loop(work):
        def train(batches):
            for _ in batches:
                threads.worked = getattr(threads, "worked", 0) + work

        return train

    assert ratios(loop(20), loop(60), resident(*data()), pairs=15) == [3] * 15


def test_the_clock_of_the_cpu_is_the_threads_own():
    """It stands still while the thread waits, as it does while other programs run."""
    batches = Turns(Batches(*data(), batch_size=10), 1, Order(), torch.device("cpu"))
    before = batches.clock()
    threading.Event().wait(0.5)
    assert batches.clock() - before < 0.5


def test_a_loop_that_counts_its_steps_need_not_ask_for_one_too_many():
    def counting(batches):
        iterator = iter(batches)
        for _ in range(len(batches)):
            next(iterator)

    assert len(ratios(counting, counting, resident(*data()), pairs=3)) == 3


def test_a_loop_that_ends_early_or_fails_ends_all():
    def endless(batches):
        for _ in batches:
            pass

    with pytest.raises(RuntimeError, match=r"a loop ended after 0 of 12 turns"):
        ratios(endless, lambda batches: None, resident(*data()), pairs=2)

    def fails(batches):
        next(iter(batches))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ratios(endless, fails, resident(*data()), pairs=2)


def test_what_a_control_must_be():
    assert steady([0.8, 1.005, 1.3]) and not steady([0.8, 1.011, 1.3]) and not steady([0.98])
