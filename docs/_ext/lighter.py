"""Leaves out of the finished site what no reader sees: a page with its styles and scripts stays below 40 kB.

That is: comments and spaces in styles and scripts, the theme's rules and icons for what this site does not
have, marks in code that give it no colour of its own or the one of their neighbour, and the grey of
operators, which are half of all marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import rcssmin
import rjsmin
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

EXTENSIONS = "furo-extensions.css"  # the theme's rules for Sphinx extensions that are not used here
STYLES = ("gpulesson.css", "pygments.css", "styles/furo.css")
SCRIPTS = ("doctools.js", "documentation_options.js", "gpulesson.js", "progress.js", "continue.js")
KEPT_ICONS = ("search",)
# no page has these elements, or elements of these classes, which the theme knows, or marks in code of other
# classes than MARKS: tests/site/test_site.py
ELEMENTS = (
    *("h4", "h5", "h6", "hr", "kbd", "samp", "sub", "sup"),
    *("fieldset", "legend", "optgroup", "progress", "select", "template", "textarea"),
)
ABSENT = (
    *("announcement", "announcement-content", "sidebar", "sidebar-logo", "sidebar-logo-container", "icons"),
    *("attention", "caution", "danger", "hint", "important", "seealso", "warning", "admonition-todo"),
    *("note", "problematic", "math-wrapper", "edit-this-page", "view-this-page", "highlight-link"),
    *("topic", "topic-title", "line-block", "pull-quote", "epigraph", "highlights", "attribution"),
    *("footnote", "footnote-reference", "citation", "option-list", "classifier", "guilabel", "eqno"),
    *("versionadded", "versionchanged", "versionremoved", "deprecated", "sig-inline"),
    *("highlighttable", "linenos", "hll", "toc-backref"),
    *("align-left", "align-right", "align-center", "text-left", "text-center", "centered"),
    *("loweralpha", "lowerroman", "upperroman"),
    "this-will-duplicate-information-and-it-is-still-useful-here",
)
# the classes of marks in code that pages have
MARKS = "bp|c1|ch|fm|gd|gi|go|gp|k|kc|kn|l|m|mf|mh|mi|nb|nc|nd|ne|nf|nn|nt|nv|ow|s|s1|s2|sa|sd|se|si|vm"
RULE = re.compile(r"([^{}@]+)\{([^{}]*)\}")
OF_ABSENT = re.compile(
    rf"(?<!:not\()\.({'|'.join(ABSENT)})(?![\w-])|(?<![\w.#=-])({'|'.join(ELEMENTS)})(?![\w-])"
    rf"|\.highlight \.(?!(?:{MARKS})\b)\w+\s*$"
)
# variables that only those rules read
UNREAD = (
    *("announcement", "api-added", "api-changed", "api-deprecated", "api-removed", "background-item"),
    *("card", "guilabel", "sidebar-search-text", "toc-item-text--hover", "topic"),
)
VARIABLE = re.compile(
    rf"--(?:[\w-]+--({'|'.join(ABSENT)})|color-({'|'.join(UNREAD)})(-[\w-]+)?|icon-topic-default):[^;{{}}]*;?"
)

# names, operators, brackets, spaces: coloured as all code
PLAIN = re.compile(r'<span class="[npow]">([^<]*)</span>')
# neighbours that are coloured alike
MARK = re.compile(r'<span class="(\w+)">[^<]*</span>(?:\s*<span class="\1">[^<]*</span>)+')

WORD = re.compile(
    r'<span class="pre">([^<]*)</span>'
)  # each word of a literal: for a style that furo has not
# sphinx-gallery's links in code: their titles repeat the address
CODE_LINK = re.compile(r'<a class="sphx-glr-backref[^"]*"( href="[^"]*") title="[^"]*">')
# a number that the next change of the page gives to another block
CAPTION_ID = re.compile(r'(<div class="literal-block-wrapper[^"]*") id="id\d+">')
CAPTION_LINK = re.compile(r'<a class="headerlink" href="#id\d+" title="[^"]*">[^<]*</a>')
# comments, and links in the head that browsers do not show
UNSEEN = re.compile(r"""\s*<!--.*?-->|<link[^>]* rel="(?:index|search)"[^>]*>""", re.S)
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
        rewrite((out / "_static" / name for name in SCRIPTS), rjsmin.jsmin)
        rewrite(out.glob("*.html"), lighter_page)
        rewrite((out / "lessons").rglob("*.html"), lighter_page)


def rewrite(paths: Iterable[Path], change: Callable[[str], str]) -> None:
    """Change the text of files; leave those alone that stay as they are."""
    for path in paths:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (lighter := change(text)) != text:
            path.write_text(lighter, encoding="utf-8")


def lighter_style(text: str) -> str:
    r"""Remove comments, spaces, unused icons, and the rules of absent classes.

    Examples
    --------
    >>> lighter_style("/* so */\na {\n  top: 0;\n}\nb{--icon-pen:url('data:x');left:0}")
    'a{top:0}b{left:0}'
    >>> lighter_style("p,.topic p{top:0}.caution,h4 p{left:0}.hints{--color--hint:red;left:0}.sub{left:0}")
    'p{top:0}.hints{left:0}.sub{left:0}'
    """
    icon = rf"--icon-(?!{'|'.join(KEPT_ICONS)}\b)[\w-]+:url\('[^']*'\);?"
    return RULE.sub(used_rule, VARIABLE.sub("", re.sub(icon, "", rcssmin.cssmin(text))))


def used_rule(rule: re.Match[str]) -> str:
    """Return a rule with the selectors that something on this site can match, or nothing."""
    selectors = rule[1].split(",")
    used = [selector for selector in selectors if not OF_ABSENT.search(selector)]
    return rule[0] if used == selectors else ",".join(used) + "{" + rule[2] + "}" if used else ""


def lighter_page(text: str) -> str:
    """Remove what nobody sees, marks that give no colour, titles of links in code, unused icons.

    Examples
    --------
    >>> lighter_page('<span class="nb">print</span><span class="p">(</span><span class="n">x</span>')
    '<span class="nb">print</span>(x'
    >>> lighter_page('<title>x</title> <!-- Made --><link href="genindex.html" rel="index" title="Index"/>')
    '<title>x</title>'
    >>> lighter_page('<span class="k">if</span> <span class="k">not</span> x')
    '<span class="k">if not</span> x'
    """
    text = WORD.sub(r"\1", UNSEEN.sub("", text))
    text = CAPTION_LINK.sub("", CAPTION_ID.sub(r"\1>", text))
    text = CODE_LINK.sub(r"<a\1>", PLAIN.sub(r"\1", text))
    text = MARK.sub(lambda run: f'<span class="{run[1]}">{re.sub("<[^>]*>", "", run[0])}</span>', text)
    used = set(re.findall(r'<use href="#([\w-]+)"', text))
    return SYMBOL.sub(lambda found: found[0] if found[1] in used else "", text)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("html-page-context", leave_out_style, priority=901)
    app.connect("build-finished", lighten, priority=900)  # sphinx-gallery's: 500
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
