"""Shows how the programs of public libraries ran on the practice GPU, as ``nox -s libraries`` has written it.

``.. libraries::`` renders docs/libraries.json: a sentence, and the table, folded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from .boxes import fold, summary
from .tables import table

FILE = Path("docs", "libraries.json")  # below conf.py
HEADS = ["Library", "What the program does", "Imported before", "Imported after"]
WAYS = ("before", "inside")


class Libraries(SphinxDirective):
    """The sentence and the table."""

    def run(self) -> list[nodes.Node]:
        file = Path(self.env.app.confdir) / FILE
        self.env.note_dependency(file)
        found = json.loads(file.read_text(encoding="utf-8"))
        rows = sorted(found["rows"].values(), key=lambda row: (row["library"].lower(), row["what"]))
        cells = [
            [f"{row['library']} {row['version']}", row["what"], *(row[way] for way in WAYS)] for row in rows
        ]
        shown = fold("", summary("", "The programs, one by one"), table([HEADS, *cells], "libraries"))
        shown["classes"] = ["fold", "libraries"]
        return [nodes.paragraph("", sentence(found["about"], rows)), shown]


def sentence(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Say how many programs of how many libraries ran, and with what results."""
    ran = [row for row in rows if not {row[way] for way in WAYS} & {"fails", "differs"}]
    equal = [row for row in ran if all(row[way] == "equal" for way in WAYS)]
    libraries = len({row["library"] for row in rows})
    return (
        f"Of {len(rows)} programs with {libraries} libraries, {len(ran)} ran on the practice GPU. "
        f"{len(equal)} had the CPU's results to the last bit. "
        f"(PyTorch {about['torch']}, Python {about['python']}, {about['system']}, {about['date']}.)"
    )


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.boxes")
    app.setup_extension("_ext.tables")
    app.add_directive("libraries", Libraries)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
