"""Gives each page the scripts that it needs, beside the ones that all pages have.

``progress.js`` lets a reader's browser remember the progress, on the lessons and where they are listed; there
``continue.js`` leads to where the reader stopped. ``message_search.js`` lets the search find a pasted error
message: it ranks the sections of the pages of error messages, which it knows by their labels, and hands
everything else to Sphinx's search.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

LABEL = "error-"


def add_scripts(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document) -> None:
    needed = {
        "progress.js": page == "index" or page.startswith("lessons/"),
        "continue.js": page in ("index", "lessons/index"),
        "message_search.js": page == "search",  # after Sphinx's own, which is not deferred
    }
    for script in [script for script, is_needed in needed.items() if is_needed]:
        app.add_js_file(script, defer="defer")


def labels_first(app: Sphinx, document: nodes.document) -> None:
    """Let a message's address be its label, not all the words of its heading."""
    labels = {
        document.nameids[name]
        for name, written in document.nametypes.items()
        if written and name.startswith(LABEL)
    }
    for section in document.findall(nodes.section):
        section["ids"].sort(key=lambda address: address not in labels)


def setup(app: Sphinx) -> ExtensionMetadata:
    # before Sphinx collects titles and their addresses
    app.connect("doctree-read", labels_first, priority=400)
    app.connect("html-page-context", add_scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
