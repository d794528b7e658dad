"""Puts parts to play with onto the pages of lessons: ``.. play:: NAME``.

A part is a module here, ``NAME.py``, and in ``_static`` ``play-NAME.js`` and ``play-NAME.css``. It is on one
page. While its lesson runs, the module's ``play(names)`` gets what its names hold after the cell above the
directive. It returns the data that the script plays with, and HTML that says the same without a script and
on paper; then, by their names, the files that the script loads when a reader asks, if any: ``_static`` gets
them. All is kept beside the page, as long as the lesson's run is. Notebooks leave it and its content out.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from ..cells import code_cells
from ..paths import gallery_dir

DIRECTIVE = re.compile(r"^# \.\. play:: (\S+)$", re.M)


def keep(block: Any, block_vars: dict[str, Any], gallery_conf: Any) -> str:
    """After a cell, keep what the parts below it play with; for sphinx-gallery it is an image scraper."""
    script = Path(block_vars["src_file"])
    lines = script.read_text(encoding="utf-8").split("\n")
    starts = [line for line, _ in code_cells(script)]
    below = dict(pairwise([*starts, len(lines) + 1]))[block.lineno]
    for name in DIRECTIVE.findall("\n".join(lines[block.lineno - 1 : below - 1])):
        *made, files = (*import_module(f"{__name__}.{name}").play(block_vars["example_globals"]), {})[:3]
        place = kept(Path(block_vars["target_file"]), name)
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps(made, separators=(",", ":")), encoding="utf-8")
        for file, content in files.items():
            place.with_name(file).write_bytes(content)
    return ""


def kept(page: Path, name: str) -> Path:
    return page.with_name("plays") / f"{name}.json"


class Play(SphinxDirective):
    """A part to play with, below the text that leads to it."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        (name,) = self.arguments
        place = kept(Path(self.env.doc2path(self.env.docname)), name)
        self.env.note_dependency(str(place))
        if not place.is_file():  # a notebook is made before the lesson runs; or the lesson failed
            return []
        data, still = json.loads(place.read_text(encoding="utf-8"))
        part = nodes.raw("", written(name, data, still), format="html", plays=name)
        return [nodes.container("", *self.parse_content_to_nodes(), part, classes=["page-only"])]


def written(name: str, data: Any, still: str) -> str:
    """Write a part: its data, and what it is without a script."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<div class="play" data-play="{name}">\n<script type="application/json">{text}</script>\n'
        f'<div class="still">{still}</div>\n</div>'
    )


def table(head: Sequence[str], rows: Iterable[Iterable[object]], caption: str = "") -> str:
    """Write a table from HTML: the usual form of what a part says without a script."""

    def row(kind: str, cells: Iterable[object]) -> str:
        return f"<tr>{''.join(f'<{kind}>{cell}</{kind}>' for cell in cells)}</tr>"

    above = f"<caption>{caption}</caption>" if caption else ""
    above += f"<thead>{row('th', head)}</thead>" if head else ""
    return f"<table>{above}<tbody>{''.join(row('td', cells) for cells in rows)}</tbody></table>"


def load(app: Sphinx, page: str, template: str, context: Any, document: nodes.document | None) -> None:
    """Load what the parts on a page need; a film's files are with its command."""
    parts = list(document.findall(nodes.raw)) if document is not None else []
    if names := sorted({part["plays"] for part in parts if "plays" in part}):
        for name in ("play", *(f"play-{name}" for name in names)):
            app.add_css_file(f"{name}.css")
            app.add_js_file(f"{name}.js", loading_method="defer")


def copy(app: Sphinx, exception: Exception | None) -> None:
    """Put what scripts load on request beside them."""
    if exception is None and app.builder.name == "html":
        for file in gallery_dir(app).glob("plays/play-*"):
            shutil.copy(file, Path(app.outdir) / "_static")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("html-page-context", load)
    app.connect("build-finished", copy)
    app.add_directive("play", Play)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
