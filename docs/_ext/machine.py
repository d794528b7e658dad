"""Keeps the paths of the building machine off the pages: the warnings of a lesson name files."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata


def hide_paths(app: Sphinx, docname: str, source: list[str]) -> None:
    """Shorten the paths in what a lesson printed."""
    if not Path(app.srcdir, f"{docname}.py").is_file():
        return  # not the page of a script
    source[0] = without_paths(source[0], Path(app.confdir))


def without_paths(text: str, project: Path) -> str:
    """Shorten the paths in a text: of libraries, of the project, of the home folder."""
    places = {sysconfig.get_path("purelib"): "site-packages", project: ".", Path.home(): "~"}
    for place, name in places.items():
        text = text.replace(f"{place}/", f"{name}/")
    return text


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("source-read", hide_paths)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
