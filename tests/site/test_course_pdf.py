"""The course as one PDF: two of its pages, joined."""

from __future__ import annotations

import course_pdf
import pytest
from pages import LESSONS, ROOT, page_name
from pypdf import PdfReader

pytestmark = pytest.mark.slow


def test_pages_are_joined_and_their_links_stay_inside(browser, site, tmp_path):
    pages = course_pdf.course_pages(site.html)
    names = [page.relative_to(site.html).with_suffix("").as_posix() for page in pages]
    lessons = [page_name(lesson) for lesson in LESSONS]
    assert names[:2] == ["index", "setup"] and [name for name in names if name in lessons] == lessons
    chosen = [pages[0], site.html / f"{lessons[0]}.html"]
    course_pdf.print_course(browser, site.html, chosen, tmp_path / "course.pdf")
    pdf = PdfReader(tmp_path / "course.pdf")
    (start, start_sheet), (lesson, lesson_sheet) = (
        (item.title, pdf.get_destination_page_number(item)) for item in pdf.outline
    )
    first = (ROOT / "docs/index.rst").read_text("utf-8").splitlines()[0]
    assert (start, start_sheet, lesson) == (first, 0, LESSONS[0].read_text("utf-8").splitlines()[1])
    links = [link.get_object() for sheet in pdf.pages for link in sheet.get("/Annots", ())]
    inside = [link["/Dest"] for link in links if "/Dest" in link]
    assert {name for name in inside if isinstance(name, str)} <= pdf.named_destinations.keys()
    targets = {pdf.get_page_number(to[0].get_object()) for to in inside if not isinstance(to, str)}
    assert {lesson_sheet} <= targets and lesson_sheet > 0
    addresses = [link["/A"]["/URI"] for link in links if "/A" in link]
    assert addresses and not [address for address in addresses if not address.startswith("http")]
