"""Fixes what the theme and sphinx-gallery leave inaccessible, in the finished HTML of every page.

Every page is rendered through the template `whole_page.html`, which passes it to `fix`.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from typing import Any

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

from .policy import add_policy

TAGS = "sg-tags.js"  # for tags on lessons; we have none
EXTENSIONS = "furo-extensions.css"  # the theme's, for what we have none of: cards, tabs, advertisements
# Sphinx's tools, of which "/" is a short cut that nobody can turn off, and marks on the words of a search
UNUSED = (TAGS, "doctools.js", "documentation_options.js", "sphinx_highlight.js")
# instead of the theme's most detailed icons: light or dark as the system is, and the contents
HALF = (
    '<circle cx="12" cy="12" fill="none" r="8" stroke="currentColor"/>'
    '<path d="M12 4a8 8 0 0 1 0 16z" fill="currentColor"/>'
)
LIST = '<path d="M4 6h12M4 12h16M4 18h9" stroke="currentColor" stroke-width="2"/>'
ICONS = {"svg-sun-with-moon": HALF, "svg-moon-with-sun": HALF, "svg-toc": LIST}
LANDMARKS = {"aside.sidebar-drawer": "Site menu", "aside.toc-drawer": "On this page"}
# names of code, which have no spaces: in headings and tables, and where the package is described
NAMES = ":is(h1, h2, h3, .toc-tree, td) code, :is([id^=module-], [id^=gpulesson-]) > h2, dl.py :is(dt, p > *)"
GAP = re.compile(r"(?<=\S)(?=  +\S)|(?<=  )(?=\S)")  # where two blanks or more begin or end
BETWEEN = re.compile(r"(?<=[_.:/])(?=\w)|(?<=[a-z])(?=[A-Z])")  # two words of a name


def fix(page: str) -> BeautifulSoup:
    """Give names, levels and texts to what has none."""
    soup = BeautifulSoup(page, "html.parser")
    for selector, name in LANDMARKS.items():
        for landmark in soup.select(selector):
            landmark["aria-label"] = name
    for caption in soup.select("p.caption[role=heading]"):  # above a toctree
        caption["aria-level"] = "2"
    for box in soup.select("div.admonition"):
        box["role"] = "note"
    for block in soup.select("pre div.viewcode-block"):  # HTML has no div within pre
        block.name = "span"
    for block in soup.select("dd > p > ul"):  # nor a list within a paragraph
        if block.parent:
            block.parent.unwrap()
    # of sphinx-gallery: empty, and twice on a page of two galleries; the downloads that stand at the top
    for part in soup.select("#sg-tag-list, .sphx-glr-footer"):
        part.decompose()
    for output in soup.select(".sphx-glr-script-out pre"):
        keep_columns(output)
    for words in soup.select(NAMES):
        let_break(words)
    for option in soup.select("code .pre:-soup-contains('-')"):
        if option.get_text().startswith("-"):  # a browser would go on in the next line behind its hyphens
            option["class"] = "joined"
    for bracket in soup.select("dt .sig-paren:-soup-contains('(')"):
        bracket.insert_after(break_here())
    for image in soup.select("article img"):
        fix_image(image)
    for thumbnail in soup.select(".sphx-glr-thumbcontainer"):
        fix_thumbnail(thumbnail)
    if downloads := soup.select_one(".downloads"):
        soup.select("article h1")[0].insert_after(downloads.extract())
    for address, drawing in ICONS.items():
        for icon in soup.select(f"symbol#{address} > svg"):
            icon.replace_with(BeautifulSoup(drawing, "html.parser"))
    return soup


def let_break(code: Tag) -> None:
    """Let a long name go on in the next line between two of its words, before it breaks anywhere.

    Examples
    --------
    >>> soup = BeautifulSoup("<code>at::set_seed torch.manualSeed(0)</code>", "html.parser")
    >>> let_break(soup.select("code")[0])
    >>> print(soup)
    <code>at::<wbr/>set_<wbr/>seed torch.<wbr/>manual<wbr/>Seed(0)</code>
    """
    for text in code.find_all(string=BETWEEN):
        parts = BETWEEN.split(text)
        text.replace_with(*[each for part in parts for each in (part, break_here())][:-1])


def keep_columns(output: Tag) -> None:
    r"""Mark the lines of an output that are rows of a table: they move sideways where all others wrap.

    Examples
    --------
    >>> soup = BeautifulSoup("<pre>one run:\na   1\nb  20\nc   3\n</pre>", "html.parser")
    >>> keep_columns(soup.select("pre")[0])
    >>> print(soup)
    <pre>one run:
    <span class="columns">a   1
    b  20
    c   3
    </span></pre>
    """
    for text in output.find_all(string=True, recursive=False):
        lines = text.splitlines(keepends=True)
        are_rows = iter(rows(lines))
        for is_row, group in groupby(lines, key=lambda line: next(are_rows)):
            words = NavigableString("".join(group))
            text.insert_before(words)
            if is_row:
                words.wrap(Tag(name="span", attrs={"class": "columns"}))
        text.extract()


def rows(lines: list[str]) -> list[bool]:
    """Tell which lines are rows: others have a gap that begins or ends where theirs does, or end with them.

    Of three lines one such place is enough; two lines need three of them.
    """
    places = [
        {found.start() for found in GAP.finditer(line)}
        | ({len(line.rstrip())} if "  " in line.strip() else set())
        for line in lines
    ]
    shared = Counter(
        place for line, found in zip(lines, places, strict=True) for place in found if line[:place].strip()
    )
    return [
        any(shared[place] > 2 for place in found) or sum(shared[place] > 1 for place in found) > 2
        for found in places
    ]


def break_here() -> Tag:
    return Tag(name="wbr", can_be_empty_element=True)


def fix_image(image: Tag) -> None:
    """Load a picture when it comes into view, and keep its place free until then."""
    image["loading"] = "lazy"
    found = re.fullmatch(r"width: ([\d.]+)px; height: ([\d.]+)px;?", str(image.get("style", "")))
    if found:
        image["width"], image["height"] = (str(round(float(number))) for number in found.groups())
        del image["style"]


def fix_thumbnail(thumbnail: Tag) -> None:
    """Leave one title, the link, which sphinx-gallery would have hidden in favour of a text that is none.

    All pictures get the same place, the size of sphinx-gallery's.
    """
    del thumbnail["tooltip"]
    for image in thumbnail.select("img"):
        image["width"], image["height"] = "400", "280"
    for title in thumbnail.select(".sphx-glr-thumbnail-title"):
        title.decompose()


def whole_page(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> str:
    """Render the chosen template inside ours."""
    context["chosen_template"] = templatename
    context["script_files"] = [
        script for script in context["script_files"] if not str(script.filename).endswith(UNUSED)
    ]
    context["css_files"] = [
        style for style in context["css_files"] if not str(style.filename).endswith(EXTENSIONS)
    ]
    return "whole_page.html"


def drop_note(app: Sphinx, document: nodes.document) -> None:
    """Remove "Go to the end to download": the downloads stand at the top."""
    for note in list(document.findall(nodes.note)):
        if "sphx-glr-download-link-note" in note["classes"]:
            note.parent.remove(note)


def add_filter(app: Sphinx) -> None:
    def finished(page: str) -> str:
        soup = fix(page)
        if app.config.gpulesson_policy:
            add_policy(soup)  # to the page as it is then
        return str(soup)

    app.builder.templates.environment.filters["fixed"] = finished


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.policy")
    app.connect("builder-inited", add_filter)
    app.connect("doctree-read", drop_note)
    app.connect("html-page-context", whole_page, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
