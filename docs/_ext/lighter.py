"""Leaves out of the finished site what no reader sees: a page with its styles and scripts stays below 40 kB.

That is: comments in style sheets, the theme's rules and icons for what this site does not have, and marks in
code that give it no colour of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

EXTENSIONS = "furo-extensions.css"  # the theme's rules for Sphinx extensions that are not used here
STYLES = ("gpulesson.css", "pygments.css", "styles/furo.css")
KEPT_ICONS = ("search",)
PLAIN = re.compile(r'<span class="[npw]">([^<]*)</span>')  # names, brackets, spaces: coloured as all code

WORD = re.compile(
    r'<span class="pre">([^<]*)</span>'
)  # each word of a literal: for a style that furo has not
# sphinx-gallery's links in code: their titles repeat the address
CODE_LINK = re.compile(r'<a class="sphx-glr-backref[^"]*"( href="[^"]*") title="[^"]*">')
# a number that the next change of the page gives to another block
CAPTION_ID = re.compile(r'(<div class="literal-block-wrapper[^"]*") id="id\d+">')
CAPTION_LINK = re.compile(r'<a class="headerlink" href="#id\d+" title="[^"]*">[^<]*</a>')
SYMBOL = re.compile(r'<symbol id="([\w-]+)".*?</symbol>', re.S)


def leave_out_style(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document
) -> None:
    context["css_files"] = [
        style for style in context["css_files"] if not str(style.filename).endswith(EXTENSIONS)
    ]


def lighten(app: Sphinx, exception: Exception | None) -> None:
    """After all else, sphinx-gallery's links in code too, which need the marks."""
    if exception is None and app.builder.format == "html":
        out = Path(app.outdir)
        rewrite((out / "_static" / name for name in STYLES), lighter_style)
        rewrite(out.glob("*.html"), lighter_page)
        rewrite((out / "lessons").rglob("*.html"), lighter_page)


def rewrite(paths: Iterable[Path], change: Callable[[str], str]) -> None:
    """Change the text of files; leave those alone that stay as they are."""
    for path in paths:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (lighter := change(text)) != text:
            path.write_text(lighter, encoding="utf-8")


def lighter_style(text: str) -> str:
    r"""Remove comments, indentation and unused icons.

    Examples
    --------
    >>> lighter_style("/* so */\na {\n  top: 0;\n}\nb{--icon-pen:url('data:x');left:0}")
    'a {\ntop: 0;\n}\nb{left:0}'
    """
    text = re.sub(r"/\*.*?\*/\s*", "", text, flags=re.S)
    icon = rf"--icon-(?!{'|'.join(KEPT_ICONS)}\b)[\w-]+:url\('[^']*'\);?"
    return re.sub(r"\n\s+", "\n", re.sub(icon, "", text))


def lighter_page(text: str) -> str:
    """Remove marks that give no colour, titles of links in code, addresses of captions, unused icons.

    Examples
    --------
    >>> lighter_page('<span class="nb">print</span><span class="p">(</span><span class="n">x</span>')
    '<span class="nb">print</span>(x'
    """
    text = WORD.sub(r"\1", text)
    text = CAPTION_LINK.sub("", CAPTION_ID.sub(r"\1>", text))
    text = CODE_LINK.sub(r"<a\1>", PLAIN.sub(r"\1", text))
    used = set(re.findall(r'<use href="#([\w-]+)"', text))
    return SYMBOL.sub(lambda found: found[0] if found[1] in used else "", text)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("html-page-context", leave_out_style, priority=901)
    app.connect("build-finished", lighten, priority=900)  # sphinx-gallery's: 500
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
