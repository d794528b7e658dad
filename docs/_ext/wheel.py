"""Offer the package on the site, so that a downloaded script or notebook can run: a wheel.

It lies at the site's top, where notebooks find it. Pages there link to it with the substitution ``|wheel|``,
and name it with ``|wheel-file|``, in a block of code, too.
"""

import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.wheel import WheelBuilder
from sphinx.application import Sphinx
from sphinx.config import Config

FOLDER = "wheels"  # below docs/; its files come to the top of the site


def build_wheel(root: Path, folder: Path) -> Path:
    """Build the wheel of the project at `root` into `folder`, which loses what it had; return the wheel."""
    shutil.rmtree(folder, ignore_errors=True)
    return Path(next(WheelBuilder(str(root)).build(directory=str(folder), versions=["standard"])))


def offer(app: Sphinx, config: Config) -> None:
    """Build the wheel, put its folder's files on the site, and define ``|wheel|`` as a link."""
    folder = Path(app.srcdir) / FOLDER
    wheel = build_wheel(Path(app.confdir), folder)
    config.gpulesson_wheel = wheel.name
    config.html_extra_path = [*config.html_extra_path, str(folder)]
    config.rst_epilog = f"{config.rst_epilog or ''}\n.. |wheel| replace:: `{wheel.name} <{wheel.name}>`__\n"


def name_file(app: Sphinx, page: str, source: list[str]) -> None:
    """Write the wheel's name into a page: Sphinx substitutes nothing in a block of code."""
    source[0] = source[0].replace("|wheel-file|", app.config.gpulesson_wheel)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect."""
    app.setup_extension("_ext.notebooks")  # has the setting for the wheel's name
    app.connect("config-inited", offer)
    app.connect("source-read", name_file)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
