"""The boxes of a lesson on its page, and the tables that gather what all lessons say."""

from __future__ import annotations

import json
import re
from textwrap import indent

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
    return built({"examples/01_first.py": first, "examples/02_second.py": second, **project_files})


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
    assert [button.get_text() for button in buttons] == ["tensor", "tensors"]
    assert str(buttons[0].next_sibling) == " stays. So do "
    assert buttons[1].parent["class"] == ["joined"] and buttons[1].parent.get_text() == "tensors."
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


@pytest.mark.parametrize(
    "text, message",
    [
        ("- One.\n\n   Yes. So.\n\n- Two.\n\n   Yes. So.", "one answer must be right"),
        ("- One.\n\n   No. So.", "one answer must be right"),
        ("- One.\n\n   Perhaps.", "about the answer 'One.'"),
        ("- One.", "about the answer 'One.'"),
        ("Well?", "a question holds a list"),
    ],
)
def test_a_question_without_one_right_answer_fails_the_build(text, message, project):
    project.write("examples/01_first.py", lesson(text=".. question:: What?\n\n" + indent(text, "   ")))
    build = project.build()
    assert build.status != 0 and message in build.log


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
    assert [row[1].get_text() for row in rows] == ["one thing", "", "", "and another", ""]


def test_words_for_an_unknown_fact_are_refused(project):
    project.write("docs/tables.rst", "Tables\n======\n\n.. coverage-table::\n\n   S9.1 nothing\n")
    build = project.build()
    assert build.status == 1 and "gpulesson_facts in conf.py knows no S9.1" in build.log


def test_the_syllabus_lists_and_sums(site):
    rows = [texts(row.find_all("td")) for row in site.page("tables").select("table.syllabus tbody tr")]
    assert rows == [
        ["First Learn one thing with code.", "10 min", "5 min"],
        ["Second Learn one thing with code.", "25 min", "15 min"],
        ["Together: 55 minutes", "35 min", "20 min"],
    ]
    assert site.page("tables").select_one("table.syllabus a")["href"] == "lessons/01_first.html"


def totals(project: Project) -> list[str]:
    rows = project.page("tables").select("table.syllabus tbody tr")
    return texts(rows[-1].find_all("td"))[1:] if rows else []


def test_the_syllabus_follows_a_changed_a_new_and_a_deleted_lesson(project):
    project.write("examples/01_first.py", lesson(teaching=10))
    assert project.build().status == 0
    assert totals(project) == ["10 min", "5 min"]
    project.write("examples/01_first.py", lesson(teaching=20))
    assert project.build().status == 0
    assert totals(project) == ["20 min", "5 min"]
    project.write("examples/02_second.py", lesson(teaching=1)).rename(project.folder / "examples/03_third.py")
    project.build()
    assert totals(project) == ["21 min", "10 min"]
    (project.folder / "examples/03_third.py").unlink()
    build = project.build()
    assert totals(project) == ["20 min", "5 min"]
    assert build.status == 0, build.log


def test_parallel_reading_loses_no_lesson(project):
    for number in range(1, 9):  # Sphinx forks its readers for more than five pages
        project.write(f"examples/0{number}_x.py", lesson(teaching=1, text=".. covers:: S0.2"))
    build = project.build("-j", "2")
    assert build.status == 0, build.log
    assert totals(project) == ["8 min", "40 min"]
    assert len(project.page("tables").select("table.coverage-table tr:nth-child(2) a")) == 8


def test_a_changed_exercise_file_changes_the_page(project):
    project.write("examples/01_first.py", lesson())
    project.build()
    project.write("examples/solutions/01_task.py", 'print("another way")\n')
    project.build()
    page = project.page("lessons/01_first")
    assert page.select_one("details.solution pre").get_text().strip() == 'print("another way")'
    link = page.select_one("details.solution a.download")["href"]
    assert "another way" in (project.folder / "out/lessons" / link).read_text()


def test_mistakes_of_an_author_are_named(project):
    lost = (
        lesson()
        .replace(":file: 01_task.py", ":file: 01_lost.py")
        .replace(":starter: 01_task", ":starter: 01_gone")
    )
    project.write("examples/01_lost.py", lost)
    project.write("examples/02_facts.py", lesson(text=".. covers:: S0.4 S7.1 S1 S1.02 S1.1 S1.1"))
    project.write("examples/03_minutes.py", lesson(exercises=5).replace(":minutes: 5", ":minutes: 7"))
    project.write("examples/04_overview.py", lesson().replace("   :teaching: 10\n", ""))
    sentence = "Learn *one* thing with ``code``.\n"
    project.write("examples/05_sentence.py", lesson().replace(sentence, ".. note:: no sentence\n"))
    project.write("examples/06_difficulty.py", lesson().replace(":difficulty: easy", ":difficulty: brutal"))
    build = project.build()
    assert build.status != 0
    folder = project.folder / "examples"
    for message in (
        f"Include file '{folder}/exercises/01_gone.py' not found",
        f"Include file '{folder}/solutions/01_lost.py' not found",
        "covers: there is no fact 'S0.4'; there are S0.1, S0.2, S0.3, S1.1, S1.2",
        "covers: there is no fact 'S7.1'",
        "covers: there is no fact 'S1'",
        "covers: there is no fact 'S1.02'",
        "covers: S1.1 stands on this page more than once",
        "overview: announces 5 minutes of exercises, but the exercises say 7",
        "overview needs both options, in minutes: ':teaching: 10' and ':exercises: 5'",
        "overview: a lesson needs one sentence below its title",
        '"brutal" unknown',
    ):  # fmt: skip
        assert message in build.log, f"{message!r} not in\n{build.log}"


def test_no_path_of_this_machine_is_on_a_page(project):
    body = """
# %%
# Warnings name files.

import warnings
from pathlib import Path

import numpy

warnings.warn("look here")
print(Path.home() / "data", numpy.__file__)
"""
    project.write("examples/01_first.py", lesson(body=body))
    assert project.build(HOME="/somewhere/home").status == 0
    page = project.page("lessons/01_first").select_one("article").get_text()
    assert "./examples/01_first.py:" in page and "UserWarning: look here" in page
    assert "~/data site-packages/numpy/__init__.py" in page
    assert str(project.folder) not in page and "/somewhere/home" not in page


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
