"""What the boxes of a lesson are in the document tree, and how HTML shows those unknown to docutils."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata


class overview(nodes.admonition):
    """Opens a lesson; `teaching` and `exercises` are its minutes."""


class exercise(nodes.admonition):
    """A task; `minutes` is None where the lesson does not say."""


class fold(nodes.General, nodes.Element):
    """What the reader unfolds; `summary` is the line that stays visible."""


class covers(nodes.General, nodes.Element):
    """Invisible anchors of the facts that the next lines show; `facts` are their ids."""


def anchor(fact: str) -> str:
    """The anchor of a fact: `S3.6` is at `#covers-s3-6`."""
    return "covers-" + re.sub(r"\W", "-", fact.lower())


def visit_fold(translator: Any, node: fold) -> None:
    translator.body.append(translator.starttag(node, "details"))
    translator.body.append(f"<summary>{translator.encode(node['summary'])}</summary>\n")


def depart_fold(translator: Any, node: fold) -> None:
    translator.body.append("</details>\n")


def visit_covers(translator: Any, node: covers) -> None:
    for fact in node["facts"]:
        translator.body.append(f'<span class="covers" id="{anchor(fact)}"></span>\n')


def ignore(translator: Any, node: nodes.Node) -> None:
    """Show the content as it is."""


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_node(fold, html=(visit_fold, depart_fold), text=(ignore, ignore), latex=(ignore, ignore))
    app.add_node(covers, html=(visit_covers, ignore), text=(ignore, ignore), latex=(ignore, ignore))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
