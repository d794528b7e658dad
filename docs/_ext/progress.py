"""Lets a reader's browser remember the progress: ``progress.js`` on the lessons, and where they are listed.

On the landing page and the page of all lessons, ``continue.js`` leads to where the reader stopped.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata


def add_script(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document) -> None:
    if page == "index" or page.startswith("lessons/"):
        app.add_js_file("progress.js", defer="defer")
    if page in ("index", "lessons/index"):
        app.add_js_file("continue.js", defer="defer")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("html-page-context", add_script)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
