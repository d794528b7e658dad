"""What is fixed in the finished HTML."""

from __future__ import annotations

import pytest
from _ext import accessible
from projects import INDEX, lesson

TABLE = "one run:\nname      share\naten::mm  32.5%\naten::t    3.5%\n"
TWO_LINES = "GPU   memory    batch of 8  largest\nA100  39.4 GiB  fits        769,792\nThat is all.\n"
LABELS = "true:    [0.17, 0.51]\nlearned: [0.15, 0.52]\n"
TRACEBACK = '  File "a.py", line 4\n    print(x)\n    ^^^^^\n  File "b.py", line 7\n    return y\n'


@pytest.mark.parametrize(
    ("output", "rows"),
    [(TABLE, [1, 2, 3]), (TWO_LINES, [0, 1]), (LABELS, []), (TRACEBACK, [])],
    ids=["table", "two lines", "labels", "traceback"],
)
def test_the_rows_of_a_table_are_told_from_text(output, rows):
    assert [number for number, is_row in enumerate(accessible.rows(output.splitlines())) if is_row] == rows


PAGE = """
The ``torch.compile`` of ``run --dry a-b``
==========================================

The ``torch.load`` of a text.

.. toctree::
   :caption: More

   tables

.. py:function:: load_file(path)

   Reads.

   :returns: one of

             - this
             - that

.. rst-class:: sphx-glr-script-out

.. code-block:: none

   a <  1
   b   20
   c    3
"""


@pytest.mark.slow
def test_what_a_page_says_beyond_its_text(project):
    project.write("docs/index.rst", PAGE + INDEX.partition("====\n")[2])
    project.write("examples/01_first.py", lesson())
    build = project.build()
    assert build.status == 0, build.log
    page = project.page("index")
    assert len(page.select("h1 code:first-of-type wbr")) == 1
    assert not page.select("article section > p wbr")
    assert [option.get_text() for option in page.select("h1 .joined")] == ["--dry"]
    assert page.select_one("article p.caption")["aria-level"] == "2"
    assert page.select_one("dt .sig-paren + wbr") and page.select(".descname wbr")
    assert page.select("dd li") and not page.select("p ul")
    assert page.select_one(".columns").get_text() == "a <  1\nb   20\nc    3\n"
    assert [drawer["aria-label"] for drawer in page.select("aside")] == ["Site menu", "On this page"]
    assert page.select_one("symbol#svg-toc > path") and not page.select("symbol#svg-toc > svg")
    lessons = project.page("lessons/01_first")
    assert {box["role"] for box in lessons.select("div.admonition")} == {"note"}
    assert lessons.select_one("article h1 + p.downloads") and not lessons.select(".sphx-glr-footer")
    card = project.page("lessons/index").select_one(".sphx-glr-thumbcontainer")
    assert not card.has_attr("tooltip") and not card.select(".sphx-glr-thumbnail-title")
    assert (card.img["width"], card.img["height"], card.img["loading"]) == ("400", "280", "lazy")
