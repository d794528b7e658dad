"""Keeps the paths of the building machine off the pages: the warnings of a lesson name files."""

from __future__ import annotations

import os
import re
import sysconfig
import tempfile
from pathlib import Path, PurePath

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata


def hide_paths(app: Sphinx, docname: str, source: list[str]) -> None:
    """Shorten the paths in what a lesson printed."""
    if not Path(app.srcdir, f"{docname}.py").is_file():
        return  # not the page of a script
    source[0] = without_paths(source[0], Path(app.confdir))


def without_paths(text: str, project: PurePath) -> str:
    """Shorten the paths in a text: of libraries, the project, the data, temporary files, the home folder.

    Paths of Windows are found as they are, with slashes, and with the doubled backslashes of a ``repr``.
    """
    places: dict[PurePath, str] = {Path(sysconfig.get_path("purelib")): "site-packages", project: "."}
    if "GPULESSON_DATA" in os.environ:
        places[Path(os.environ["GPULESSON_DATA"])] = "data"
    places |= {Path(tempfile.gettempdir()): "tmp", Path.home(): "~"}
    for place, name in places.items():
        if place == PurePath(place.anchor):
            continue  # a home that is the root
        spellings = {str(place), place.as_posix(), str(place).replace("\\", "\\\\")}
        found = "|".join(map(re.escape, sorted(spellings, key=len, reverse=True)))
        text = re.sub(rf"(?<![\w.~-])(?:{found})(?![\w.-])", name, text)
    return text


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("source-read", hide_paths)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
