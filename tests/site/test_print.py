"""Lessons on paper: all text is there, and nothing of the window is."""

from __future__ import annotations

import io
import re
import unicodedata
from xml.etree import ElementTree

import pytest
from browser import opened
from bs4 import BeautifulSoup
from pypdf import PdfReader

pytestmark = pytest.mark.slow

PRINTED = ["12_speed_ladder"]
PRINTED += [
    pytest.param(name, marks=pytest.mark.thorough) for name in ("02_tensors_and_devices", "05_fashion_mnist")
]
# a print dialogue waits for the figures that no one has scrolled to; the call for a PDF does not always
LOAD = """() => Promise.all([...document.querySelectorAll("img.figure.only-light")].map(figure => {
    figure.loading = "eager";
    return figure.decode();
}))"""
WINDOW = ("Skip to content", "Back to top", "On this page", "Toggle", "Download", "Run it yourself")


def letters(text: str) -> str:
    """Leave out the spaces, and take joined letters apart: a line that is wrapped is the same."""
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", text))


@pytest.fixture(scope="module", params=PRINTED)
def paper(request, browser, address) -> tuple[str, PdfReader]:
    """The name of a lesson, and its sheets, as a reader of dark pages prints them."""
    with opened(browser, color_scheme="dark") as window:
        tab = window.new_page()
        tab.goto(f"{address}lessons/{request.param}.html")
        tab.emulate_media(media="print")
        tab.evaluate(LOAD)
        return request.param, PdfReader(io.BytesIO(tab.pdf(format="A4")))


@pytest.fixture(scope="module")
def printed(paper, site) -> tuple[str, BeautifulSoup, list[str]]:
    """The name of a lesson, its page, and the texts of its sheets."""
    name, reader = paper
    page = BeautifulSoup((site.html / "lessons" / f"{name}.html").read_text("utf-8"), "html.parser")
    return name, page, [sheet.extract_text() for sheet in reader.pages]


def test_all_code_and_output_is_on_paper(printed):
    _, page, sheets = printed
    paper = letters(" ".join(sheets))
    lines = [line for block in page.select("article pre") for line in block.get_text().splitlines()]
    assert len(lines) > 100
    assert not [line for line in lines if letters(line) not in paper]


def test_every_figure_is_on_paper(printed, site):
    """Its words are: they are text."""
    name, page, sheets = printed
    figures = page.select("article img.figure.only-light")
    assert bool(figures) == (not name.startswith("02"))  # which has drawings only
    paper = letters(" ".join(sheets))
    for figure in figures:
        drawn = ElementTree.parse(site.html / "lessons" / figure["src"]).iter(
            "{http://www.w3.org/2000/svg}text"
        )
        words = [letters("".join(text.itertext())) for text in drawn]
        assert len(words) > 3 and not [word for word in words if word not in paper], figure["src"]


def test_nothing_of_the_window_is_on_paper(printed):
    _, page, sheets = printed
    menu = [link.get_text() for link in page.select(".sidebar-tree a.reference")]
    assert len(menu) > 10 and letters(page.h1.get_text().strip("¶#")) in letters(sheets[0])
    paper = letters(" ".join(sheets))
    assert not [words for words in WINDOW if letters(words) in paper]
    assert sum(letters(title) in paper for title in menu) < len(menu) / 2  # the text names some pages


def test_links_to_elsewhere_show_where(printed):
    name, page, sheets = printed
    paper = letters(" ".join(sheets))
    links = [link for link in page.select("article p > a.external") if not link.code]
    assert bool(links) == (not name.startswith("02"))  # which has none
    assert not [link["href"] for link in links if letters(link["href"]) not in paper]
