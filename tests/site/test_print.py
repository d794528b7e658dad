"""Lessons on paper: all text is there, nothing of the window is, and no sheet is wasted."""

from __future__ import annotations

import io
import re
import unicodedata

import pytest
from browser import opened
from bs4 import BeautifulSoup
from pypdf import PdfReader

pytestmark = pytest.mark.slow

SHEETS = {"02_tensors_and_devices": 12, "05_fashion_mnist": 19, "12_speed_ladder": 21}  # of A4, at most
WINDOW = ("Skip to content", "Back to top", "On this page", "Toggle", "Download", "Run it yourself")


def letters(text: str) -> str:
    """Leave out the spaces, and take joined letters apart: a line that is wrapped is the same."""
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", text))


@pytest.fixture(scope="module", params=SHEETS)
def printed(request, browser, site, address) -> tuple[str, BeautifulSoup, list[str]]:
    """The name of a lesson, its page, and the texts of its sheets, as a reader of dark pages prints them."""
    with opened(browser, color_scheme="dark") as window:
        tab = window.new_page()
        tab.goto(f"{address}lessons/{request.param}.html")
        reader = PdfReader(io.BytesIO(tab.pdf(format="A4")))
    page = BeautifulSoup((site.html / "lessons" / f"{request.param}.html").read_text("utf-8"), "html.parser")
    return request.param, page, [sheet.extract_text() for sheet in reader.pages]


def test_all_code_and_output_is_on_paper(printed):
    _, page, sheets = printed
    paper = letters(" ".join(sheets))
    lines = [line for block in page.select("article pre") for line in block.get_text().splitlines()]
    assert len(lines) > 100
    assert not [line for line in lines if letters(line) not in paper]


def test_nothing_of_the_window_is_on_paper(printed):
    _, page, sheets = printed
    menu = [link.get_text() for link in page.select(".sidebar-tree a.reference")]
    assert len(menu) > 10 and letters(page.h1.get_text().strip("¶#")) in letters(sheets[0])
    paper = letters(" ".join(sheets))
    assert not [words for words in WINDOW if letters(words) in paper]
    assert sum(letters(title) in paper for title in menu) < len(menu) / 2  # the text names some pages


def test_links_to_elsewhere_show_where(printed):
    _, page, sheets = printed
    paper = letters(" ".join(sheets))
    links = [link for link in page.select("article p > a.external") if not link.code]
    assert links and not [link["href"] for link in links if letters(link["href"]) not in paper]


def test_no_sheet_is_wasted(printed):
    name, _, sheets = printed
    assert len(sheets) <= SHEETS[name]
