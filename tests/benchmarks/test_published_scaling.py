"""Published throughputs, and what the model makes of them."""

from __future__ import annotations

import pytest

from gpulesson_tools.planning.speed.several_gpus import Compute
from published_scaling import collectives, compared, network, read, seconds, with_communication

ROW = {
    "model": "toy", "gpu": "A100", "precision": "float32", "strategy": "DDP", "fewer": "1",
    "fewer_rate": "100", "gpus": "8", "rate": "640", "batch": "10", "per_node": "8", "network": "",
    "parameters": "75000000", "bytes": "4", "source": "", "note": "",
}  # fmt: skip


def test_times_and_efficiencies_follow_from_the_throughputs():
    found = compared(ROW)
    assert found["computing"] == pytest.approx(100) and found["measured"] == pytest.approx(125)
    assert found["efficiency"] == pytest.approx(0.8)
    sent = 2 * 7 / 8 * 0.3 / 300  # 0.3 GB over links of 300 GB/s
    assert found["added"] == pytest.approx(0.1 / (0.1 + sent), rel=1e-2)
    assert found["ratio"] == pytest.approx(1.25, rel=1e-3)


def test_all_bytes_are_sent_once():
    assert sum(each.transfer for each in collectives(ROW)) == pytest.approx(2 * 7 / 8 * 0.3 / 300)
    sharded = collectives({**ROW, "strategy": "fully sharded"})
    assert sum(each.transfer for each in sharded) == pytest.approx(3 * 7 / 8 * 0.3 / 300)


def test_what_does_not_fit_behind_computing_makes_the_step_longer():
    row = {**ROW, "gpus": "16", "network": "0.5"}
    step = with_communication(row, Compute(0.0, seconds(row, "fewer", "fewer_rate"), 0.0))
    assert step.seconds == pytest.approx(2 * 1 / 2 * 0.3 / 0.5, rel=1e-2)
    assert step.bound == "communication"


def test_a_network_is_named_or_given_in_bytes():
    assert network("").name == network("InfiniBand NDR").name
    assert network("25").out_of_node(4) == 25e9


def test_each_row_names_its_source():
    for row in read():
        assert "@" in row["source"] and "/" in row["source"]
