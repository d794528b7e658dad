"""Two runs of the tests at once, in one checkout, build one after the other, and not over a reader's site."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from pages import build

# stands for sphinx-build: it fails where another one is at work, and for a while there is half a page only
PROGRAM = """
import pathlib, time
with open("_build/at-work", "x"):
    page = pathlib.Path("_build/html/index.html")
    page.write_text("half a p")
    time.sleep(0.2)
    page.write_text("half a page, and the other half")
    pathlib.Path("_build/at-work").unlink()
"""


@pytest.mark.slow
def test_two_runs_do_not_meet(tmp_path):
    """Without the lock, a build fails; with a lock on the build alone, a copy has half a page."""
    for folder in ("_build/html", "_build/tests/_build/html", "_build/tests/docs/lessons"):
        (tmp_path / "root" / folder).mkdir(parents=True)

    def run(number: int) -> str:
        copies = tmp_path / f"copies {number}"
        site = build(copies, tmp_path / "root", [sys.executable, "-c", PROGRAM])
        return (site.html / "index.html").read_text()

    with ThreadPoolExecutor(2) as runs:
        assert set(runs.map(run, range(4))) == {"half a page, and the other half"}
    assert not [*(tmp_path / "root/_build/html").iterdir()], "a reader's own site"
