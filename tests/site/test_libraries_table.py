"""The table of public libraries on the practice GPU shows what its file says."""

from __future__ import annotations

import json

import pytest
from projects import CONF, ROOT, lesson


@pytest.mark.slow
def test_the_sentence_and_the_folded_table(project):
    committed = (ROOT / "docs" / "libraries.json").read_text(encoding="utf-8")
    found = json.loads(committed)
    project.write("conf.py", f'{CONF}\nextensions.append("_ext.results")\n')
    project.write("docs/tables.rst", "Libraries\n=========\n\n.. libraries::\n")
    project.write("examples/01_first.py", lesson())
    file = project.write("docs/libraries.json", committed)
    assert project.build().status == 0
    page = project.page("tables")
    _, *rows = page.select("details.libraries table tr")
    shown = {tuple(cell.get_text(strip=True) for cell in row.select("td")) for row in rows}
    assert shown == {
        (f"{row['library']} {row['version']}", row["what"].replace("'", "’"), row["before"], row["inside"])
        for row in found["rows"].values()
    }
    assert len(rows) == len(found["rows"])
    assert f"PyTorch {found['about']['torch']}" in page.get_text()

    common = {"version": "1", "what": "It does.", "before": "equal"}
    found["rows"] = {
        "use_a": {**common, "library": "a", "inside": "equal"},
        "use_b": {**common, "library": "b", "inside": "within 1e-05"},
        "use_c": {**common, "library": "b", "inside": "fails"},
    }
    file.write_text(json.dumps(found), encoding="utf-8")
    project.build()
    text = " ".join(project.page("tables").get_text().split())
    assert "Of 3 programs with 2 libraries, 2 ran on the practice GPU. 1 had the CPU’s results" in text
