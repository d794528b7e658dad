"""Keeps the paths of the building machine off the pages: the warnings of a lesson name files."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata


def hide_paths(app: Sphinx, docname: str, source: list[str]) -> None:
    """Shorten the paths in what a lesson printed: of the project, of libraries, of the home folder."""
    if not Path(app.srcdir, f"{docname}.py").is_file():
        return  # not the page of a script
    places = {sysconfig.get_path("purelib"): "site-packages", app.confdir: ".", Path.home(): "~"}
    for place, name in places.items():
        source[0] = source[0].replace(f"{place}/", f"{name}/")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("source-read", hide_paths)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
