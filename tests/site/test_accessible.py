"""What is fixed in the finished HTML."""

from __future__ import annotations

import doctest

import pytest
from _ext import accessible

TABLE = "one run:\nname      share\naten::mm  32.5%\naten::t    3.5%\n"
TWO_LINES = "GPU   memory    batch of 8  largest\nA100  39.4 GiB  fits        769,792\nThat is all.\n"
LABELS = "true:    [0.17, 0.51]\nlearned: [0.15, 0.52]\n"
TRACEBACK = '  File "a.py", line 4\n    print(x)\n    ^^^^^\n  File "b.py", line 7\n    return y\n'


def test_the_examples():
    failed, tried = doctest.testmod(accessible)
    assert tried and not failed


@pytest.mark.parametrize(
    ("output", "rows"),
    [(TABLE, [1, 2, 3]), (TWO_LINES, [0, 1]), (LABELS, []), (TRACEBACK, [])],
    ids=["table", "two lines", "labels", "traceback"],
)
def test_the_rows_of_a_table_are_told_from_text(output, rows):
    assert [number for number, is_row in enumerate(accessible.rows(output.splitlines())) if is_row] == rows


def test_an_option_of_a_command_stays_whole():
    words = "".join(f'<span class="pre">{word}</span> ' for word in ("a", "--dry", "a-b"))
    page = f"<p><code>{words}</code></p>"
    assert [span.get_text() for span in accessible.fix(page).select(".joined")] == ["--dry"]
