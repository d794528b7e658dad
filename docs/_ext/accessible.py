"""Fixes what the theme, Sphinx and sphinx-gallery leave inaccessible or invalid.

`Translator` writes the content of a page. What the theme puts around it is fixed in the finished page: every
page is rendered through the template `whole_page.html`, which passes it to `fix`.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

from .policy import with_policy

TAGS = "sg-tags.js"  # for tags on lessons, which we do not use
EXTENSIONS = "furo-extensions.css"  # the theme's, for cards, tabs and advertisements, which we do not use
# Sphinx's tools, in which "/" is a shortcut that nobody can turn off, and its highlighting of search words
UNUSED = (TAGS, "doctools.js", "documentation_options.js", "sphinx_highlight.js")
# replace the theme's most detailed icons: light or dark as the system is, and the contents
HALF = (
    '<circle cx="12" cy="12" fill="none" r="8" stroke="currentColor"/>'
    '<path d="M12 4a8 8 0 0 1 0 16z" fill="currentColor"/>'
)
LIST = '<path d="M4 6h12M4 12h16M4 18h9" stroke="currentColor" stroke-width="2"/>'
# patterns in a finished page, and what replaces them
FIXES: list[tuple[re.Pattern[str], Any]] = [
    (re.compile('<a href="#" class="back-to-top.*?</a>', re.DOTALL), r'<nav aria-label="Top">\g<0></nav>'),
    (re.compile('<aside (?=class="sidebar-drawer)'), '<aside aria-label="Site menu" '),
    (re.compile('<aside (?=class="toc-drawer)'), '<aside aria-label="On this page" '),
    (re.compile('<code class="xref">.*?</code>'), lambda name: let_break(name[0])),  # of the index of modules
    (
        re.compile('(<symbol id="svg-(?:sun-with-moon|moon-with-sun)".*?)<svg.*?</svg>', re.DOTALL),
        rf"\1{HALF}",
    ),
    (re.compile('(<symbol id="svg-toc".*?)<svg.*?</svg>', re.DOTALL), rf"\1{LIST}"),
]
GAP = re.compile(r"\S {2,}\S|^ {9,}\S")  # between two columns, or below the first
NUMBER = re.compile(r"[\d.,]+")
SHORT = 60  # characters of a line that stays whole beside columns
BETWEEN = re.compile(r"(?<=[_.:/])(?=\w)|(?<=[a-z])(?=[A-Z])")  # two words of a name
TAG_OR_BETWEEN = re.compile(f"<[^>]*>|{BETWEEN.pattern}")
MODULES = ("module-", "gpulesson-")  # how the address of a module's section begins
PLACES = {nodes.title, nodes.tbody, addnodes.compact_paragraph}  # the last: a page's contents
BREAK = "<wbr>"  # a browser may break the line here
GALLERY_TITLE = re.compile(r' tooltip="[^"]*"|<div class="sphx-glr-thumbnail-title">.*?</div>', re.DOTALL)


class Translator(HTML5Translator):
    """Writes roles, sizes and places where a line may break."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.image_loading = "lazy"

    def starttag(self, node: Any, tagname: str, *args: Any, **attributes: Any) -> str:
        if tagname == "div" and attributes.get("CLASS", "").startswith("admonition"):
            attributes["role"] = "note"
        if attributes.get("ROLE") == "heading":  # above a toctree
            attributes["aria-level"] = "2"
        return str(super().starttag(node, tagname, *args, **attributes))

    def visit_Text(self, node: nodes.Text) -> None:
        start = len(self.body)
        super().visit_Text(node)
        written = "".join(self.body[start:])
        if is_name(node):
            written = let_break(written)
        if isinstance(node.parent, nodes.literal):  # a browser would break an option after its hyphens
            written = written.replace('<span class="pre">-', '<span class="joined">-')
        self.body[start:] = [written]

    def visit_desc_parameterlist(self, node: Any) -> None:
        start = len(self.body)
        super().visit_desc_parameterlist(node)
        self.body.insert(start + 1, BREAK)  # after the bracket

    def visit_literal_block(self, node: Any) -> None:
        try:
            super().visit_literal_block(node)
        except nodes.SkipNode:
            if "sphx-glr-script-out" in node["classes"]:
                self.body[-1] = keep_columns(self.body[-1])
            raise

    def visit_container(self, node: Any) -> None:
        if "sphx-glr-footer" in node["classes"]:  # the downloads, which are at the top
            raise nodes.SkipNode
        super().visit_container(node)

    def image_size(self, node: Any) -> Any:
        """Return the size; the pictures of all cards get the same place."""
        card = "_thumb." in node["uri"]
        return {"width": "400", "height": "280"} if card else super().image_size(node)


def is_name(text: nodes.Text) -> bool:
    """Return whether a text is a name in code that may break: in titles, tables and the reference."""
    if not BETWEEN.search(text):
        return False
    above = [text.parent]
    while above[-1].parent is not None:
        above.append(above[-1].parent)
    kinds = {type(one) for one in above}
    if any(isinstance(one, addnodes.desc) and one["domain"] == "py" for one in above):
        return not isinstance(text.parent, nodes.paragraph)
    titles = [one.parent for one in above if isinstance(one, nodes.title) and one.parent is not None]
    if any(name.startswith(MODULES) for titled in titles for name in titled["ids"]):
        return True
    return nodes.literal in kinds and not kinds.isdisjoint(PLACES)


def let_break(html: str) -> str:
    """Allow line breaks between the words of a long name, so that it breaks nowhere else.

    Examples
    --------
    >>> let_break("<code>at::set_seed torch.manualSeed(0)</code>")
    '<code>at::<wbr>set_<wbr>seed torch.<wbr>manual<wbr>Seed(0)</code>'
    """
    return TAG_OR_BETWEEN.sub(lambda found: found[0] or BREAK, html)


def keep_columns(html: str) -> str:
    r"""Mark the lines of an output that have columns: they scroll sideways where other lines wrap.

    A line has columns if it has a gap, or differs from a neighbour in its numbers alone. Short lines beside
    it stay whole with it.

    Examples
    --------
    >>> print(keep_columns("<pre>a   1\nb  20\n\nThat is all.</pre>"))
    <pre><span class="columns">a   1
    b  20
    </span>
    That is all.</pre>
    """
    head, start, text = html.partition("<pre><span></span>" if "<pre><span>" in html else "<pre>")
    text, end, tail = text.partition("</pre>")
    lines = text.splitlines(keepends=True)
    shapes = ["", *(NUMBER.sub("0", line.strip()) for line in lines), ""]
    columns = [
        bool(GAP.search(line)) or (shape != "" and shape in (before, after))
        for line, before, shape, after in zip(lines, shapes, shapes[1:], shapes[2:], strict=False)
    ]
    marked = ""
    short = [0 < len(line.strip()) <= SHORT for line in lines]
    for whole, run in groupby(zip(lines, columns, short, strict=True), lambda each: each[1] or each[2]):
        texts, found, _ = zip(*run, strict=True)
        part = "".join(texts)
        marked += f'<span class="columns">{part}</span>' if whole and any(found) else part
    return "".join((head, start, marked, end, tail))


def tidy(app: Sphinx, document: nodes.document) -> None:
    """Remove what sphinx-gallery leaves empty, hides or repeats; take lists out of paragraphs."""
    for note in list(document.findall(nodes.note)):
        if "sphx-glr-download-link-note" in note["classes"]:
            note.parent.remove(note)
    for raw in list(document.findall(nodes.raw)):
        if "sg-tag-list" in raw.astext():  # empty, and twice on a page of two galleries
            raw.parent.remove(raw)
        elif "sphx-glr-thumb" in raw.astext():  # the link is the title
            raw.children = [nodes.Text(GALLERY_TITLE.sub("", raw.astext()))]
    for paragraph in list(document.findall(nodes.paragraph)):  # in which HTML allows no list
        alone = len(paragraph) == 1 and isinstance(paragraph[0], nodes.inline)
        inside = paragraph[0].children if alone else paragraph.children
        if any(isinstance(child, nodes.bullet_list) for child in inside):
            paragraph.replace_self(inside)


def whole_page(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> str:
    """Render the chosen template inside ours."""
    context["chosen_template"] = templatename
    context["script_files"] = [
        script for script in context["script_files"] if not str(script.filename).endswith(UNUSED)
    ]
    context["css_files"] = [
        style for style in context["css_files"] if not str(style.filename).endswith(EXTENSIONS)
    ]
    if pagename.startswith("_modules/"):  # HTML has no div within pre
        context["body"] = re.sub(
            r"<pre>.*</pre>",
            lambda code: code[0].replace("<div ", "<span ").replace("</div>", "</span>"),
            context["body"],
            flags=re.DOTALL,
        )
    return "whole_page.html"


def fix(page: str) -> str:
    """Name the theme's landmarks, give its link to the top one, and replace two of its icons."""
    for pattern, replacement in FIXES:
        page = pattern.sub(replacement, page)
    return page


def add_filter(app: Sphinx) -> None:
    def finished(page: str) -> str:
        return with_policy(fix(page)) if app.config.gpulesson_policy else fix(page)

    app.builder.templates.environment.filters["fixed"] = finished


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.policy")
    app.set_translator("html", Translator)
    app.connect("builder-inited", add_filter)
    app.connect("doctree-read", tidy)
    app.connect("html-page-context", whole_page, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
