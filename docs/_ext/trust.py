"""Shows what is promised and how it was tested, as ``nox -s trust`` has written it into docs/trust.json.

``.. trust:: flipped_bits full_disk`` renders a table of these rows. A row that is missing, or failed, is an
error of the build. Without a name it says what the tests ran on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from .tables import table

FILE = Path("docs", "trust.json")  # below conf.py
HEADS = ["Tested", "As promised", "Besides"]


class Trust(SphinxDirective):
    """The table of some rows, or the sentence on all of them."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        file = Path(self.env.app.confdir) / FILE
        self.env.note_dependency(file)
        found = json.loads(file.read_text(encoding="utf-8"))
        names = self.arguments[0].split() if self.arguments else []
        if problems := [text for name in names for text in [problem(name, found["rows"].get(name))] if text]:
            raise self.error(f"{FILE.as_posix()}: {'; '.join(problems)}. Run: nox -s trust")
        if not names:
            return [nodes.paragraph("", sentence(found))]
        return [table([HEADS, *(cells(found["rows"][name]) for name in names)], "trust")]


def problem(name: str, row: dict[str, Any] | None) -> str:
    """Say why a row may not be shown, if so."""
    if row is None:
        return f"there is no row {name}"
    if "not run" in row:
        return ""
    whole = (
        row["kept"] is True and isinstance(row["least"], int) and row["done"] == row["of"] >= row["least"] > 0
    )
    return (
        "" if whole else f"{name} is not as promised: {row['done']} of {row['of']}, at least {row['least']}"
    )


def cells(row: dict[str, Any]) -> list[str]:
    """Return what is tested, the figure, and the notes."""
    if reason := row.get("not run"):
        return [row["what"], f"not run here: {reason}", ""]
    return [row["what"], f"{row['done']:,} of {row['of']:,}", "; ".join(row["notes"])]


def sentence(found: dict[str, Any]) -> str:
    """Say what the tests ran on, and when."""
    about, dates = found["about"], sorted({row["date"] for row in found["rows"].values()})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"PyTorch {about['torch']}, Python {about['python']}, {about['system']}, {when}."


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.tables")
    app.add_directive("trust", Trust)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
