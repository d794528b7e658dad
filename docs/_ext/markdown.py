"""A parsed text block as Markdown for notebooks.

JupyterLab, Notebook 7 and VS Code show HTML in Markdown: a box becomes a `<div class="alert alert-…">`,
which they style, a fold a `<details>`. Blank lines between the tags keep the inside Markdown.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from textwrap import indent
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging

logger = logging.getLogger(__name__)

ALERTS = {"exercise": "warning", "keypoints": "success"}  # the class of a box -> the colour of its alert
LISTS = (nodes.bullet_list, nodes.enumerated_list)


class UnknownNode(Exception):
    """A construct without a Markdown form; the message names it."""


class Markdown:
    """Writes blocks of a lesson, one below the other.

    For a cross-reference, `page` returns the title of its page, which replaces a missing text, and `link` its
    address or nothing; `picture` returns the address of a picture in the notebook. The depth says whether a
    block is inside a box.
    """

    depth = 0

    def __init__(
        self,
        page: Callable[[nodes.Element], str],
        picture: Callable[[nodes.image], str],
        link: Callable[[nodes.Element], str],
    ) -> None:
        self.page, self.picture, self.link = page, picture, link

    def blocks(self, children: Iterable[nodes.Node]) -> str:
        """Write blocks, with blank lines between them; a comment keeps Markdown from joining two lists."""
        texts: list[str] = []
        previous: nodes.Node | None = None
        for node in children:
            texts += ["<!-- -->"] if isinstance(previous, LISTS) and isinstance(node, LISTS) else []
            texts += filter(None, [self.block(node)])
            previous = node
        return "\n\n".join(texts)

    def block(self, node: nodes.Node) -> str:
        """Write a block; warn of one without a Markdown form, and leave it out."""
        if isinstance(node, nodes.Element) and "page-only" in node["classes"]:
            return ""
        try:
            return self.write("block", node)
        except UnknownNode as error:
            logger.warning("notebook: no Markdown form for %s", error, location=place(node))
            return ""

    def write(self, prefix: str, node: nodes.Node) -> str:
        """Call the method named after the node's class, or after its nearest base class."""
        for kind in type(node).__mro__:
            if method := getattr(self, f"{prefix}_{kind.__name__}", None):
                return str(method(node))
        raise UnknownNode(type(node).__name__)

    # -- blocks

    def block_title(self, node: nodes.Element) -> str:
        level, parent = 0, node.parent
        while isinstance(parent, nodes.section):
            level, parent = level + 1, parent.parent
        return f"{'#' * level} {self.spans(node)}"

    def block_paragraph(self, node: nodes.Element) -> str:
        """Write a paragraph in one line; escape what would begin a heading, a list or a quotation."""
        return re.sub(r"^(\d*)([.)#+-](?=[\s#])|>)", r"\1\\\2", self.spans(node))

    def block_image(self, node: nodes.Element) -> str:
        return self.write("span", node)

    block_reference = block_image  # a picture that is a link

    def block_literal_block(self, node: nodes.Element) -> str:
        language = node.get("language") or ""
        text = node.astext().rstrip()
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        return f"{fence}{'' if language in ('none', 'default') else language}\n{text}\n{fence}"

    def block_admonition(self, node: nodes.admonition) -> str:
        """Write a fold, a box, or, inside a box, a labelled part: nested alerts are hard to read."""
        title, *children = node.children
        if "collapsible" in node:  # its visible line is HTML, inside which Markdown is not rendered
            line = "".join(as_html(child) for child in title.children)
            return f"<details>\n<summary>{line}</summary>\n\n{self.blocks(children)}\n\n</details>"
        self.depth += 1
        text = f"**{self.spans(title)}**\n\n{self.blocks(children)}"
        self.depth -= 1
        colour = next((ALERTS[kind] for kind in node["classes"] if kind in ALERTS), "info")
        return text if self.depth else f'<div class="alert alert-{colour}">\n\n{text}\n\n</div>'

    def block_figure(self, node: nodes.figure) -> str:
        image, *caption = node.children
        return "\n\n".join([self.write("span", image), *map(self.spans, caption)])

    def block_container(self, node: nodes.container) -> str:
        """Write code below the name of its file, the only container that lessons use."""
        if "literal-block-wrapper" not in node["classes"]:
            raise UnknownNode(type(node).__name__)
        return self.blocks(node.children)

    block_caption = block_paragraph

    def block_Invisible(self, node: nodes.Node) -> str:
        return ""

    block_covers = block_Invisible

    # -- lists and tables

    def block_bullet_list(self, node: nodes.Element) -> str:
        return self.items(node, lambda number: "-")

    def block_enumerated_list(self, node: nodes.Element) -> str:
        return self.items(node, lambda number: f"{node.get('start', 1) + number}.")

    def items(self, node: nodes.Element, marker: Callable[[int], str]) -> str:
        """Write a list; each item's lines are indented below its first."""
        items = []
        for number, item in enumerate(node.children):
            first = marker(number) + " "
            items.append(first + indent(self.blocks(item.children), " " * len(first)).lstrip())
        return ("\n\n" if any("\n\n" in item for item in items) else "\n").join(items)

    def block_table(self, node: nodes.table) -> str:
        rows = [[self.cell(entry) for entry in row.children] for row in node.findall(nodes.row)]
        if not any(node.findall(nodes.thead)):
            rows.insert(0, ["" for _ in rows[0]])  # a table in Markdown needs a head
        lines = [f"| {' | '.join(row)} |" for row in rows]
        lines.insert(1, "|" + " --- |" * len(rows[0]))
        caption = "".join(
            f"*{self.spans(title)}*\n\n" for title in node.children if isinstance(title, nodes.title)
        )
        return caption + "\n".join(lines)

    def cell(self, entry: nodes.Node) -> str:
        """Write a cell on one line, as a table needs it."""
        text = re.sub(r"\n+", "<br>", self.blocks(entry.children))
        return text.replace("|", r"\|")

    # -- the inside of a paragraph

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

    def span_inline(self, node: nodes.Element) -> str:
        return self.spans(node)

    def span_target(self, node: nodes.Element) -> str:
        return ""

    span_problematic = span_target  # docutils adds a separate message

    def span_reference(self, node: nodes.reference) -> str:
        text, address = self.spans(node), node.get("refuri")
        return f"[{text}]({address})" if address else text

    def span_pending_xref(self, node: addnodes.pending_xref) -> str:
        """Write a cross-reference: a link to the site, or its text if the site has no address."""
        if node["reftype"] in ("doc", "ref", "numref") and not node["refexplicit"]:
            text = f"*{escape(self.page(node))}*"  # a page's title, set off from the sentence around it
        else:
            text = self.spans(node)
        address = self.link(node)
        return f"[{text}]({address})" if address else text

    def span_image(self, node: nodes.image) -> str:
        return f"![{escape(node.get('alt', ''))}]({self.picture(node)})"


def as_html(node: nodes.Node) -> str:
    """Write a piece of a line as HTML."""
    text = html.escape(node.astext(), quote=False)
    return f"<code>{text}</code>" if isinstance(node, nodes.literal) else text


def escape(text: str) -> str:
    """Escape the syntax of Markdown, HTML and a notebook's formulas."""
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    text = re.sub(r"([\\`*\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", text)
    # JupyterLab looks for formulas in the finished HTML, where "\$" is "$" again, but within one element only
    return text.replace("$", r"<span>\$</span>")


def place(node: Any) -> str:
    """Return where a node is, for a warning; without a line, that of the last node before it."""
    line = node.get("line") or 0  # of a system message
    for other in node.document.findall() if not line else ():
        line = other.line or line
        if other is node:
            break
    return f"{node.document['source']}:{line}"
