"""What `fit` costs in counts, beside a loop written by hand: no noise, so it may be asserted."""

from __future__ import annotations

import pytest
import torch

from counts import Operators, calls, loops, per_step


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, float]]:
    found = loops(torch.rand(800, 28, 28), torch.randint(10, (800,)))
    return {name: per_step(of) for name, of in found.items() if "picture" not in name}


def test_the_counters_count():
    """Against what is known: two operators, and one call that reads."""
    numbers = torch.ones(3)
    with Operators() as mode:
        (numbers + 1).sum().item()
    assert mode.counts == {"aten.add": 1, "aten.sum": 1, "aten._local_scalar_dense": 1}
    found = calls(lambda: [numbers.tolist(), abs(-1), abs(-2)])
    assert (found["tolist"], found["abs"], found["<lambda>"]) == (1, 2, 1)


def test_fit_has_the_operators_of_a_loop_by_hand(rows):
    *_, hand, ours = rows.values()
    assert ours["operators"] == hand["operators"] > 40


def test_fit_reads_once_an_epoch_and_three_times_a_call(rows):
    """An epoch's losses; a call's labels, its first loss, on a CPU alone, and its weights at the end."""
    *_, ours = rows.values()
    assert (ours["reads"], ours["epoch_reads"]) == (0, 1 + 3)


def test_fit_makes_at_most_ten_calls_more_a_step(rows):
    *_, hand, ours = rows.values()
    assert 0 <= ours["calls"] - hand["calls"] <= 10


def test_reading_the_loss_in_every_step_is_seen(rows):
    naive = rows["naive loop, index batching"]
    assert naive["reads"] == 1 + 6  # the loss, and the step count of six parameters in Adam
