"""Runs a short program that a page shows, in a process of its own, and shows what it printed."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from .freshness import modules


class Run(SphinxDirective):
    """The content is a program: it and its output are shown; one that fails, fails the build."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        self.assert_has_content()
        code = "\n".join(self.content)
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=folder, capture_output=True, encoding="utf-8", check=False
            )
        if done.returncode:
            raise self.error(f"the program ended with status {done.returncode}:\n{done.stderr}")
        for path in modules(self.env.app):  # what the program imports
            self.env.note_dependency(str(path))
        label = "Output of this build"
        output = done.stdout.rstrip("\n")
        return [
            nodes.literal_block(code, code, language="python"),
            nodes.paragraph(label, label, classes=["machine"]),
            nodes.literal_block(output, output, language="none", classes=["sphx-glr-script-out"]),
        ]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.freshness")
    app.add_directive("run", Run)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
