"""Shows a drawing of ``docs/drawings`` in the page itself, as SVG, so that it has the page's colours.

It is a figure with the content as its caption. A notebook has it as a picture, in the colours of the reader's
system.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.directives.patches import Figure
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

FOLDER = "drawings"  # in docs/


class Drawing(Figure, SphinxDirective):
    """A figure whose file is in the folder, and describes itself."""

    def run(self) -> list[Any]:
        path = Path(self.env.srcdir, FOLDER, self.arguments[0])
        self.arguments = [f"/{FOLDER}/{path.name}"]
        self.options["figclass"] = ["drawing"]
        self.options["alt"] = description(path) if path.is_file() else ""  # Sphinx warns where it is not
        return list(super().run())


def description(svg: Path) -> str:
    """Return the description in an SVG, for readers who do not see it."""
    found = ElementTree.parse(svg).find("{http://www.w3.org/2000/svg}desc")
    return " ".join((found.text or "").split()) if found is not None else ""


class DrawInPage(SphinxPostTransform):
    """Put the text of an SVG where its picture would be."""

    default_priority = 200
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        for figure in self.document.findall(nodes.figure):
            if "drawing" in figure["classes"]:
                (image,) = figure.findall(nodes.image)
                svg = Path(self.env.srcdir, image["uri"]).read_text(encoding="utf-8")
                image.replace_self(nodes.raw("", svg, format="html"))


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("drawing", Drawing)
    app.add_post_transform(DrawInPage)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
