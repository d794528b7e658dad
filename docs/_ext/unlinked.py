"""Removes from the built site the files that no page, script or style names.

The theme, Sphinx and sphinx-gallery copy more than the pages use: scripts and styles for other settings, a
zip file for each lesson. A copy comes back with each build, and is removed again.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

FOLDERS = "_static", "_downloads", "_sources"
NAMING = ".html", ".js", ".css"  # files that name others
NAME = re.compile(r"[\w.+-]+\.\w+")


def remove(app: Sphinx, exception: Exception | None) -> None:
    """Remove each file whose name is in none of the files that stay, and folders that are empty then."""
    if exception is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    files = {path for folder in FOLDERS for path in (out / folder).rglob("*") if path.is_file()}
    named: set[str] = set()
    reading = {path for path in out.rglob("*") if path.suffix in NAMING} - files
    while reading:  # the pages, then what they name, which names more
        for path in reading:
            named |= {*NAME.findall(path.read_text("utf-8"))}
        found = {path for path in files if path.name in named}
        files -= found
        reading = {path for path in found if path.suffix in NAMING}
    for path in files:
        path.unlink()
    folders = [path for name in FOLDERS for path in (out / name, *(out / name).rglob("*")) if path.is_dir()]
    for folder in sorted(folders, reverse=True):  # the inner ones first
        if not any(folder.iterdir()):
            folder.rmdir()


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("build-finished", remove, priority=990)  # after all that writes
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
