"""Exercises and their folded solutions; starter and solution are files, to be downloaded and tested."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata

from .box_nodes import exercise
from .boxes import Box
from .lesson_files import examples_dir

logger = logging.getLogger(__name__)

DIFFICULTIES = ("easy", "medium", "hard")


class FileBox(Box):
    """A box that shows a file of examples/exercises or examples/solutions."""

    def source(self, folder: str, name: str) -> list[nodes.Node]:
        """Show a file of exercises/ or solutions/ and offer it as a download; warn if it does not exist."""
        path = examples_dir(self.env.app) / folder / name
        if not path.is_file():
            logger.warning("%s: there is no file %s", self.name, path, location=self.get_location())
            return []
        relative = os.path.relpath(path, self.env.srcdir)
        code = path.read_text(encoding="utf-8").rstrip()
        # Sphinx copies what such a link names, and reads the page again when it has changed
        link = addnodes.download_reference("", "", nodes.literal(name, name), reftarget=f"/{relative}")
        return [
            nodes.literal_block(code, code, language="python"),
            nodes.paragraph("", "", nodes.Text("Download "), link, classes=["page-only"]),
        ]


class Exercise(FileBox):
    """A task with its starter file, minutes and difficulty."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[Any] = {
        "starter": directives.unchanged_required,
        "minutes": directives.nonnegative_int,
        "difficulty": lambda argument: directives.choice(argument, DIFFICULTIES),
    }

    def run(self) -> list[nodes.Node]:
        minutes, difficulty = self.options.get("minutes"), self.options.get("difficulty")
        facts = [f"{minutes} min" if minutes is not None else "", difficulty or ""]
        node = exercise("", minutes=minutes)
        box = self.box(node, f"Exercise: {self.arguments[0]}", " · ".join(filter(None, facts)))
        if starter := self.options.get("starter"):
            box += self.fold(f"The starter, {starter}", *self.source("exercises", starter))
        return [box]


class Solution(FileBox):
    """The folded answer: the code of a file, and what there is to say about it."""

    option_spec: ClassVar[Any] = {"file": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        file = self.options.get("file")
        code = self.source("solutions", file) if file else []
        return [self.fold("Solution", *self.parse_content_to_nodes(), *code)]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.boxes")
    app.add_directive("exercise", Exercise)
    app.add_directive("solution", Solution)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
