"""A row of blocks, lists and tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from textwrap import indent

from docutils import nodes
from sphinx.util import logging

from .markdown_spans import Spans, UnknownNode, place

logger = logging.getLogger(__name__)

LISTS = (nodes.bullet_list, nodes.enumerated_list, nodes.definition_list)


class Lists(Spans):
    """Writes blocks one below the other, and those that hold others by an indent or in cells."""

    def blocks(self, children: Iterable[nodes.Node]) -> str:
        """Write blocks, with blank lines between; between lists also a comment, Markdown would join them."""
        texts: list[str] = []
        previous: nodes.Node | None = None
        for node in children:
            texts += ["<!-- -->"] if isinstance(previous, LISTS) and isinstance(node, LISTS) else []
            texts += filter(None, [self.block(node)])
            previous = node
        return "\n\n".join(texts)

    def block(self, node: nodes.Node) -> str:
        """Write a block; one that has no Markdown form becomes a warning, and never raw text."""
        if isinstance(node, nodes.Element) and "page-only" in node["classes"]:
            return ""
        try:
            return self.write("block", node)
        except UnknownNode as error:
            logger.warning("notebook: no Markdown form for %s", error, location=place(node))
            return ""

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

    def block_definition_list(self, node: nodes.Element) -> str:
        """Write terms in bold, each with its definition indented below: Markdown has no such list."""
        items = []
        for item in node.children:
            *terms, definition = item.children
            names = ", ".join(f"**{self.spans(term)}**" for term in terms)
            items.append(f"- {names}\n\n" + indent(self.blocks(definition.children), "  "))
        return "\n\n".join(items)

    def block_table(self, node: nodes.table) -> str:
        rows = [[self.cell(entry) for entry in row.children] for row in node.findall(nodes.row)]
        if not any(node.findall(nodes.thead)):
            rows.insert(0, ["" for _ in rows[0]])  # Markdown has no table without a head
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
