"""What a plan is compared with is measured as it is."""

from __future__ import annotations

import pytest

from gpulesson_tools.planning.memory.fitting import CUBLAS
from plan_on_gpu import MIB, MODELS, measured, planned
from practice_gpu import practice_gpu


@pytest.mark.slow
def test_on_the_practice_gpu_plan_and_measurement_differ_by_the_workspaces():
    make = MODELS["784-2048-2048-10"]
    with practice_gpu(force=True):
        found = measured(make, 4, steps=1)
    said = planned(make, 4, "T4")
    workspaces = 2 * CUBLAS.least / MIB
    assert abs(said["planned_allocated"] - workspaces - found["allocated"]) < 1  # blocks that are not cut
    assert found["step"] > 0 and said["floor"] > 0
