"""What is fixed in the finished HTML."""

from __future__ import annotations

import re

import pytest
from _ext import accessible
from pages import LESSONS

LONG = "All other lines of this output are words, and this one is too long to stay whole.\n"
TABLE = f"{LONG}name      share\naten::mm  32.5%\naten::t    3.5%\n"
SHORT = f"GPU   memory    batch of 8  largest\nA100  39.4 GiB  fits        769,792\nin all: 2\n{LONG}"
NUMBERS = f"Epoch 9, loss 0.982, right 738\nEpoch 10, loss 0.749, right 1,002\n\nThat is all.\n{LONG}"
TRACEBACK = '  File "a.py", line 4\n    print(x)\n    ^^^^^\n  File "b.py", line 7\n    return y\n'


@pytest.mark.parametrize(
    ("output", "rows"),
    [(TABLE, [1, 2, 3]), (SHORT, [0, 1, 2]), (NUMBERS, [0, 1]), (TRACEBACK, [])],
    ids=["table", "short line below", "other numbers", "traceback"],
)
def test_lines_with_columns_are_told_from_text(output, rows):
    lines = output.splitlines(keepends=True)
    html = accessible.keep_columns(f"<pre><span></span>{output}</pre>")
    marked = "".join(re.findall(r'<span class="columns">(.*?)</span>', html, re.DOTALL))
    assert marked == "".join(lines[number] for number in rows)
    assert re.sub("<[^>]*>", "", html) == output


@pytest.mark.slow
def test_what_pages_say_beyond_their_text(site):
    messages, reference, lesson, lessons = (
        site.page(name).soup
        for name in ("errors", "reference", f"lessons/{LESSONS[8].stem}", "lessons/index")
    )
    for page in (messages, reference, lesson, lessons):
        assert {caption["aria-level"] for caption in page.select("p.caption[role=heading]")} == {"2"}
        assert [drawer["aria-label"] for drawer in page.select("aside")] == ["Site menu", "On this page"]
        assert page.select_one("symbol#svg-toc > path") and not page.select("symbol#svg-toc > svg")
        assert not page.select("article section > p wbr, p ul")
    assert messages.select("h3 code wbr") and reference.select("dt .sig-paren + wbr, .descname wbr")
    assert reference.select("dd li")
    assert "--gpus" in [option.get_text() for option in messages.select(".joined")]
    assert {box["role"] for box in lesson.select("div.admonition")} == {"note"} and lesson.select(".columns")
    assert lesson.select_one("article h1 + p.downloads") and not lesson.select(".sphx-glr-footer")
    card = lessons.select_one(".sphx-glr-thumbcontainer")
    assert not card.has_attr("tooltip") and not card.select(".sphx-glr-thumbnail-title")
    assert (card.img["width"], card.img["height"], card.img["loading"]) == ("400", "280", "lazy")
