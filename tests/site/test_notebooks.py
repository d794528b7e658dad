"""The generated notebooks: every construct of a lesson as Markdown, judged by an independent reader of it."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt
from projects import CONF, TABLES, Project, lesson

pytestmark = pytest.mark.slow  # each builds a project

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
ROOT = Path(__file__).parents[2]
WHEEL = "gpulesson-1.2-py3-none-any.whl"
TASK = '"""Exercise 1: do *it*."""\n\nprint("the starter")\n'
# one construct after the other; `{}` is where a code cell follows
BODY = r"""
# %%
# A section
# ---------
#
# Roles: :func:`torch.ones`, :class:`~torch.nn.Linear`, :doc:`/index`, :doc:`02_other`,
# :doc:`that one <02_other>`, :ref:`a place <genindex>`, :ref:`a label <a label>`, **much**.
# Code: ``a * b``, ``c`d``, ``x|y``. Links: `a page <https://example.org/a_b>`__, https://example.org.
# Signs: 5 * 3 * 2, state_dict, _private_, $1 and $2, a < b & c, [x], back\\slash and ``new
# line``.
#
# 1\. Not a list.
#
# \- Nor this.
#
# - bullet
#
#   - nested
#
#   with a second paragraph
# - last
#
# #. automatic
# #. numbers
#
# 4. from
# 5. four
#
# .. list-table::
#    :header-rows: 1
#
#    * - name
#      - value
#    * - ``a|b``
#      - two
#
#        paragraphs
#
# ===  ===
# one  two
# ===  ===
#
# .. image:: /picture.png
#    :alt: one dot
#
# .. code-block:: bash
#
#    echo ``tick``
#
# ::
#
#    plain ``` text
#
# .. instructor-note::
#
#    Slow down.
#
# A |short|, and `target`_.
#
# .. _target: https://example.org/t
# .. |short| replace:: substitution
#
# .. covers:: S0.3
#
# .. comment

1 + 1

# %%
# Deeper
# ~~~~~~

2 + 2

# %%
# A section again
# ---------------
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    """What both sites are made of."""
    picture = tmp_path_factory.mktemp("picture") / "picture.png"
    picture.write_bytes(PICTURE)
    copy = f"import shutil\nshutil.copy({str(picture)!r}, 'docs')"
    return {
        "conf.py": f"{CONF}\n{copy}\ngpulesson_wheel = {WHEEL!r}\n",
        "docs/tables.rst": f".. _a label:\n{TABLES}",
        "examples/01_first.py": lesson("First", text=".. covers:: S0.1", body=BODY),
        "examples/02_other.py": lesson("Other *one*"),
        "examples/exercises/01_task.py": TASK,
        "examples/exercises/exercise_04.py": (ROOT / "examples/exercises/exercise_04.py").read_text("utf-8"),
    }


@pytest.fixture(scope="module")
def site(built, files) -> Project:
    return built(files)


@pytest.fixture(scope="module")
def notebook(site):
    return nbformat.read(site.folder / "docs/lessons/01_first.ipynb", as_version=4)


@pytest.fixture
def html(notebook) -> BeautifulSoup:
    """All text cells as a Markdown reader shows them."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    reader = MarkdownIt("commonmark", {"html": True}).enable("table")
    return BeautifulSoup("\n".join(map(reader.render, cells)), "html.parser")


def texts(elements) -> list[str]:
    return [" ".join(element.get_text().split()) for element in elements]


def test_the_notebook_is_valid_and_portable(notebook):
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec == {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    assert notebook.metadata.accelerator == "GPU"
    assert "version" not in notebook.metadata.language_info, (
        "the version of the building machine is not of the notebook"
    )
    ids = [f"cell-{number}" for number in range(len(notebook.cells))]
    assert [cell.id for cell in notebook.cells] == ids, "the same at each build"


def test_code_cells_are_the_code_of_the_script(notebook):
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert code[1:] == ['print("it ran")', "1 + 1", "2 + 2"]
    kinds = "".join(cell.cell_type[0] for cell in notebook.cells)
    assert kinds == "mccmcmcm", "texts and code in turn"


def test_nothing_raw_is_left(html):
    for code in html.find_all(["code", "pre"]):
        code.decompose()
    text = html.get_text()
    for leftover in (
        r"::",
        r"^\.\.",
        r":\w+:`",
        r"``",
        r"`_",
        r"^=+$",
        r"^-+$",
        r"\|",
        "S0.1",
        "S0.3",
        r"<[a-z]+>",
    ):
        assert not re.search(leftover, text, re.M), f"{leftover!r} in {text}"


def test_headings_keep_their_levels_through_the_whole_notebook(html):
    found = [(heading.name, heading.get_text()) for heading in html.find_all(re.compile("h[1-6]"))]
    assert found == [("h1", "First"), ("h2", "A section"), ("h3", "Deeper"), ("h2", "A section again")]


def test_roles_and_text(html):
    (roles,) = [paragraph for paragraph in html.find_all("p") if paragraph.get_text().startswith("Roles")]
    codes = [code.get_text() for code in roles.find_all("code")]
    assert codes == ["torch.ones()", "Linear", "a * b", "c`d", "x|y", "new line"]
    links = {link.get_text(): link["href"] for link in roles.find_all("a")}
    assert links == {"a page": "https://example.org/a_b", "https://example.org": "https://example.org"}
    text = " ".join(roles.get_text().split())
    assert "Home, Other *one*, that one, a place, a label, much" in text
    assert r"5 * 3 * 2, state_dict, _private_, $1 and $2, a < b & c, [x], back\slash" in text
    titles = ["Home", "Other *one*"]  # of pages, set off; nothing else
    assert [em.get_text() for em in roles.find_all("em")] == titles
    assert texts(roles.find_all("strong")) == ["much"]
    assert [item for item in html.find_all("p") if item.get_text() in ("1. Not a list.", "- Nor this.")][1]


def test_a_lone_dollar_is_not_a_formula(notebook):
    source = "".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert r"<span>\$</span>1 and <span>\$</span>2" in source, "else JupyterLab shows a formula"


def test_lists(html):
    lists = {" ".join(item.get_text().split()[:1]): item for item in html.find_all("li")}
    assert texts(lists["bullet"].select("ul > li")) == ["nested"]
    assert "with a second paragraph" in lists["bullet"].get_text()
    assert (
        lists["automatic"].parent.name == "ol"
        and texts(lists["automatic"].parent.find_all("li"))[1] == "numbers"
    )
    assert lists["from"].parent["start"] == "4"


def test_tables(html):
    first, second = html.find_all("table")
    assert texts(first.find_all(["th", "td"])) == ["name", "value", "a|b", "twoparagraphs"]
    assert first.td.code and first.find_all("td")[1].br
    assert texts(second.find_all("td")) == ["one", "two"]


def test_pictures_travel_with_the_notebook(html, notebook):
    assert {picture["src"] for picture in html.find_all("img")} == {"attachment:picture.png"}
    assert html.img["alt"] == "one dot"
    (cell,) = [cell for cell in notebook.cells if "attachments" in cell]
    assert base64.b64decode(cell.attachments["picture.png"]["image/png"]) == PICTURE


def test_code_blocks(html):
    blocks = {tuple(block.get("class", ())): block.get_text() for block in html.select("pre > code")}
    assert blocks[("language-bash",)] == "echo ``tick``\n"
    assert blocks[()] == "plain ``` text\n"


def test_boxes_stay_boxes(html):
    alerts = {alert.strong.get_text(): alert["class"][1] for alert in html.select("div.alert")}
    assert alerts == {
        "Overview": "alert-info", "Exercise: Do it": "alert-warning", "Key points": "alert-success",
    }  # fmt: skip
    overview, exercise = html.select_one("div.alert"), html.select("div.alert-warning")[0]
    assert texts(overview.find_all("strong")) == ["Overview", "You will"]
    assert texts(overview.find_all("li")) == ["Know why."]
    assert texts(exercise.select("ol > li")) == ["Predict.", "Run."]


def test_starter_and_solution_are_folded_with_their_code(html):
    folds = {fold.summary.get_text(): fold for fold in html.find_all("details")}
    assert set(folds) == {"The starter, 01_task.py", "Solution", "For instructors"}
    assert folds["The starter, 01_task.py"].select_one("pre code.language-python").get_text() == TASK
    assert folds["Solution"].select_one("pre code.language-python").get_text() == 'print("the solution")\n'
    assert "Because." in folds["Solution"].p.get_text()
    assert "Download" not in html.get_text()  # a notebook has no files beside it


def test_substitutions(html):
    assert "A substitution, and target." in " ".join(html.get_text().split())
    assert html.find("a", href="https://example.org/t")


def test_the_cell_that_installs_follows_the_title_and_is_folded(notebook):
    title, first, *_ = notebook.cells
    assert title.source.startswith("# First") and "Overview" in title.source
    assert first.cell_type == "code" and first.metadata.jupyter.source_hidden
    assert first.source.startswith("# @title Install what is missing\nimport importlib")
    calls = [line for line in first.source.splitlines() if line.startswith("install_gpulesson(")]
    assert calls == [f'install_gpulesson("{WHEEL}", "")'] and first.source.endswith(calls[0])


def test_an_exercise_is_a_notebook_too(site):
    path = site.folder / "docs/lessons/exercises/01_task.ipynb"
    title, first, task = nbformat.read(path, as_version=4).cells
    assert title.source.startswith("# Exercise 1\n\nDo \\*it\\*. Work in the second cell")
    assert first.source.endswith(f'("{WHEEL}", "")')
    assert task.source == TASK.strip()
    links = {link.get_text(): link["href"] for link in site.page("lessons/01_first").select("details a")}
    assert json.loads((site.folder / "out/lessons" / links["01_task.ipynb"]).read_text()) == json.loads(
        path.read_text()
    )
    assert "01_task.py" in links


def test_the_last_cell_of_an_exercise_checks_its_functions(site):
    path = site.folder / "docs/lessons/exercises/exercise_04.ipynb"
    *_, check = nbformat.read(path, as_version=4).cells
    call = "gpulesson.check(4, train_step=train_step, accuracy=accuracy, run=run)"
    assert check.source.splitlines()[-1] == call


@pytest.fixture(scope="module")
def addressed(built, files) -> Project:
    """A site with an address, a repository, and a branch of it that holds the course."""
    settings = (
        'html_baseurl, gpulesson_course_branch = "https://example.org/course", "course"\n'
        'gpulesson_repository = "https://github.com/someone/gpulesson/"\n'
    )
    return built({**files, "conf.py": files["conf.py"] + settings})


def test_with_an_address_notebooks_link_to_the_site(addressed):
    notebook = nbformat.read(addressed.folder / "docs/lessons/01_first.ipynb", as_version=4)
    text = "".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert notebook.cells[1].source.endswith(f'("{WHEEL}", "https://example.org/course/")')
    assert "[*Home*](https://example.org/course/index.html)" in text
    assert "[that one](https://example.org/course/lessons/02_other.html)" in text
    assert "[a label](https://example.org/course/tables.html#a-label)" in text


def test_launchers_open_the_notebook_in_the_branch(addressed):
    links = addressed.page("lessons/01_first").select("p.downloads a[href^=https]")
    there = "github.com/someone/gpulesson/blob/course/lessons/01_first.ipynb"
    assert {link.get_text(): link["href"] for link in links} == {
        "Colab": f"https://colab.research.google.com/{there.replace('.com', '')}",
        "Kaggle": f"https://kaggle.com/kernels/welcome?src=https://{there}",
        "Binder (no GPU)": "https://mybinder.org/v2/gh/someone/gpulesson/course?labpath=lessons/01_first.ipynb",
    }
    first_page = addressed.page("index").select("p.downloads a")
    assert [link["href"] for link in first_page] == [link["href"] for link in links]


def test_without_an_address_there_is_no_launcher_and_no_link_to_the_site(site, html):
    assert not site.page("lessons/01_first").select("p.downloads a[href^=https]")
    assert not html.select("a[href$=html]")
