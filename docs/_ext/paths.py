"""Where the lessons, their exercises and their pages are; and how this machine's paths stay off the pages.

The warnings of a lesson name files, whose paths are shortened before the page is read.
"""

from __future__ import annotations

import re
import sysconfig
import tempfile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # machines that record lessons may have no Sphinx
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata


def examples_dir(app: Sphinx) -> Path:
    """Return the folder of the lesson scripts, with `exercises` and `solutions` in it."""
    return (Path(app.srcdir) / str(app.config.sphinx_gallery_conf["examples_dirs"])).resolve()


def gallery_dir(app: Sphinx) -> Path:
    """Return the folder that sphinx-gallery fills with pages, notebooks and pictures."""
    return Path(app.srcdir) / str(app.config.sphinx_gallery_conf["gallery_dirs"])


def executed_scripts(app: Sphinx) -> dict[str, Path]:
    """Return every script that becomes a page, by its name below examples/: the lessons, then the guides.

    sphinx-gallery takes the scripts in the folder itself, and in its subfolders that have a header.
    """
    top = examples_dir(app)
    folders = [top, *sorted(path.parent for path in top.glob("*/GALLERY_HEADER.rst"))]
    scripts = [script for folder in folders for script in sorted(folder.glob("*.py"))]
    return {script.relative_to(top).as_posix(): script for script in scripts}


def docname(app: Sphinx, script: str) -> str:
    """Return Sphinx's name of the page of a script, such as `lessons/01_name`."""
    return (gallery_dir(app) / script).with_suffix("").relative_to(app.srcdir).as_posix()


def hide_paths(app: Sphinx, docname: str, source: list[str]) -> None:
    """Shorten the paths in what a lesson printed."""
    if not Path(app.srcdir, f"{docname}.py").is_file():
        return  # not the page of a script
    source[0] = without_paths(source[0], Path(app.confdir))


def without_paths(text: str, project: PurePath) -> str:
    """Shorten the paths of libraries, the project, temporary files and the home folder.

    Paths of Windows are found with backslashes, with slashes, and with the doubled backslashes of a ``repr``.
    """
    # in any environment: another one may have run the lesson before
    anywhere = r"""(?<![\w.~-])(?:[A-Za-z]:)?[/\\][^\s"'<>]*[/\\]site-packages(?![\w.-])"""
    text = re.sub(anywhere, "site-packages", text)
    places: dict[PurePath, str] = {Path(sysconfig.get_path("purelib")): "site-packages", project: "."}
    places |= {Path(tempfile.gettempdir()): "tmp", Path.home(): "~"}
    for place, name in places.items():
        if place == PurePath(place.anchor):
            continue  # a home that is the root
        spellings = {str(place), place.as_posix(), str(place).replace("\\", "\\\\")}
        found = "|".join(map(re.escape, sorted(spellings, key=len, reverse=True)))
        text = re.sub(rf"(?<![\w.~-])(?:{found})(?![\w.-])", name, text)
    # the name of a temporary folder differs from run to run
    return re.sub(r"(?<![\w.~-])tmp[/\\]{1,2}tmp[a-z0-9_]{8}(?![\w.-])", "tmp", text)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.connect("source-read", hide_paths)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
