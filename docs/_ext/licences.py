"""Shows the licences of what a reader installs, as ``nox -s licences`` has written them.

``.. licences::`` renders docs/licences.json: a table, folded.
"""

from __future__ import annotations

import json
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from .boxes import fold, summary
from .tables import table

FILE = Path("docs", "licences.json")  # below conf.py
HEADS = ["Distribution", "Version", "Licence"]


class Licences(SphinxDirective):
    """The table."""

    def run(self) -> list[nodes.Node]:
        file = Path(self.env.app.confdir) / FILE
        self.env.note_dependency(file)
        found = json.loads(file.read_text(encoding="utf-8"))
        rows = [[name, row["version"], row["licence"]] for name, row in sorted(found.items())]
        shown = fold("", summary("", f"The {len(rows)} distributions"), table([HEADS, *rows], "licences"))
        shown["classes"] = ["fold", "licences"]
        return [shown]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.boxes")
    app.setup_extension("_ext.tables")
    app.add_directive("licences", Licences)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
