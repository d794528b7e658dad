"""The benchmark of the practice GPU's cost runs, and writes the numbers that it prints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "practice_overhead.py"


@pytest.mark.slow
def test_it_measures_both_loops_and_both_widths(tmp_path):
    file = tmp_path / "numbers.json"
    command = [sys.executable, BENCHMARK, "--rounds", "1", "--json", file]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = json.loads(file.read_text(encoding="utf-8"))
    rows = {(row["loop"], row["hidden"]): row for row in numbers["rows"]}
    assert rows.keys() == {(loop, hidden) for loop in ("slices", "loader") for hidden in (128, 1024)}
    for (loop, hidden), row in rows.items():
        ratio = row["ratio"]
        assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]
        assert row["target"] == {128: 2.0, 1024: 1.3}[hidden]
        assert f"{loop:8} {hidden:6}" in shown
        assert f"{ratio['median']:.2f}" in shown
