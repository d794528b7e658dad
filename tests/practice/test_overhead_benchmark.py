"""The benchmark of the practice GPU's cost runs, and writes the numbers that it prints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "practice_overhead.py"
TARGETS = {"tiny SGD": 2.0, "loader 1024": 1.3, "GPT": 1.5}


@pytest.mark.thorough
@pytest.mark.slow
def test_it_measures_every_loop_it_is_asked_for(tmp_path):
    file = tmp_path / "numbers.json"
    command = [sys.executable, BENCHMARK, "--rounds", "1", "--json", file, "--only", *TARGETS]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = json.loads(file.read_text(encoding="utf-8"))
    assert {row["loop"]: row["target"] for row in numbers["rows"]} == TARGETS
    for row in numbers["rows"]:
        ratio = row["ratio"]
        assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]
        assert row["control"] > 0 < row["mode"]
        assert row["met"] == (ratio["median"] <= row["target"])
        assert f"{row['loop']:12} " in shown
        assert f"{ratio['median']:.2f}" in shown
