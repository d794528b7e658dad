"""A captured step is measured beside the plain one, and only if it trains alike."""

from __future__ import annotations

import pytest
import torch

import captured

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(captured, "STEPS", 2)


@pytest.mark.filterwarnings("ignore:there are no CUDA graphs")
def test_both_steps_are_timed():
    row = captured.measure(CPU, 8, None, rounds=2)
    assert row["case"] == "batch 8, float32" and row["plain_us"] > 0 and row["captured_us"] > 0
    assert 0 < row["min"] <= row["median"] <= row["max"]


@pytest.mark.filterwarnings("ignore:there are no CUDA graphs")
def test_a_step_that_trains_otherwise_is_refused(monkeypatch):
    def pair(device, batch, amp):
        steps = whole(device, batch, amp)
        return {**steps, "captured": lambda *batch: steps["captured"](*batch) + 1}

    whole = captured.pair
    monkeypatch.setattr(captured, "pair", pair)
    with pytest.raises(SystemExit, match="batch 8, float32: other losses"):
        captured.measure(CPU, 8, None, rounds=2)
