"""The first page's figure of a GPU, its cards, and the picture of its preview, in a real project."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from _ext.first_page import LESSON, drawn, speeds
from _ext.recorded.files import RecordedCell, Recording, load, read_cells, write
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from projects import CONF, INDEX, ROOT, Project, lesson
from test_recorded_files import RUN

PAGE = """
Take it to a GPU
================

.. gain::

   {times} times as fast

   A {gpu} beside a {cpu}: {many} rows.

   With {few} rows it was {gpu_few} and {cpu_few}.

.. code-block:: diff

   -first = 1
    second = 2
   +\"\"\"Not this.\"\"\"
   +
   +third = 3

.. lesson-cards::
"""
PRINTED = ("  1  1000  rows and columns", "2.0    25.0  CPU, 3 cores", "0.1 3,000.0  Wonder 9000")


def recorded(script: Path, printed: tuple[str, ...]) -> Recording:
    (cell,) = read_cells(script)[:1]
    return Recording(script.stem, RUN, (), (RecordedCell(cell.hash, "", printed, (), (), 0.1, 0),))


@pytest.fixture
def page(project) -> Project:
    extensions = 'extensions += ["_ext.publishing", "_ext.recorded.pages", "_ext.first_page"]\n'
    project.write("conf.py", f"{CONF}{extensions}html_baseurl = 'https://example.org/'\n")
    project.write("docs/index.rst", PAGE + INDEX.partition("====\n")[2])
    project.write("examples/02_two.py", lesson("Two", teaching=7, exercises=3))
    script = project.write(f"examples/{LESSON}.py", lesson("One"))
    write(recorded(script, PRINTED), {}, project.folder / "docs/recordings")
    return project


def said(project: Project) -> list[str]:
    assert not (build := project.build()).status, build.log
    return [part.get_text() for part in project.page("index").select(".headline p")]


@pytest.mark.slow
def test_the_gain_is_what_was_recorded(page):
    shown = [
        "120 times as fast",
        "A Wonder 9000 beside a CPU, 3 cores: 1000 rows.",
        "With 1 rows it was 0.1 and 2.0.",
    ]
    assert said(page) == [*shown, "Pretended GPU 9000, PyTorch 9.8.7, 2026-01-31"]
    script = page.folder / f"examples/{LESSON}.py"
    write(recorded(script, (*PRINTED[:2], "0.1 50.0  Wonder 1")), {}, page.folder / "docs/recordings")
    assert said(page)[0] == "2 times as fast"
    script.write_text(script.read_text().replace("it ran", "it is another one"))
    assert said(page) == []


@pytest.mark.slow
def test_each_lesson_has_a_card_and_the_preview_has_the_words_of_the_page(page):
    gain = said(page)
    cards = [
        [part.get_text() for part in card.select("p")]
        for card in page.page("index").select(".sphx-glr-thumbcontainer")
    ]
    sentence = "Learn one thing with code."
    assert cards == [["One", sentence, "10 min, exercise 5 min"], ["Two", sentence, "7 min, exercise 3 min"]]
    for name in ("index", "lessons/02_two"):
        about = {meta["property"]: meta["content"] for meta in page.page(name).select("meta[property]")}
        assert about["og:image"] == "https://example.org/_static/preview.png"
        assert about["og:image:alt"].split(" | ") == [
            "Take it to a GPU",
            "-first = 1",
            "+third = 3",
            *gain[:2],
            gain[3],
        ]
    assert Image.open(page.folder / "out/_static/preview.png").size == (1200, 630)


def test_all_words_of_the_real_preview_are_in_the_picture():
    """And none lies on another; those of a page without a difference and without a figure, too."""
    scripts = ROOT / "examples/scripts"
    lines = {name: (scripts / name).read_text().splitlines() for name in ("circle.py", "circle_gpu.py")}
    new = [
        f"+{line}" for line in lines["circle_gpu.py"] if line not in lines["circle.py"] and '"""' not in line
    ]
    title = (ROOT / "docs/index.rst").read_text("utf-8").splitlines()[0]
    for code, gain in (new + ["-gone"] * 2, ["19 times as fast", "word " * 36, "machine " * 8]), ([], []):
        figure = drawn("gpulesson", title, code, gain)
        canvas = FigureCanvasAgg(figure)
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in figure.texts]
        assert canvas.get_width_height() == (1200, 630)
        assert all(box.x0 >= 40 and box.x1 <= 1160 and box.y0 >= 30 and box.y1 <= 600 for box in boxes)
        assert all(above.y0 > below.y1 for above, below in pairwise(boxes))


def test_the_real_recording_has_the_speeds():
    """Of the real lesson, and not of a lesson whose code was changed."""
    script, recording = ROOT / f"examples/{LESSON}.py", load(ROOT / f"docs/recordings/{LESSON}.json")
    found = speeds(recording, script)
    if not {cell.hash for cell in recording.cells} <= {cell.hash for cell in read_cells(script)}:
        pytest.skip("lesson 1 was changed since it was recorded")
    assert found["gpu"] == recording.run.gpu and re.fullmatch(r"CPU, \d+ cores", found["cpu"])
    assert int(found["few"]) < int(found["many"]) and float(found["times"]) > 1
    stale = replace(recording, cells=tuple(replace(cell, hash="0" * 16) for cell in recording.cells))
    assert speeds(stale, script) == {}
