"""Offer the packages on the site, so that a downloaded script, notebook or test can run: two wheels.

They are in the site's first folder, where notebooks find theirs. Pages in that folder link to the course's
with the substitution ``|wheel|``, and name it with ``|wheel-file|``, also in a block of code; the practice
GPU's are ``|practice-wheel|`` and ``|practice-wheel-file|``.
"""

import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.wheel import WheelBuilder
from sphinx.application import Sphinx
from sphinx.config import Config

FOLDER = "wheels"  # below docs/; its files come to the top of the site
PRACTICE_GPU = "src/practice_gpu"


def build_wheel(root: Path, folder: Path) -> Path:
    """Build the wheel of the project at `root` into `folder`; return the wheel."""
    return Path(next(WheelBuilder(str(root)).build(directory=str(folder), versions=["standard"])))


def offer(app: Sphinx, config: Config) -> None:
    """Build the wheels, put their folder's files on the site, and define the links to them."""
    folder, root = Path(app.srcdir) / FOLDER, Path(app.confdir)
    shutil.rmtree(folder, ignore_errors=True)
    wheel, practice = build_wheel(root, folder), build_wheel(root / PRACTICE_GPU, folder)
    config.gpulesson_wheel, config.gpulesson_practice_wheel = wheel.name, practice.name
    config.html_extra_path = [*config.html_extra_path, str(folder)]
    links = {"wheel": wheel.name, "practice-wheel": practice.name}
    links_to = "".join(f".. |{word}| replace:: `{name} <{name}>`__\n" for word, name in links.items())
    config.rst_epilog = f"{config.rst_epilog or ''}\n{links_to}"


def name_file(app: Sphinx, page: str, source: list[str]) -> None:
    """Write the wheels' names into a page, because Sphinx substitutes nothing in a block of code."""
    config = app.config
    text = source[0].replace("|practice-wheel-file|", config.gpulesson_practice_wheel)
    source[0] = text.replace("|wheel-file|", config.gpulesson_wheel)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect."""
    app.setup_extension("_ext.notebooks")  # has the setting for the wheel's name
    app.connect("config-inited", offer)
    app.connect("source-read", name_file)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
