"""Runs a short program that a page shows, in a process of its own, and shows what it printed.

``.. run::`` has a program as its content. ``.. planned:: --gpu T4`` has a training script: it is shown, then
the command that makes its plan, then what this printed. One that fails, fails the build.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from .freshness import modules

SCRIPT = "train.py"
LABEL = "Output of this build"


class Run(SphinxDirective):
    """A program and its output."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        self.assert_has_content()
        code = "\n".join(self.content)
        planned = ["-m", "gpulesson", "plan", *" ".join(self.arguments).split()] * (self.name == "planned")
        command = [*planned, SCRIPT]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, SCRIPT).write_text(code, encoding="utf-8")
            done = subprocess.run(
                [sys.executable, *command], cwd=folder, capture_output=True, encoding="utf-8", check=False
            )
        if done.returncode:
            raise self.error(f"{self.name}: it ended with status {done.returncode}:\n{done.stderr}")
        for path in modules(self.env.app):  # what the program imports
            self.env.note_dependency(str(path))
        line, output = " ".join(["python", *command]), done.stdout.rstrip("\n")
        return [
            nodes.literal_block(code, code, language="python"),
            *([nodes.literal_block(line, line, language="bash")] if planned else []),
            nodes.paragraph(LABEL, LABEL, classes=["machine"]),
            nodes.literal_block(output, output, language="none", classes=["sphx-glr-script-out"]),
        ]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.freshness")
    app.add_directive("run", Run)
    app.add_directive("planned", Run)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
