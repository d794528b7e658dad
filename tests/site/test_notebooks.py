"""The generated notebooks: every construct of a lesson as Markdown, judged by an independent reader of it."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import sys
import zipfile

import nbformat
import pytest
from bs4 import BeautifulSoup
from IPython.core.interactiveshell import InteractiveShell
from markdown_it import MarkdownIt
from projects import CONF, Project, lesson

pytestmark = pytest.mark.slow  # each builds a project

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
# one construct after the other; `{}` is where a code cell follows
BODY = r"""
# %%
# A section
# ---------
#
# Roles: :func:`torch.ones`, :class:`~torch.nn.Linear`, :doc:`/index`, :doc:`02_other`,
# :doc:`that one <02_other>`, :ref:`a place <genindex>`, **much**.
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
def site(built, tmp_path_factory) -> Project:
    first = lesson("First", text=".. covers:: S0.1", body=BODY)
    picture = tmp_path_factory.mktemp("picture") / "picture.png"
    picture.write_bytes(PICTURE)
    copy = f"import shutil\nshutil.copy({str(picture)!r}, 'docs')"
    conf = f"{CONF}\n{copy}\ngpulesson_install = 'a-package[extra]'"
    return built(
        {"conf.py": conf, "examples/01_first.py": first, "examples/02_other.py": lesson("Other *one*")}
    )


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
    assert "version" not in notebook.metadata.language_info, (
        "the version of the building machine is not of the notebook"
    )
    ids = [f"cell-{number}" for number in range(len(notebook.cells))]
    assert [cell.id for cell in notebook.cells] == ids, "the same at each build"


def test_code_cells_are_the_code_of_the_script(notebook):
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert code[1:] == ['print("it ran")', "1 + 1", "2 + 2"]
    kinds = "".join(cell.cell_type[0] for cell in notebook.cells)
    assert kinds == "cmcmcmcm", "texts and code in turn"


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
    assert "Home, Other *one*, that one, a place, much" in text
    assert r"5 * 3 * 2, state_dict, _private_, $1 and $2, a < b & c, [x], back\slash" in text
    titles = ["Home", "Other *one*"]  # of pages, set off; nothing else
    assert [em.get_text() for em in roles.find_all("em")] == titles
    assert texts(roles.find_all("strong")) == ["much"]
    assert [item for item in html.find_all("p") if item.get_text() in ("1. Not a list.", "- Nor this.")][1]


def test_a_lone_dollar_is_no_formula(notebook):
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
    assert texts(overview.find_all("strong")) == ["Overview", "Questions", "Objectives"]
    assert texts(overview.find_all("li")) == ["Why?", "Know why."]
    assert texts(exercise.select("ol > li")) == ["Predict.", "Run."]


def test_starter_and_solution_are_folded_with_their_code(html):
    folds = {fold.summary.get_text(): fold for fold in html.find_all("details")}
    assert set(folds) == {"The starter, 01_task.py", "Solution", "For instructors"}
    assert (
        folds["The starter, 01_task.py"].select_one("pre code.language-python").get_text()
        == 'print("the starter")\n'
    )
    assert folds["Solution"].select_one("pre code.language-python").get_text() == 'print("the solution")\n'
    assert "Because." in folds["Solution"].p.get_text()
    assert "Download" not in html.get_text()  # a notebook has no files beside it


def test_substitutions(html):
    assert "A substitution, and target." in " ".join(html.get_text().split())
    assert html.find("a", href="https://example.org/t")


def run_install_cell(notebook, missing: bool, monkeypatch) -> list[tuple[str, str]]:
    """Run the first cell in IPython, as where the package is missing or not; return the magics it called."""
    shell, called = InteractiveShell.instance(), []
    monkeypatch.setattr(shell, "run_line_magic", lambda name, line, **_: called.append((name, line)))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if missing and name == "gpulesson" else sys
    )
    shell.run_cell(notebook.cells[0].source).raise_error()
    return called


def test_the_first_cell_installs_what_is_missing(notebook, monkeypatch):
    assert run_install_cell(notebook, True, monkeypatch) == [("pip", 'install --quiet "a-package[extra]"')]
    assert run_install_cell(notebook, False, monkeypatch) == []


def test_the_download_is_the_clean_notebook(site):
    downloads = {
        link["href"]
        for link in site.page("lessons/01_first").select("a.download")
        if ".ipynb" in link["href"]
    }
    (notebook,) = [json.loads((site.folder / "out/lessons" / link).read_text()) for link in downloads]
    assert notebook == json.loads((site.folder / "docs/lessons/01_first.ipynb").read_text())
    with zipfile.ZipFile(site.folder / "docs/lessons/lessons_jupyter.zip") as archive:
        assert json.loads(archive.read("01_first.ipynb")) == notebook


def test_the_downloaded_script_is_the_script(site):
    assert (site.folder / "docs/lessons/01_first.py").read_text() == (
        site.folder / "examples/01_first.py"
    ).read_text()


def test_what_has_no_markdown_form_is_a_warning(project):
    body = """
# %%
# -a  an option list
#
# See :ref:`genindex`.
#
# See :doc:`/nowhere`.
#
# See :nonsense:`x`.
#
# .. image:: /lost.png

3
"""
    project.write("examples/01_first.py", lesson(body=body))
    build = project.build()
    assert build.status != 0
    line = (project.folder / "examples/01_first.py").read_text().splitlines().index(
        "# -a  an option list"
    ) + 1
    found = re.search(r"01_first.py:(\d+): WARNING: notebook: no Markdown form for option_list", build.log)
    assert found and abs(int(found[1]) - line) <= 3, build.log
    assert "no Markdown form for this reference: give it a text, :ref:`text <genindex>`" in build.log
    assert "no Markdown form for this reference: give it a text, :doc:`text </nowhere>`" in build.log
    assert "notebook: " in build.log and 'Unknown interpreted text role "nonsense"' in build.log
    assert f"picture /lost.png, there is no file {project.folder}/docs/lost.png" in build.log
    again = project.build()
    assert "no Markdown form for option_list" in again.log, "the next build is silent about it"


def test_a_changed_starter_changes_the_notebook(project):
    project.write("examples/01_first.py", lesson())
    project.build()
    project.write("examples/exercises/01_task.py", "another = task\n")
    project.build()
    assert "another = task" in (project.folder / "docs/lessons/01_first.ipynb").read_text()


def test_another_sphinx_gallery_without_the_hook_is_an_error(project):
    project.write("conf.py", f"from sphinx_gallery import gen_rst\ndel gen_rst.jupyter_notebook\n{CONF}")
    build = project.build()
    assert build.status != 0
    assert re.search(
        r"sphinx-gallery [\d.]+ has no function gen_rst.jupyter_notebook\(script_blocks", build.log
    )
