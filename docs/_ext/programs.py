"""Runs a short program that a page shows, in a process of its own, and shows what it printed.

``.. run::`` has a program as its content; with an argument, ``.. run:: circle.py``, it shows the command that
runs a file of examples/scripts. ``.. planned:: --gpu T4`` has a training script: it is shown, then the
command that makes its plan. Then comes what was printed. One that fails, fails the build.
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
from .paths import examples_dir

SCRIPT = "train.py"
LABEL = "Output of this build"


class Run(SphinxDirective):
    """A program and its output."""

    has_content = True  # or an argument
    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        words = " ".join(self.arguments).split()
        if self.name == "planned":
            words = ["-m", "gpulesson", "plan", *words, SCRIPT]
        if bool(self.content) != (self.name == "planned" or not words):
            raise self.error(f"{self.name}: give it a program, or as an argument a file of examples/scripts")
        code, command = "\n".join(self.content), words or [SCRIPT]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) if code else examples_dir(self.env.app) / "scripts"
            if code:
                Path(folder, SCRIPT).write_text(code, encoding="utf-8")
            for script in map(folder.joinpath, words):
                if script.is_file():
                    self.env.note_dependency(str(script))
            done = subprocess.run(
                [sys.executable, *command], cwd=folder, capture_output=True, encoding="utf-8", check=False
            )
        if done.returncode:
            raise self.error(f"{self.name}: it ended with status {done.returncode}:\n{done.stderr}")
        for path in modules(self.env.app):  # what the program imports
            self.env.note_dependency(str(path))
        line, output = " ".join(["python", *command]), done.stdout.rstrip("\n")
        return [
            *([nodes.literal_block(code, code, language="python")] if code else []),
            *([nodes.literal_block(line, line, language="bash")] if words else []),
            nodes.paragraph(LABEL, LABEL, classes=["machine"]),
            nodes.literal_block(output, output, language="none", classes=["sphx-glr-script-out"]),
        ]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.freshness")
    app.add_directive("run", Run)
    app.add_directive("planned", Run)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
