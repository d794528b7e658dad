"""Clean notebooks: sphinx-gallery's conversion knows few constructs, and leaves the others as raw text.

Here the text of a lesson is parsed with Sphinx's roles and directives, our boxes included, and written as
Markdown. The only hook is sphinx-gallery's function that turns the blocks of a script into a notebook. The
exercises become notebooks, too. If the site has an address, notebooks link to it.
"""

from __future__ import annotations

import ast
import base64
import inspect
import mimetypes
import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.core import publish_doctree
from nbformat import NotebookNode, writes
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import docname_join, logging
from sphinx.util.docutils import sphinx_domains
from sphinx.util.typing import ExtensionMetadata
from sphinx_gallery import gen_rst

from gpulesson_tools.exercises import find

from . import install_cell
from .boxes import question
from .cells import FOLDED
from .markdown import Markdown, UnknownNode, escape, place
from .paths import docname, examples_dir, executed_scripts, gallery_dir

logger = logging.getLogger(__name__)

REPORTED = 2  # docutils' level of a warning
CODE_CELL = "gpulesson code cell "  # a comment with a number marks the place of a code cell in the text
INSTALL = "install"  # instead of a number: the cell that installs, after the title
CHECK = """\
# Checks what you have written above. Run your cell first, then this one.
import gpulesson

gpulesson.check({number}, {functions})
"""


def lesson_notebook(
    app: Sphinx, script_blocks: list[Any], gallery_conf: Any, target_dir: Any
) -> NotebookNode:
    """Make a notebook of the blocks of a script; it replaces sphinx-gallery's function of that name."""
    return notebook(cells(app, script_blocks, Path(target_dir)))


def notebook(found: Iterable[NotebookNode]) -> NotebookNode:
    """Put cells together; unchanged sources give the same bytes."""
    numbered = list(found)
    for number, cell in enumerate(numbered):
        cell.id = f"cell-{number}"  # not nbformat's random one
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "accelerator": "GPU",  # asks Colab for one
    }
    made: NotebookNode = new_notebook(cells=numbered, metadata=metadata)
    return made


def install(app: Sphinx) -> NotebookNode:
    """Make the cell that installs what a notebook needs."""
    _, _, code = inspect.getsource(install_cell).partition('"""\n\n')
    call = f"install_gpulesson({app.config.gpulesson_wheel!r}, {address(app)!r})".replace("'", '"')
    return code_cell(f"{FOLDED} Install what is missing\n{code}\n\n{call}")


def address(app: Sphinx, page: str = "") -> str:
    """Return the address of the site, or of a page there; empty if the site has none."""
    site: str = app.config.html_baseurl
    return site and site + page


def parse(app: Sphinx, script_blocks: list[Any]) -> nodes.document:
    """Parse the text of a script as one document, which keeps heading levels; comments mark the code."""
    lines: list[str] = []
    for number, block in enumerate(script_blocks):
        lines += [""] * max(1, block.lineno - 1 - len(lines))  # so that messages have the line of the script
        lines += block.content.split("\n") if block.type == "text" else [f".. {CODE_CELL}{number}"]
        lines += ["", f".. {CODE_CELL}{INSTALL}"] if number == 0 else []
    # as Sphinx adds them to pages
    lines += ["", app.config.rst_prolog or "", "", app.config.rst_epilog or ""]
    title = script_blocks[0].content
    scripts = executed_scripts(app)
    script = next(name for name, path in scripts.items() if title in path.read_text(encoding="utf-8"))
    settings = {"doctitle_xform": False, "report_level": REPORTED, "halt_level": 5, "warning_stream": False}
    app.env.prepare_settings(docname(app, script))  # read by directives and roles
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
    """Yield the cells: text between two code cells is one, and a question in it a separate one."""
    pictures: dict[str, Any] = {}
    tree = parse(app, script_blocks)
    picture = partial(attach, pictures, Path(app.srcdir), folder)
    writer = Markdown(partial(page_title, app), picture, partial(link, app))
    text: list[nodes.Node] = []
    for node in flatten(tree):
        if isinstance(node, nodes.comment) and node.astext().startswith(CODE_CELL):
            yield from text_cell(writer.blocks(text), pictures)
            number = node.astext().removeprefix(CODE_CELL)
            yield install(app) if number == INSTALL else code_cell(script_blocks[int(number)].content.strip())
            text.clear()
        elif isinstance(node, question):  # gets a separate cell
            yield from text_cell(writer.blocks(text), pictures)
            yield from text_cell(writer.block(node), pictures)
            text.clear()
        elif not isinstance(node, nodes.system_message):
            text.append(node)
    yield from text_cell(writer.blocks(text), pictures)


def code_cell(code: str) -> NotebookNode:
    """Make a cell; JupyterLab folds it as the page does, Colab as a form."""
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
    """Yield a cell with the pictures that it shows, if there is a text."""
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
    """Find the title of the page that `:doc:` names; other references need a text, no page is built yet."""
    role, target = node["reftype"], node["reftarget"]
    page = docname_join(node["refdoc"], target)
    scripts = {docname(app, name): path for name, path in executed_scripts(app).items()}
    source = scripts.get(page, Path(app.srcdir) / f"{page}.rst")
    text = source.read_text(encoding="utf-8") if role == "doc" and source.is_file() else ""
    title = re.search(r"^(\S.*)\n([=*#~-])\2+$", text, re.M)
    if title is None:
        raise UnknownNode(f"this reference: give it a text, :{role}:`text <{target}>`")
    return title[1]


def link(app: Sphinx, node: addnodes.pending_xref) -> str:
    """Find the address of the target of `:doc:` or `:ref:`, if the site has one."""
    role, target = node["reftype"], node["reftarget"]
    if role == "doc":
        return address(app, f"{docname_join(node['refdoc'], target)}.html")
    pages = {path.stem: path for path in Path(app.srcdir).glob("*.rst")} if role == "ref" else {}
    pages |= {docname(app, name): path for name, path in executed_scripts(app).items()} if pages else {}
    for page, path in pages.items():
        if re.search(rf"^(?:# )?\.\. _{re.escape(target)}:", path.read_text(encoding="utf-8"), re.M | re.I):
            return address(app, f"{page}.html#{nodes.make_id(target)}")
    return ""


def exercise_notebook(app: Sphinx, script: Path) -> NotebookNode:
    """Make a notebook of a starter: the program in one cell, the check in the next."""
    code = script.read_text(encoding="utf-8").strip()
    line = (ast.get_docstring(ast.parse(code)) or script.stem).partition("\n")[0]
    title, _, task = line.partition(": ")
    task = escape(task[:1].upper() + task[1:])
    text = f"# {escape(title)}\n\n{task} Work in the second cell, and run it. Then check it."
    parts = [new_markdown_cell(text), install(app), new_code_cell(code)]
    if number := re.fullmatch(r"exercise_(\d\d)", script.stem):
        names = [task.name for task in find(number[1]).tasks()]
        functions = ", ".join(f"{name}={name}" for name in names)
        parts.append(new_code_cell(CHECK.format(number=int(number[1]), functions=functions).strip()))
    return notebook(parts)


def write_exercises(app: Sphinx) -> None:
    """Write a notebook for each starter, and remove those of starters that are gone."""
    folder, starters = gallery_dir(app) / "exercises", sorted((examples_dir(app) / "exercises").glob("*.py"))
    for script in starters:
        write(exercise_notebook(app, script), folder / f"{script.stem}.ipynb")
    for old in {*folder.glob("*.ipynb")} - {folder / f"{script.stem}.ipynb" for script in starters}:
        old.unlink()


def write(made: NotebookNode, path: Path) -> None:
    """Write a notebook, unless the file is up to date."""
    text = writes(made) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def launchers(app: Sphinx, page: str) -> dict[str, str]:
    """Return the addresses that open a page's notebook in a browser; empty without a repository on GitHub.

    Colab and Kaggle open a notebook of a repository, Binder a whole repository. The cell that installs then
    needs the site.
    """
    source = Path(app.srcdir, f"{page}.ipynb")
    host, _, repository = app.config.gpulesson_repository.partition("github.com/")
    branch = app.config.gpulesson_course_branch
    if not (host and repository and branch and address(app) and source.is_file()):
        return {}
    file = f"lessons/{source.name}"
    on_github = f"{repository}/blob/{branch}/{file}"
    return {
        "Colab": f"https://colab.research.google.com/github/{on_github}",
        "Kaggle": f"https://kaggle.com/kernels/welcome?src=https://github.com/{on_github}",
        "Binder (no GPU)": f"https://mybinder.org/v2/gh/{repository}/{branch}?labpath={file}",
    }


def offer_launchers(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document
) -> None:
    if page == app.config.root_doc:  # opens the first lesson
        page = docname(app, next(iter(executed_scripts(app)), page))
    context["launchers"] = launchers(app, page)


def take_over(app: Sphinx) -> None:
    """Make sphinx-gallery call us."""
    gen_rst.jupyter_notebook = partial(lesson_notebook, app)


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.publishing")
    values = {
        "gpulesson_wheel": "the package's file, which a notebook installs",
        "gpulesson_course_branch": "the branch of the repository that holds the unpacked course",
    }
    for name, description in values.items():
        app.add_config_value(name, "", "html", types=[str], description=description)
    app.connect("builder-inited", take_over, priority=450)  # sphinx-gallery writes notebooks at 500
    app.connect("builder-inited", write_exercises, priority=550)
    app.connect("html-page-context", offer_launchers)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
