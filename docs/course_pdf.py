"""Makes one PDF of the whole course, _build/gpulesson.pdf: the built site's pages, printed and joined.

`nox -s pdf` builds the site before. A Chromium or Chrome must be installed.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

from bs4 import BeautifulSoup
from playwright.sync_api import Browser, sync_playwright
from pypdf import PdfWriter
from pypdf.generic import ArrayObject, NameObject

SITE = Path("_build/html").resolve()
# the first is without windows: twice as fast, and no window that a busy machine leaves undrawn
NAMES = "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
LEFT_OUT = ("genindex", "py-modindex", "reference")  # for looking up on a screen


def course_pages(site: Path) -> list[Path]:
    """Return the pages of the course in the order of its menu."""
    menu = BeautifulSoup((site / "index.html").read_text(encoding="utf-8"), "html.parser")
    links = [str(link["href"]) for link in menu.select(".sidebar-tree a.internal")]
    once = dict.fromkeys(["index.html", *links])  # a guide is in two parts of the menu
    return [site / link for link in once if Path(link).stem not in LEFT_OUT]


def print_course(browser: Browser, site: Path, pages: Iterable[Path], out: Path) -> None:
    """Print the pages into one file, with an outline of their titles."""
    writer, first_sheets = PdfWriter(), {}
    tab = browser.new_page()
    for page in pages:
        tab.goto(page.as_uri())
        first_sheets[page.as_uri()] = len(writer.pages)
        title = tab.locator("h1").evaluate("title => title.firstChild.textContent")
        writer.append(BytesIO(tab.pdf(format="A4")), outline_item=title)
    tab.close()
    join_links(writer, site, first_sheets)
    writer.add_metadata({"/Title": "gpulesson"})
    writer.write(out)


def join_links(writer: PdfWriter, site: Path, first_sheets: dict[str, int]) -> None:
    """Let a link to a page of the site lead to its first sheet, or nowhere if it was not printed."""
    for sheet in writer.pages:
        links = sheet.get("/Annots", ArrayObject())
        for link in list(links):
            action = link.get_object().get("/A", {})
            address = str(action.get("/URI", "")).partition("#")[0]
            if address in first_sheets:
                target = writer.pages[first_sheets[address]].indirect_reference
                del link.get_object()["/A"]
                link.get_object()[NameObject("/Dest")] = ArrayObject([target, NameObject("/Fit")])
            elif address.startswith(site.as_uri()):
                links.remove(link)


if __name__ == "__main__":
    if CHROMIUM is None:
        sys.exit(f"found no {', '.join(NAMES[:-1])} or {NAMES[-1]}: install one, and try again")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM)
        print_course(chromium, SITE, course_pages(SITE), SITE.parent / "gpulesson.pdf")
        chromium.close()
