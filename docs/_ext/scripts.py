"""Gives each page the scripts that it needs, beside the ones that all pages have.

``progress.js`` lets a reader's browser remember the progress, on the lessons and where they are listed; there
``continue.js`` leads to where the reader stopped. ``message_search.js`` lets the search find a pasted error
message: it ranks the sections of the pages of error messages, which it knows from ``messages.js``, and hands
everything else to Sphinx's search. The page of messages has it for a field of its own.
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
        "messages.js": page == "search",
        "message_search.js": page in ("errors", "search"),  # after Sphinx's own, which is not deferred
    }
    for script in [script for script, is_needed in needed.items() if is_needed]:
        app.add_js_file(script, defer="defer")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("html-page-context", add_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
