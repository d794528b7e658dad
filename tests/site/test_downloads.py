"""Every downloaded script and notebook runs by itself: a fresh process, an empty folder, no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import offline
import pytest
from pages import GUIDES, LESSONS, SITE, Page, page_name

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def run_offline(command: list[str], folder: Path, data: str | None) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, without network; `data` is GPULESSON_DATA, or None where nobody set it."""
    environment = offline.environment()
    environment |= {"MPLBACKEND": "Agg", "XDG_CACHE_HOME": str(folder.parent / "cache"), "NO_COLOR": "1"}
    environment |= {
        "IPYTHONDIR": str(folder.parent / "ipython"),
        "PYTHONWARNINGS": "ignore::DeprecationWarning",
    }
    for name in [name for name in environment if name.startswith("GPULESSON_")]:
        del environment[name]
    if data:
        environment["GPULESSON_DATA"] = data
    return subprocess.run(
        [*offline.isolated(), *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )


def cases() -> list[tuple[Path, str]]:
    """Every lesson where no data can be had, and those that load a data set also where it is there."""
    scripts = LESSONS + GUIDES
    data = [script for script in scripts if "load_fashion_mnist(" in script.read_text(encoding="utf-8")]
    return [*((script, "without data") for script in scripts), *((script, "with data") for script in data)]


@dataclass(frozen=True)
class Case:
    """A lesson to be downloaded into an empty folder, and where its data are."""

    script: Path
    folder: Path
    data: str | None

    def download(self, suffix: str) -> Path:
        page = Page(SITE / f"{page_name(self.script)}.html")
        (link,) = [a["href"] for a in page.soup.select("p.downloads a") if a["href"].endswith(suffix)]
        return Path(shutil.copy(page.file(link), self.folder))


@pytest.fixture(params=cases(), ids=lambda case: f"{case[0].stem} {case[1]}")
def case(request, site, tmp_path) -> Case:
    script, wanted = request.param
    data = os.environ.get("GPULESSON_DATA")
    if wanted == "with data" and not data:
        pytest.skip("GPULESSON_DATA names no folder with data")
    (tmp_path / "empty").mkdir()
    return Case(script, tmp_path / "empty", data if wanted == "with data" else None)


def test_a_script_runs_by_itself(case):
    script = case.download(".py")
    run = run_offline([sys.executable, script.name], case.folder, case.data)
    assert run.returncode == 0, run.stderr
    assert run.stdout, "it printed nothing"
    if "load_fashion_mnist(" in script.read_text(encoding="utf-8"):
        assert ("digits stand-in" in run.stdout) == (case.data is None), (
            "the page must say which data it shows"
        )


def test_a_notebook_runs_by_itself(case):
    path = case.download(".ipynb")
    run = run_offline([sys.executable, str(HERE / "run_notebook.py"), path.name], case.folder, case.data)
    assert run.returncode == 0, run.stderr
    first, *cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert first.outputs == [], "the first cell has nothing to install here"
    assert all(cell.execution_count for cell in cells) and any(cell.outputs for cell in cells)


def test_offline_means_offline(tmp_path):
    """No test here is worth anything if this one can reach out."""
    code = "import urllib.request\nurllib.request.urlopen('https://192.0.2.1/', timeout=5)"
    if offline.isolated():
        code = "import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=5)"
    run = run_offline([sys.executable, "-c", code], tmp_path, None)
    assert run.returncode != 0
    assert ("unreachable" if offline.isolated() else "refused") in run.stderr
