"""Marks the place of each cell's output in the page of a lesson.

While a lesson runs, `mark_cell` writes a mark into the generated page: the cell's hash, and the machine that
ran it. Notebooks and scripts are made of the lesson itself, where there are no marks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata
from sphinx_gallery.directives import imgsgnode

from .lesson_cells import read_cells


class ran_cell(nodes.Invisible, nodes.Element):
    """Stands behind a cell; `hash` is the cell's, `machine` the one that ran it."""


class RanCell(SphinxDirective):
    """The mark that `mark_cell` leaves."""

    required_arguments = 1
    option_spec: ClassVar[Any] = {"machine": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        return [ran_cell("", hash=self.arguments[0], machine=self.options.get("machine", ""))]


def mark_cell(block: Any, block_vars: dict[str, Any], gallery_conf: Any) -> str:
    """Return the mark of the cell that just ran; sphinx-gallery takes it for the markup of figures."""
    cells = read_cells(Path(block_vars["src_file"]))
    key = next(cell.hash for cell in cells if cell.line == block.lineno)
    return f"\n.. ran-cell:: {key}\n   :machine: {machine()}\n"


def machine() -> str:
    """Name what a lesson computes on in this process, if it has loaded torch."""
    if "torch" not in sys.modules:
        return ""
    import torch

    from gpulesson.device import choose_device, device_name

    device = choose_device()
    name = "CPU" if device.type == "cpu" else device_name(device)
    return f"{name}, PyTorch {torch.__version__}"


def gather(mark: ran_cell) -> list[nodes.Node]:
    """Take the figures before a mark and the texts behind it out of the page."""
    siblings, place = mark.parent.children, mark.parent.index(mark)
    first, last = place, place + 1
    while first > 0 and is_figure(siblings[first - 1]):
        first -= 1
    while last < len(siblings) and is_text(siblings[last]):
        last += 1
    found = siblings[first:place] + siblings[place + 1 : last]
    for node in found:
        mark.parent.remove(node)
    return found


def is_figure(node: nodes.Node) -> bool:
    return isinstance(node, imgsgnode) or "sphx-glr-horizontal" in getattr(node, "attributes", {}).get(
        "classes", ()
    )


def is_text(node: nodes.Node) -> bool:
    if isinstance(node, nodes.raw):
        return "output_html" in node.astext()
    return isinstance(node, nodes.literal_block) and "sphx-glr-script-out" in node["classes"]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_node(ran_cell)
    app.add_directive("ran-cell", RanCell)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
