"""Puts a drawing of docs/drawings into the page itself, as SVG, so that it has the page's colours.

A notebook has it as a picture, in the colours of the reader's system.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

FOLDER = "drawings"  # in docs/

logger = logging.getLogger(__name__)


class drawing(nodes.figure):
    """A drawing, `uri` its file, `alt` what it shows, `svg` its text; its child is the caption."""


class Drawing(SphinxDirective):
    """Shows the drawing of that name, with the content as its caption."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        path = Path(self.env.srcdir, FOLDER, name)
        if not path.is_file():
            logger.warning("drawing: there is no file %s", path, location=self.get_location())
            return []
        self.env.note_dependency(str(path))
        svg = path.read_text(encoding="utf-8")
        node = drawing("", uri=f"/{FOLDER}/{name}", alt=description(svg), svg=svg)
        self.set_source_info(node)
        if self.content:
            inline, messages = self.parse_inline(" ".join(self.content))
            node += nodes.caption("", "", *inline)
            return [node, *messages]
        return [node]


def description(svg: str) -> str:
    """Return what an SVG says of itself, for those who do not see it."""
    found = ElementTree.fromstring(svg).find("{http://www.w3.org/2000/svg}desc")
    return " ".join((found.text or "").split()) if found is not None else ""


def visit_drawing(translator: Any, node: drawing) -> None:
    translator.body.append(f'<figure class="drawing">\n{node["svg"].strip()}\n')


def depart_drawing(translator: Any, node: drawing) -> None:
    translator.body.append("</figure>\n")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_node(drawing, html=(visit_drawing, depart_drawing))
    app.add_directive("drawing", Drawing)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
