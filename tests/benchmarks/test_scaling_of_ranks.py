"""Steps of several processes, beside what the model says of them."""

from __future__ import annotations

import pytest

from gpulesson_tools.planning.speed.several_gpus import BUCKET
from scaling import measured, row


def test_the_model_gets_what_was_measured():
    found = {
        "latency": 0.001,
        "bucket": 0.001 + BUCKET / 1e9,  # two processes send each byte once: 1 GB/s
        "wide layers": {"alone": [(0.01, 0.02, 0.005)], "ddp": [0.05, 0.06, 0.07], "cores": 1.9},
    }
    two = row("wide layers", 2, found)
    count = 784 * 2048 + 2 * 2048 * 2048 + 2048 * 10 + 3 * 2048 + 10
    assert two["gradients"] == pytest.approx(4 * count / 1e6)
    assert two["bandwidth"] == pytest.approx(1)
    assert two["sent"] == pytest.approx(4 * count / 1e9 * 1e3 + 2 * 1), "in two buckets"
    assert two["compute"] == pytest.approx(35) and two["added"] == pytest.approx(35 + two["sent"])
    last = 4 * (2048 * 2048 + 784 * 2048 + 2 * 2048) / 1e6 + 1  # ms of the bucket that nothing hides
    assert two["floor"] == pytest.approx(35 + last) and two["bound"] == "compute"
    assert two["ratio"] == pytest.approx(60 / two["floor"])
    one = row("wide layers", 1, {**found, "bucket": 0.002})
    assert one["sent"] == 0 and one["floor"] == pytest.approx(35)


@pytest.mark.thorough
@pytest.mark.slow
def test_processes_measure_and_end(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    found = measured(2, rounds=1, steps=1)
    assert found["bucket"] > found["latency"] > 0
    for name in ("convolutions", "wide layers"):
        assert len(found[name]["alone"]) == 2 * 2 and len(found[name]["ddp"]) == 2
        assert row(name, 2, found)["ratio"] > 0
        assert 0 < found[name]["cores"] < 3, "two processes with one thread each"
