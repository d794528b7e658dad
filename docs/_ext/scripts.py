"""Gives each page the scripts that it needs, beside those of all pages.

``progress.js`` makes the browser remember the reader's progress, on the lessons and where they are listed;
there ``continue.js`` links to the place where the reader stopped. ``message_search.js`` finds the section of
``messages.js`` that fits a pasted error message, for the field on the pages of messages and for
``search.js``, which finds all other sections, those of ``sections.js``.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata


def add_scripts(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document) -> None:
    needed = {
        "progress.js": page == "index" or page.startswith("lessons/"),
        "continue.js": page in ("index", "lessons/index"),
        **dict.fromkeys(("stemmer.js", "sections.js", "messages.js"), page == "search"),
        "message_search.js": page in ("errors", "errors_rare", "search"),
        "search.js": page == "search",
    }
    for script in [script for script, is_needed in needed.items() if is_needed]:
        app.add_js_file(script, defer="defer")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("html-page-context", add_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
