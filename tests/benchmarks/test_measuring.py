"""Tables, targets and the committed figures: what the README quotes is what the files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import measuring
from measuring import Result, claim_text, readme_block, spread, text_table, with_block

ROOT = Path(__file__).parents[2]
COMMITTED = sorted(file.stem for file in (ROOT / "benchmarks" / "results").glob("*.json"))


@pytest.fixture
def result() -> Result:
    found = Result(
        "one", "A title", {"date": "2026-01-02", "torch": "2"}, [("what", "what", ""), ("x", "time", ".2f")]
    )
    found.rows += [{"what": "first", "x": 1.234}, {"what": "second"}]
    found.claim("`f` / g", 1.02, ".3f", "<=", 1.01)
    return found


def test_it_prints_and_writes_the_same(result, tmp_path, capsys):
    result.finish(tmp_path / "deep" / "one.json")
    shown = capsys.readouterr().out
    assert "first   1.23" in shown and "torch 2" in shown
    assert "`f` / g: 1.020 (target: at most 1.01; NOT met)" in shown
    written = json.loads((tmp_path / "deep" / "one.json").read_text(encoding="utf-8"))
    assert written["rows"] == result.rows and written["claims"] == result.claims


@pytest.mark.parametrize(
    ("compare", "value", "met"),
    [("<=", 1.0, True), ("<=", 1.1, False), (">=", 0.9, False), (">", 1.0, False), (">", 1.1, True)],
)
def test_a_target_is_met_or_not(compare, value, met):
    text = claim_text({"what": "a", "value": value, "format": ".1f", "compare": compare, "target": 1})
    assert text.endswith("; met)" if met else "; NOT met)")


def test_spread():
    assert spread([3, 1, 2, 10], "a_") == {"a_min": 1, "a_median": 2.5, "a_max": 10}


def test_columns_line_up():
    assert text_table(["a", "bb"], [["long", "1"], ["x", "22"]]) == ["a     bb", "long   1", "x     22"]


def test_the_readme_quotes_the_committed_figures():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert measuring.MARKS.search(readme)
    assert with_block(readme) == readme, "run: python benchmarks/measuring.py"
    rows = readme_block().splitlines()[2:]
    assert len(rows) == 6 and all(row in readme for row in rows)
    overhead = json.loads((ROOT / "benchmarks" / "results" / "overhead.json").read_text(encoding="utf-8"))
    quoted = next(claim for claim in overhead["claims"] if claim["what"].endswith("by hand: Batches"))
    assert (
        f"| {quoted['value']:.3f} (target <= 1.01, missed) |" in rows[2]
        and overhead["about"]["date"] in rows[2]
    )


@pytest.mark.parametrize("name", COMMITTED)
def test_a_committed_result_is_complete(name):
    found = measuring.read(name)
    assert found["name"] == name
    assert {"device", "cores", "threads", "python", "torch", "date"} <= found["about"].keys()
    keys = {key for key, _, _ in found["columns"]}
    assert found["rows"] and all(row.keys() <= keys for row in found["rows"])
    assert "inconclusive" not in " ".join(found["notes"]).lower(), "measure again, on a quiet machine"
