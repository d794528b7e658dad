"""The inside of a paragraph as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from docutils import nodes
from sphinx import addnodes


class UnknownNode(Exception):
    """A construct that has no Markdown form here; the message names it."""


class Writer:
    """Finds the method for a node: named like its class, or like the nearest class that it inherits from."""

    def write(self, prefix: str, node: nodes.Node) -> str:
        for kind in type(node).__mro__:
            if method := getattr(self, f"{prefix}_{kind.__name__}", None):
                return str(method(node))
        raise UnknownNode(type(node).__name__)


class Spans(Writer):
    """Writes text, code, emphasis, links, formulas and pictures.

    `page` gives the title of the page that a cross-reference names without a text of its own, `picture` the
    address under which the notebook has a picture.
    """

    def __init__(self, page: Callable[[nodes.Element], str], picture: Callable[[nodes.image], str]) -> None:
        self.page, self.picture = page, picture

    def spans(self, node: nodes.Node) -> str:
        return "".join(self.write("span", child) for child in node.children)

    def span_Text(self, node: nodes.Text) -> str:
        return escape(" ".join(re.split(r"\s*\n\s*", node.astext())))

    def span_literal(self, node: nodes.Element) -> str:
        text = " ".join(node.astext().split("\n"))
        fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
        pad = " " if text.startswith("`") or text.endswith("`") else ""
        return f"{fence}{pad}{text}{pad}{fence}"

    def span_emphasis(self, node: nodes.Element) -> str:
        return f"*{self.spans(node)}*"

    def span_strong(self, node: nodes.Element) -> str:
        return f"**{self.spans(node)}**"

    def span_math(self, node: nodes.math) -> str:
        return f"${node.astext()}$"

    def span_superscript(self, node: nodes.Element) -> str:
        return f"<sup>{self.spans(node)}</sup>"

    def span_subscript(self, node: nodes.Element) -> str:
        return f"<sub>{self.spans(node)}</sub>"

    def span_inline(self, node: nodes.Element) -> str:
        return self.spans(node)

    span_abbreviation = span_download_reference = span_inline
    span_footnote_reference = span_superscript
    span_title_reference = span_emphasis

    def span_target(self, node: nodes.Element) -> str:
        return ""

    span_problematic = span_target  # comes with a message of its own

    def span_reference(self, node: nodes.reference) -> str:
        text, address = self.spans(node), node.get("refuri")
        return f"[{text}]({address})" if address else text

    def span_pending_xref(self, node: addnodes.pending_xref) -> str:
        """Write the text of a cross-reference: a notebook stands alone, without the pages of the site."""
        if node["reftype"] in ("doc", "ref", "numref") and not node["refexplicit"]:
            return f"*{escape(self.page(node))}*"  # a page's title, set off from the sentence around it
        return self.spans(node)

    def span_image(self, node: nodes.image) -> str:
        return f"![{escape(node.get('alt', ''))}]({self.picture(node)})"


def escape(text: str) -> str:
    """Protect what Markdown, HTML or a notebook's formulas would read as theirs."""
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    text = re.sub(r"([\\`*\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", text)
    # JupyterLab looks for formulas in the finished HTML, where "\$" is "$" again, but within one element only
    return text.replace("$", r"<span>\$</span>")


def place(node: Any) -> str:
    """Say where a node stands, for a warning; one without a line follows the last one that has a line."""
    line = node.get("line") or 0  # of a system message
    for other in node.document.findall() if not line else ():
        line = other.line or line
        if other is node:
            break
    return f"{node.document['source']}:{line}"
