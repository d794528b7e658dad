"""The boxes of a lesson on its page, and the tables that gather what all lessons say."""

from __future__ import annotations

import json
import re

import nbformat
import pytest
from projects import INDEX, ROOT, Project, lesson

pytestmark = pytest.mark.slow  # each builds a project

BODY = """
# %%
# .. question:: Where is ``t``?
#
#    - On the ``GPU``.
#
#      No. It was copied.
#
#    - On the *CPU*.
#
#      Yes. A :term:`tensor` stays. So do :term:`tensors <tensor>`.

# fold: Draw a <line>
print("drawn")

# %%
# .. prereq::
#
#    - Python
#
# .. measured:: on a V100, by Them
#    :source: https://example.com/them
#    :date: 2021
#
#    Twice as fast.
#
# .. instructor-note::
#
#    Slow down here.

print("more")

# %%
# Deeper
# ------
#
# .. covers:: S1.1

print("still more")

# %%
# Warnings name files. It is ``a``. ``b`` is a :term:`tensor`. ``c`` is one, too.

import warnings
from pathlib import Path

import numpy

warnings.warn("look here")
print(Path.home() / "data", numpy.__file__)
"""

GLOSSARY = """
Glossary
========

.. glossary::

   tensor
      An array & more.

   batch
      Several.
"""


@pytest.fixture(scope="module")
def site(built) -> Project:
    first = lesson("First", teaching=10, exercises=5, text=".. covers:: S0.1 S1.2", body=BODY)
    project_files = {"docs/glossary.rst": GLOSSARY, "docs/index.rst": INDEX + "   glossary\n"}
    second = lesson("Second", teaching=25, exercises=15, text=".. covers:: S0.1, S0.3")
    lessons = {"examples/01_first.py": first, "examples/02_second.py": second}
    return built({**lessons, **project_files}, HOME="/somewhere/home")


def texts(elements) -> list[str]:
    return [" ".join(element.get_text(" ").split()) for element in elements]


def notebook(site: Project) -> nbformat.NotebookNode:
    return nbformat.read(site.folder / "docs/lessons/01_first.ipynb", as_version=4)


def test_boxes_are_labelled_notes(site):
    boxes = {box["class"][1]: box for box in site.page("lessons/01_first").select(".box")}
    labels = {kind: box.select_one(".admonition-title").get_text() for kind, box in boxes.items()}
    assert labels == {
        "overview": "Overview", "objectives": "You will", "keypoints": "Key points", "prereq": "You need",
        "exercise": "Exercise: Do it", "question": "Where is t?", "measured": "Measured on a V100, by Them",
    }  # fmt: skip
    assert all(box["role"] == "note" for box in boxes.values())
    assert texts(boxes["overview"].select(".box li")) == ["Know why."]
    assert texts(boxes["overview"].select(".facts")) == ["Teaching: 10 min · Exercises: 5 min"]
    assert texts(boxes["exercise"].select(".facts")) == ["5 min · easy"]
    assert texts(boxes["measured"].select(".facts")) == ["2021 · the source"]
    assert boxes["measured"].select_one(".facts a")["href"] == "https://example.com/them"
    assert texts(boxes["exercise"].select("ol > li")) == ["Predict.", "Run."]


def test_solution_and_starter_are_folded_and_downloadable(site):
    page = site.page("lessons/01_first")
    folds = {fold.summary.get_text(): fold for fold in page.select("details")}
    assert set(folds) == {
        "The starter, 01_task.py", "Solution", "For instructors",
        "On the GPU.", "On the CPU.", "Draw a <line>",
    }  # fmt: skip
    assert not any(fold.has_attr("open") for fold in folds.values())
    assert (
        "Because." in folds["Solution"].get_text()
        and "Slow down here." in folds["For instructors"].get_text()
    )
    for summary, folder in (("The starter, 01_task.py", "exercises"), ("Solution", "solutions")):
        source = (site.folder / "examples" / folder / "01_task.py").read_text()
        assert folds[summary].pre.get_text().strip() == source.strip()
        link = folds[summary].select_one("a.download")["href"]
        assert (site.folder / "out" / "lessons" / link).read_text() == source


def test_an_answer_folds_away_what_there_is_to_know_about_it(site):
    wrong, right = site.page("lessons/01_first").select(".box.question details")
    assert "wrong" in wrong["class"] and "right" in right["class"]
    assert wrong.summary.code.get_text() == "GPU" and "It was copied." in wrong.p.get_text()


def test_a_folded_cell_shows_its_title_and_keeps_its_code(site):
    (fold,) = site.page("lessons/01_first").select("details.code")
    assert fold.pre.get_text().strip() == 'print("drawn")'
    (cell,) = [cell for cell in notebook(site).cells if "drawn" in cell.source]
    assert cell.source == '# @title Draw a <line>\nprint("drawn")'
    assert cell.metadata.jupyter.source_hidden and cell.metadata.tags == ["hide-input"]


def test_a_question_is_a_cell_of_the_notebook(site):
    (cell,) = [cell for cell in notebook(site).cells if "Where is" in cell.source]
    assert cell.source.startswith('<div class="alert alert-info">\n\n**Where is `t`?**')
    assert "<summary>On the <code>GPU</code>.</summary>\n\nNo. It was copied.\n" in cell.source


def test_a_term_opens_its_definition(site):
    page = site.page("lessons/01_first")
    buttons = page.select("button.term")
    assert [button.get_text() for button in buttons] == ["tensor", "tensors", "tensor"]
    assert str(buttons[0].next_sibling) == " stays. So do "
    assert buttons[1].parent["class"] == ["joined"] and buttons[1].parent.get_text() == "tensors."
    # the mark is taken from behind the term, not from an equal text further up
    assert buttons[2].find_parent("p").get_text().endswith("It is a. b is a tensor. c is one, too.")
    (definition,) = page.select("[popover]")
    assert {button["popovertarget"] for button in buttons} == {definition["id"]}
    assert definition.p.get_text() == "tensor: An array & more."
    assert definition.a["href"] == "../glossary.html#term-tensor"
    assert page.select_one("a.term") is None and not site.page("glossary").select("[popover]")


def test_a_definition_is_not_found_in_every_lesson(site):
    text = (site.folder / "out/_static/sections.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("{") : text.rindex(";")])
    number = int(re.fullmatch(r"([0-9a-z]+)[A-Z]", index["words"]["array"])[1], 36)
    assert index["sections"][number][1] == "term-tensor"


def test_covered_facts_are_invisible_anchors_with_links_to_them(site):
    page = site.page("lessons/01_first")
    assert [anchor["id"] for anchor in page.select(".covers")] == [
        "covers-s0-1",
        "covers-s1-2",
        "covers-s1-1",
    ]
    assert not re.search(r"S\d\.\d", page.select_one("article").get_text())
    rows = [row.find_all("td") for row in site.page("tables").select("table.coverage-table tbody tr")]
    found = {row[0].get_text(): [link["href"] for link in row[2].find_all("a")] for row in rows}
    first, second = "lessons/01_first.html#covers-", "lessons/02_second.html#covers-"
    assert found == {
        "S0.1": [f"{first}s0-1", f"{second}s0-1"], "S0.2": [], "S0.3": [f"{second}s0-3"],
        "S1.1": [f"{first}s1-1"], "S1.2": [f"{first}s1-2"],
    }  # fmt: skip
    assert rows[1][2].get_text() == "no lesson yet"
    assert rows[2][2].get_text() == "Second" and rows[3][2].get_text() == "First: Deeper"
    assert [row[1].get_text() for row in rows] == ["one thing", "two", "three", "and another", "the last"]


def test_no_path_of_this_machine_is_on_a_page(site):
    page = site.page("lessons/01_first").select_one("article").get_text()
    assert "./examples/01_first.py:" in page and "UserWarning: look here" in page
    assert "~/data site-packages/numpy/__init__.py" in page
    assert str(site.folder) not in page and "/somewhere/home" not in page


def totals(project: Project) -> list[str]:
    rows = project.page("tables").select("table.syllabus tbody tr")
    return texts(rows[-1].find_all("td"))[1:] if rows else []


def test_the_syllabus_follows_changed_new_and_deleted_lessons(project):
    """Read by several processes, which Sphinx forks for more than five pages."""
    scripts = [project.folder / f"examples/{number:02}_x.py" for number in range(1, 10)]
    for script in scripts[:8]:
        project.write(f"examples/{script.name}", lesson(teaching=1, text=".. covers:: S0.2"))
    build = project.build("-j", "2")
    assert build.status == 0, build.log
    assert totals(project) == ["8 min", "40 min"]
    assert len(project.page("tables").select("table.coverage-table tr:nth-child(2) a")) == 8
    project.write("examples/01_x.py", lesson(teaching=20))
    scripts[1].rename(scripts[8])
    scripts[2].unlink()
    assert project.build().status == 0
    assert totals(project) == ["26 min", "35 min"]


def test_the_template_of_a_lesson_is_one(project):
    text = (ROOT / "docs/lesson_template.py").read_text(encoding="utf-8").replace("NN", "13")
    project.write("examples/13_new.py", text)
    for name in ("exercises/exercise_13.py", "solutions/solution_13.py"):
        project.write(f"examples/{name}", "print()\n")
    for name in set(re.findall("/lessons/([0-9]+_[a-z_]+)`", text)):
        project.write(f"examples/{name}.py", lesson(name))
    project.write("docs/glossary.rst", GLOSSARY)
    project.write("docs/index.rst", INDEX + "   glossary\n")
    build = project.build()
    assert build.status == 0, build.log
    boxes = {box["class"][1] for box in project.page("lessons/13_new").select(".box")}
    assert boxes == {"overview", "objectives", "keypoints", "prereq", "exercise", "question"}
