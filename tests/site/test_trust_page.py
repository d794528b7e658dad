"""The page of promises shows the figures of its file, and nothing that is missing or failed."""

from __future__ import annotations

import json

import pytest
from _ext.results import as_promised
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
    assert as_promised(GOOD) and not as_promised({**GOOD, **change})


@pytest.mark.slow
def test_the_table_and_a_build_that_fails(project):
    about = {"torch": "2.99", "python": "3.99", "system": "Linux"}
    other = {**GOOD, "what": "Others", "date": "2026-02-01"}
    left_out = {**GOOD, "kept": False, "done": 0, "of": 0, "not run": "no GPU"}
    project.write("conf.py", f'{CONF}\nextensions.append("_ext.results")\n')
    project.write("docs/tables.rst", "Promises\n========\n\n.. trust:: files others left_out\n\n.. trust::\n")
    project.write("examples/01_first.py", lesson())
    found = {"about": about, "rows": {"files": GOOD, "others": other, "left_out": left_out}}
    file = project.write("docs/trust.json", json.dumps(found))
    assert project.build().status == 0
    page = project.page("tables")
    _, *rows = page.select("table.trust tr")
    shown = [[" ".join(cell.get_text().split()) for cell in row.select("td")] for row in rows]
    assert shown == [
        ["Files", "5,000 of 5,000", "a; b"],
        ["Others", "5,000 of 5,000", "a; b"],
        ["Files", "not run here: no GPU", ""],
    ]
    assert "PyTorch 2.99, Python 3.99, Linux, 2026-01-31 to 2026-02-01." in page.get_text()

    file.write_text(
        json.dumps({"about": about, "rows": {"files": {**GOOD, "done": 4999}, "others": other}}),
        encoding="utf-8",
    )
    failed = project.build()
    assert failed.status != 0
    assert "files is missing, or not as promised: {'what': 'Files', 'done': 4999" in failed.log
