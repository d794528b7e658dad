"""Every downloaded script and notebook runs by itself: an empty folder, no network.

What guards what. A script is the source of the lesson byte for byte, which the build ran; lesson 8's also
runs here. A notebook has the code of its script, and each runs here, in a separate kernel, on a real or
simulated GPU: so every lesson has run offline, and with the code that is left out without a GPU. One of them
does in each run of the tests; all, in `nox -s thorough`.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import offline
import pytest
from pages import GUIDES, LESSONS, Site, page_name

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SCRIPTS = LESSONS + GUIDES
RUN = ("01_is_there_a_gpu",)
DATA = "fashion-mnist excerpt, 6000/1000"


def run_offline(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, without network."""
    environment = offline.environment()
    environment |= {"MPLBACKEND": "Agg", "NO_COLOR": "1"}
    environment |= {
        "IPYTHONDIR": str(folder.parent / "ipython"),
        "PYTHONWARNINGS": "ignore::DeprecationWarning",
    }
    for name in [name for name in environment if name.startswith("GPULESSON_")]:
        del environment[name]
    return subprocess.run(
        [*offline.isolated(), *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def by_stem(path: Path) -> str:
    return path.stem


def download(site: Site, script: Path, suffix: str, folder: Path) -> Path:
    """Download a file of a lesson, by the link on its page, into an empty folder."""
    page = site.page(page_name(script))
    (link,) = [a["href"] for a in page.soup.select("p.downloads a") if a["href"].endswith(suffix)]
    folder.mkdir()
    return Path(shutil.copy(page.file(link), folder))


@pytest.mark.parametrize("script", SCRIPTS, ids=by_stem)
def test_a_script_is_what_the_build_ran(script, site, tmp_path):
    """So the output on the page is that of the download."""
    assert download(site, script, ".py", tmp_path / "empty").read_bytes() == script.read_bytes()
    names = {node.id for node in ast.walk(ast.parse(script.read_bytes())) if isinstance(node, ast.Name)}
    assert "__file__" not in names, "a notebook has no such name"
    assert site.page(page_name(script)).printed(), "it printed nothing"


def code_of(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("script", SCRIPTS, ids=by_stem)
def test_a_notebook_has_the_code_of_its_script(script, site, tmp_path):
    notebook = nbformat.read(download(site, script, ".ipynb", tmp_path / "empty"), as_version=4)
    _, *cells = code_of(notebook)
    found = [ast.dump(statement) for cell in cells for statement in ast.parse(cell.source).body]
    docstring, *statements = ast.parse(script.read_bytes()).body
    assert isinstance(docstring, ast.Expr) and found == [ast.dump(statement) for statement in statements]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, marks=() if script.stem in RUN else pytest.mark.thorough, id=script.stem)
        for script in SCRIPTS
    ],
)
def test_a_notebook_runs_by_itself_where_there_is_a_gpu(script, site, course, environment, tmp_path):
    """In an environment that has what the course installs, and no more than a notebook needs beside it."""
    path = download(site, script, ".ipynb", tmp_path / "empty")
    environment.install("-r", "requirements.txt", folder=course)
    command = [str(HERE / "run_notebook.py"), path.name]
    if script.stem != "learn_without_a_gpu":  # which starts its own, and then two
        command.append("--practice")
    run = environment.run(*command, folder=path.parent, network=False)
    assert run.returncode == 0, run.stderr
    first, *cells = code_of(nbformat.read(path, as_version=4))
    assert first.outputs == [], "the first cell has nothing to install here"
    assert all(cell.execution_count for cell in cells) and any(cell.outputs for cell in cells)
    shown = str([cell.outputs for cell in cells])
    assert "driver version" not in shown
    if script.stem in RUN:  # not every lesson prints its device
        assert "cuda" in shown
    if "data.source" in script.read_text(encoding="utf-8"):
        assert DATA in shown, "the page must say which data it shows"


def test_a_script_runs_by_itself(site, tmp_path):
    (lesson,) = [script for script in LESSONS if script.name.startswith("08")]
    script = download(site, lesson, ".py", tmp_path / "empty")
    run = run_offline([sys.executable, script.name], script.parent)
    assert run.returncode == 0, run.stderr
    assert run.stdout, "it printed nothing"
    assert DATA in run.stdout, "the page must say which data it shows"


@pytest.mark.thorough
@pytest.mark.parametrize("number", ["02", "03", "04", "05", "06"])
def test_a_reader_gets_the_numbers_that_the_page_shows(number, site, tmp_path):
    """All but seconds, on the same kind of processor."""
    (lesson,) = [script for script in LESSONS if script.name.startswith(number)]
    script = download(site, lesson, ".py", tmp_path / "empty")
    run = run_offline([sys.executable, script.name], script.parent)
    assert run.returncode == 0, run.stderr
    shown, printed = (
        [line.rstrip() for line in text.expandtabs().splitlines() if line.strip() and "second" not in line]
        for text in (site.page(page_name(lesson)).printed(), run.stdout)
    )
    assert len(shown) > 5 and [untimed(line) for line in printed] == [untimed(line) for line in shown]


def untimed(line: str) -> str:
    """Leave out a last column of seconds, as in lesson 5's comparison."""
    return re.sub(r"(?<=\d) +\d+\.\d$", "", line)


def test_offline_means_offline(tmp_path):
    """No test here is worth anything if this one can reach out."""
    code = "import urllib.request\nurllib.request.urlopen('https://192.0.2.1/', timeout=5)"
    if offline.isolated():
        code = "import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=5)"
    run = run_offline([sys.executable, "-c", code], tmp_path)
    assert run.returncode != 0
    assert ("unreachable" if offline.isolated() else "refused") in run.stderr
