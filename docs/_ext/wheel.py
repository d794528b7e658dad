"""Offer the package on the site, so that a downloaded script or notebook can run: a wheel.

Pages link to it with the substitution ``|wheel|``. Hatchling's wheels are reproducible: unchanged sources
give the same bytes, and then the file is left alone, which keeps an unchanged build short.
"""

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.wheel import WheelBuilder
from sphinx.application import Sphinx
from sphinx.config import Config

FOLDER = "wheels"  # below docs/


def build_wheel(root: Path, folder: Path) -> Path:
    """Build the wheel of the project at `root` into `folder`, and remove those of other versions.

    Returns
    -------
    Path
        The wheel.
    """
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(next(WheelBuilder(str(root)).build(directory=scratch, versions=["standard"])))
        content = made.read_bytes()
    folder.mkdir(exist_ok=True)
    wheel = folder / made.name
    for other in set(folder.glob("*.whl")) - {wheel}:
        other.unlink()
    if not wheel.exists() or wheel.read_bytes() != content:
        wheel.write_bytes(content)
    return wheel


def offer(app: Sphinx, config: Config) -> None:
    """Build the wheel, and define ``|wheel|`` as a link to it."""
    wheel = build_wheel(Path(app.confdir), Path(app.srcdir) / FOLDER)
    config.rst_epilog = (
        f"{config.rst_epilog or ''}\n.. |wheel| replace:: :download:`{wheel.name} </{FOLDER}/{wheel.name}>`\n"
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect."""
    app.connect("config-inited", offer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
