"""The page of promises shows the figures of its file, and nothing that is missing or failed."""

from __future__ import annotations

import json

import pytest
from _ext.trust import cells, problem
from projects import CONF, lesson

GOOD = {
    "what": "Files",
    "done": 5000,
    "of": 5000,
    "least": 5000,
    "kept": True,
    "notes": ["a", "b"],
    "date": "2026-01-31",
}


@pytest.mark.parametrize(
    "change",
    [
        {"done": 4999, "kept": False},
        {"done": 4999},
        {"done": 10, "of": 10},
        {"done": 0, "of": 0, "least": 0},
        {"least": "0.05 of 5000"},
        {"kept": False},
    ],
)
def test_what_failed_may_not_be_shown(change):
    assert not problem("files", GOOD)
    assert "files is not as promised" in problem("files", {**GOOD, **change})


def test_what_was_not_run_is_called_so():
    row = {**GOOD, "done": 0, "of": 0, "kept": False, "not run": "no GPU"}
    assert not problem("files", row)
    assert cells(row) == ["Files", "not run here: no GPU", ""]


def test_the_table_and_a_build_that_fails(project):
    about = {"torch": "2.99", "python": "3.99", "system": "Linux"}
    other = {**GOOD, "what": "Others", "date": "2026-02-01"}
    project.write("conf.py", f'{CONF}\nextensions.append("_ext.trust")\n')
    project.write("docs/tables.rst", "Promises\n========\n\n.. trust:: files others\n\n.. trust::\n")
    project.write("examples/01_first.py", lesson())
    file = project.write(
        "docs/trust.json", json.dumps({"about": about, "rows": {"files": GOOD, "others": other}})
    )
    assert project.build().status == 0
    page = project.page("tables")
    _, *rows = page.select("table.trust tr")
    shown = [[cell.get_text(strip=True) for cell in row.select("td")] for row in rows]
    assert shown == [["Files", "5,000 of 5,000", "a; b"], ["Others", "5,000 of 5,000", "a; b"]]
    assert "PyTorch 2.99, Python 3.99, Linux, 2026-01-31 to 2026-02-01." in page.get_text()

    file.write_text(json.dumps({"about": about, "rows": {"files": {**GOOD, "done": 4999}}}), encoding="utf-8")
    failed = project.build()
    assert failed.status != 0
    assert "files is not as promised: 4999 of 5000" in failed.log
    assert "there is no row others" in failed.log
