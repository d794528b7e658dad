"""Where the lessons, their exercises and their generated pages lie."""

from __future__ import annotations

import os
from pathlib import Path

from sphinx.application import Sphinx

LESSON_NAME = r"\d\d_\w+\.py"  # the number orders the syllabus


def fix_data_folder() -> None:
    """Make GPULESSON_DATA absolute: lessons run in their own folder, where a relative one leads elsewhere."""
    if named := os.environ.get("GPULESSON_DATA"):
        os.environ["GPULESSON_DATA"] = str(Path(named).expanduser().absolute())


def examples_dir(app: Sphinx) -> Path:
    """Folder of the lesson scripts; `exercises` and `solutions` lie in it."""
    return (Path(app.srcdir) / str(app.config.sphinx_gallery_conf["examples_dirs"])).resolve()


def gallery_dir(app: Sphinx) -> Path:
    """Folder that sphinx-gallery fills with pages, notebooks and pictures."""
    return Path(app.srcdir) / str(app.config.sphinx_gallery_conf["gallery_dirs"])


def executed_scripts(app: Sphinx) -> dict[str, Path]:
    """Return every script that becomes a page, by its name below examples/: the lessons, then the guides.

    sphinx-gallery takes the scripts of the folder itself, and of the folders in it that have a header.
    """
    top = examples_dir(app)
    folders = [top, *sorted(path.parent for path in top.glob("*/GALLERY_HEADER.rst"))]
    scripts = [script for folder in folders for script in sorted(folder.glob("*.py"))]
    return {script.relative_to(top).as_posix(): script for script in scripts}


def docname(app: Sphinx, script: str) -> str:
    """Sphinx's name of the page of a script, such as `lessons/01_name`."""
    return (gallery_dir(app) / script).with_suffix("").relative_to(app.srcdir).as_posix()
