"""Lets the site's search find a pasted error message: adds ``message_search.js`` to the search page.

The script ranks the sections of the pages of error messages, and hands everything else to Sphinx's search. It
knows those sections by their labels, which begin with ``error-``.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

LABEL = "error-"


def add_script(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    if pagename == "search":
        app.add_js_file("message_search.js", defer="defer")  # after Sphinx's own, which is not deferred


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
    app.connect(
        "doctree-read", labels_first, priority=400
    )  # before Sphinx collects titles and their addresses
    app.connect("html-page-context", add_script)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
