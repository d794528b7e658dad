"""Clean notebooks: sphinx-gallery's own conversion knows a few constructs, and passes the rest on as it is.

Here the text of a lesson is parsed with Sphinx's roles and directives, our boxes included, and written as
Markdown. The one hook is the function with which sphinx-gallery turns the blocks of a script into a notebook.
"""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import sphinx_gallery
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.typing import ExtensionMetadata
from sphinx_gallery import gen_rst

from .notebook_cells import cells, code_cell

HOOK, PARAMETERS = "jupyter_notebook", ["script_blocks", "gallery_conf", "target_dir"]

INSTALL = """\
# Installs what this notebook needs, if it is not there yet. The package gpulesson is a file (.whl): download
# it from the course's page "Set up" into the folder of this notebook.
import importlib.util

needed = "gpulesson matplotlib pooch sklearn torchvision tqdm".split()
if not all(map(importlib.util.find_spec, needed)):
    %pip install --quiet "{requirement}"
"""


def lesson_notebook(
    app: Sphinx, script_blocks: list[Any], gallery_conf: Any, target_dir: Any
) -> dict[str, Any]:
    """Make a notebook of the blocks of a script; stands in for sphinx-gallery's function of that name."""
    install = code_cell(INSTALL.format(requirement=app.config.gpulesson_install))
    found = [install, *cells(app, script_blocks, Path(target_dir))]
    return {
        "cells": [{"id": f"cell-{number}", **cell} for number, cell in enumerate(found)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def take_over(app: Sphinx) -> None:
    """Make sphinx-gallery call us."""
    setattr(gen_rst, HOOK, partial(lesson_notebook, app))


def setup(app: Sphinx) -> ExtensionMetadata:
    hook = getattr(gen_rst, HOOK, None)
    if hook is None or not {*PARAMETERS} <= {*inspect.signature(hook).parameters}:
        message = (
            "notebooks: sphinx-gallery %s has no function gen_rst.%s(%s); its notebooks cannot be replaced"
        )
        raise ExtensionError(message % (sphinx_gallery.__version__, HOOK, ", ".join(PARAMETERS)))
    requirement = "what the notebook's first cell gives to pip"
    app.add_config_value("gpulesson_install", "gpulesson[lessons]", "", types=[str], description=requirement)
    app.connect("builder-inited", take_over, priority=450)  # sphinx-gallery writes notebooks at 500
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
