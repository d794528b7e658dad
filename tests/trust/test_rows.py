"""The committed figures are those of all rows, as they are now; and a row without evidence fails."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from rows import FIGURES, ROWS, Row, Tally, write_row

pytest_plugins = ["pytester"]


def test_each_row_has_a_test_and_a_place_on_the_page():
    tests = [
        node.name.removeprefix("test_")
        for file in Path(__file__).parent.glob("test_*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if "tally" in [argument.arg for argument in node.args.args]
    ]
    assert sorted(tests) == sorted(ROWS)
    page = (FIGURES.parent / "promises.rst").read_text(encoding="utf-8")
    shown = " ".join(re.findall(r"^\.\. trust:: (.+)$", page, flags=re.MULTILINE)).split()
    assert sorted(shown) == sorted(ROWS)


def test_the_committed_figures_are_those_of_the_rows():
    rows = json.loads(FIGURES.read_text(encoding="utf-8"))["rows"]
    assert rows.keys() == ROWS.keys(), "run: nox -s trust"
    for name, row in rows.items():
        assert (row["what"], row["least"]) == (ROWS[name].what, ROWS[name].least), name
        assert row["kept"] or (ROWS[name].elsewhere and "not run" in row), name


def tally_of(passed, failed, least=10, scale=1.0):
    tally = Tally(Row(least, "tries"), scale)
    for problem in [""] * passed + ["it broke"] * failed:
        tally.count(problem)
    return tally


@pytest.mark.parametrize(
    "counted, kept",
    [
        (tally_of(10, 0), True),
        (tally_of(11, 0), True),
        (tally_of(0, 0), False),
        (tally_of(9, 0), False),
        (tally_of(100, 1), False),
        (tally_of(1, 0, scale=0.01), True),
        (tally_of(0, 0, scale=0.01), False),
    ],
)
def test_when_a_promise_is_kept(counted, kept):
    assert counted.kept == kept


def test_some_of_many():
    tally = Tally(Row(200, "tries"), 0.03)
    assert tally.pick(list(range(100))) == [0, 33, 66]
    assert Tally(Row(200, "tries"), 1.0).pick("abc") == ["a", "b", "c"]
    assert Tally(Row(200, "tries"), 0.0001).some(200) == 1


def test_a_row_is_written_beside_those_of_the_same_pytorch(tmp_path):
    file = tmp_path / "trust.json"
    first, second = list(ROWS)[:2]
    write_row(file, second, tally_of(10, 0), about={"torch": "2.99"})
    write_row(file, first, tally_of(3, 1), about={"torch": "2.99"})
    rows = json.loads(file.read_text())["rows"]
    assert list(rows) == [first, second], "in the order of the promises"
    assert [row["kept"] for row in rows.values()] == [False, True]
    assert (rows[first]["done"], rows[first]["of"]) == (3, 4)
    write_row(file, first, tally_of(10, 0, scale=0.5), about={"torch": "3.0"})
    rows = json.loads(file.read_text())["rows"]
    assert list(rows) == [first] and rows[first]["least"] == "0.5 of 10", "never taken for the whole"


def test_what_a_gpu_has_shown_stays_where_there_is_none(tmp_path):
    file, name = tmp_path / "trust.json", "cpu_to_gpu"
    for about, passed, not_run in (
        ("2.98", 0, "no GPU"),
        ("2.98", 40, ""),
        ("2.98", 0, "no GPU"),
        ("2.99", 0, "no GPU"),
    ):
        tally = Tally(ROWS[name], 1.0, not_run=not_run)
        for _ in range(passed):
            tally.count("")
        write_row(file, name, tally, about={"torch": about})
    row = json.loads(file.read_text())["rows"][name]
    assert row["kept"] and row["done"] == 40 and "not run" not in row
    write_row(file, name, tally_of(1, 39), about={"torch": "2.99"})
    assert not json.loads(file.read_text())["rows"][name]["kept"], "a failure replaces it"


@pytest.mark.parametrize(
    "body, outcome, said",
    [
        ("[tally.count('') for _ in range(5000)]", "passed", "5000 of 5000"),
        ("pass", "failed", "0 of 0"),
        ("[tally.count(n == 7) for n in range(5000)]", "failed", "4999 of 5000"),
        ("[tally.count('') for _ in range(5000)]; 1 / 0", "failed", "5000 of 5001"),
        ("import pytest; pytest.skip('not today')", "failed", "0 of 1"),
    ],
)
def test_a_test_fails_without_its_figure(pytester, body, outcome, said):
    """The row is that of flipped bits; a skip is no evidence either."""
    for name in ("conftest.py", "rows.py"):
        pytester.path.joinpath(name).write_text((Path(__file__).parent / name).read_text(encoding="utf-8"))
    pytester.makepyfile(test_it=f"def test_flipped_bits(tally):\n    {body}\n")
    result = pytester.runpytest_inprocess("--figures", "figures.json", "-p", "no:cacheprovider")
    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines([f"*{said}*"])
    row = json.loads(pytester.path.joinpath("figures.json").read_text())["rows"]["flipped_bits"]
    assert row["kept"] == (outcome == "passed") and "not run" not in row
