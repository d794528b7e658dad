"""Leaves out two imports, of torch and of matplotlib, which take most of the time of a build without changes.

Both come again where they are needed: torch when the reference page is read, matplotlib before a lesson runs
(`reset_modules` in conf.py names it).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import sphinx_gallery.gen_gallery
from sphinx.application import Sphinx
from sphinx.ext import viewcode
from sphinx.util.typing import ExtensionMetadata


def module_file(app: Sphinx, name: str) -> Path | None:
    """Find the file of a module, to compare its age with its page's, without importing it."""
    spec = find_spec(name)  # imports the packages around it, not the module
    return Path(spec.origin) if spec and spec.origin else None


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("sphinx.ext.viewcode")
    app.setup_extension("sphinx_gallery.gen_gallery")
    viewcode.get_module_filename = module_file  # type: ignore[assignment]
    sphinx_gallery.gen_gallery._import_matplotlib = lambda: None
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
