"""Clean notebooks: sphinx-gallery's own conversion knows a few constructs, and passes the rest on as it is.

Here the text of a lesson is parsed with Sphinx's roles and directives, our boxes included, and written as
Markdown. The one hook is the function with which sphinx-gallery turns the blocks of a script into a notebook.
"""

from __future__ import annotations

import base64
import inspect
import mimetypes
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import sphinx_gallery
from docutils import nodes
from docutils.core import publish_doctree
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import docname_join, logging
from sphinx.util.docutils import sphinx_domains
from sphinx.util.typing import ExtensionMetadata
from sphinx_gallery import gen_rst

from .boxes import question
from .cells import FOLDED
from .markdown import Markdown, UnknownNode, place
from .paths import docname, executed_scripts

logger = logging.getLogger(__name__)

HOOK, PARAMETERS = "jupyter_notebook", ["script_blocks", "gallery_conf", "target_dir"]

INSTALL = """\
# Installs what this notebook needs, if it is not there yet. The package gpulesson is a file (.whl): download
# it from the course's page "Set up" into the folder of this notebook.
import importlib.util

needed = "gpulesson matplotlib pooch sklearn torchvision tqdm".split()
if not all(map(importlib.util.find_spec, needed)):
    %pip install --quiet "{requirement}"
"""
REPORTED = 2  # docutils' level of a warning
CODE_CELL = "gpulesson code cell "  # a comment with a number: where a code cell stood in the text


def lesson_notebook(
    app: Sphinx, script_blocks: list[Any], gallery_conf: Any, target_dir: Any
) -> NotebookNode:
    """Make a notebook of the blocks of a script; stands in for sphinx-gallery's function of that name."""
    install = new_code_cell(INSTALL.format(requirement=app.config.gpulesson_install).strip())
    found = [install, *cells(app, script_blocks, Path(target_dir))]
    for number, cell in enumerate(found):
        cell.id = f"cell-{number}"  # not nbformat's random one: unchanged sources give the same bytes
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook: NotebookNode = new_notebook(cells=found, metadata=metadata)
    return notebook


def parse(app: Sphinx, script_blocks: list[Any]) -> nodes.document:
    """Parse the text of a script in one piece, so that headings keep their levels; comments mark the code."""
    lines: list[str] = []
    for number, block in enumerate(script_blocks):
        lines += [""] * max(1, block.lineno - 1 - len(lines))  # so that messages have the line of the script
        lines += block.content.split("\n") if block.type == "text" else [f".. {CODE_CELL}{number}"]
    # as Sphinx adds them to pages
    lines += ["", app.config.rst_prolog or "", "", app.config.rst_epilog or ""]
    title = script_blocks[0].content
    scripts = executed_scripts(app)
    script = next(name for name, path in scripts.items() if title in path.read_text(encoding="utf-8"))
    settings = {"doctitle_xform": False, "report_level": REPORTED, "halt_level": 5, "warning_stream": False}
    app.env.prepare_settings(docname(app, script))  # directives and roles ask which page they are on
    with sphinx_domains(app.env):
        overrides = {**settings, "env": app.env}
        tree = publish_doctree(
            "\n".join(lines), source_path=str(scripts[script]), settings_overrides=overrides
        )
    for message in [*tree.findall(nodes.system_message), *tree.transform_messages]:
        if message["level"] >= REPORTED:
            logger.warning("notebook: %s", message.astext(), location=place(message))
    return tree


def cells(app: Sphinx, script_blocks: list[Any], folder: Path) -> Iterator[NotebookNode]:
    """Yield the cells: the text between two code cells is one, or several with questions between them."""
    pictures: dict[str, Any] = {}
    tree = parse(app, script_blocks)
    writer = Markdown(partial(page_title, app), partial(attach, pictures, Path(app.srcdir), folder))
    text: list[nodes.Node] = []
    for node in flatten(tree):
        if isinstance(node, nodes.comment) and node.astext().startswith(CODE_CELL):
            yield from text_cell(writer.blocks(text), pictures)
            number = int(node.astext().removeprefix(CODE_CELL))
            yield code_cell(script_blocks[number].content.strip())
            text.clear()
        elif isinstance(node, question):  # has a cell of its own
            yield from text_cell(writer.blocks(text), pictures)
            yield from text_cell(writer.block(node), pictures)
            text.clear()
        elif not isinstance(node, nodes.system_message):
            text.append(node)
    yield from text_cell(writer.blocks(text), pictures)


def code_cell(code: str) -> NotebookNode:
    """Make a cell; JupyterLab folds it as the page does, and Colab calls that a form."""
    if not code.startswith(FOLDED):
        plain: NotebookNode = new_code_cell(code)
        return plain
    title, _, rest = code.removeprefix(FOLDED).partition("\n")
    metadata = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"], "cellView": "form"}
    folded: NotebookNode = new_code_cell(f"# @title {title.strip()}\n{rest.strip()}", metadata=metadata)
    return folded


def flatten(parent: nodes.Element) -> Iterator[nodes.Node]:
    """Yield the titles and blocks of all sections."""
    for node in parent.children:
        yield from flatten(node) if isinstance(node, nodes.section) else [node]


def text_cell(source: str, pictures: dict[str, Any]) -> Iterator[NotebookNode]:
    """Yield a cell, if there is a text, with the pictures that it shows."""
    if source:
        yield new_markdown_cell(source, **{"attachments": dict(pictures)} if pictures else {})
    pictures.clear()


def attach(pictures: dict[str, Any], source_dir: Path, folder: Path, node: nodes.image) -> str:
    """Put a picture into the notebook, and return its address there."""
    uri = node["uri"]
    if "://" in uri:
        return str(uri)
    path = source_dir / uri.lstrip("/") if uri.startswith("/") else folder / uri
    if not path.is_file():
        raise UnknownNode(f"picture {uri}, there is no file {path}")
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    pictures[path.name] = {kind: base64.b64encode(path.read_bytes()).decode("ascii")}
    return f"attachment:{path.name}"


def page_title(app: Sphinx, node: addnodes.pending_xref) -> str:
    """Find the title of the page that `:doc:` names; other references need a text, the site is not built."""
    role, target = node["reftype"], node["reftarget"]
    page = docname_join(node["refdoc"], target)
    scripts = {docname(app, name): path for name, path in executed_scripts(app).items()}
    source = scripts.get(page, Path(app.srcdir) / f"{page}.rst")
    text = source.read_text(encoding="utf-8") if role == "doc" and source.is_file() else ""
    title = re.search(r"^(\S.*)\n([=*#~-])\2+$", text, re.M)
    if title is None:
        raise UnknownNode(f"this reference: give it a text, :{role}:`text <{target}>`")
    return title[1]


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
