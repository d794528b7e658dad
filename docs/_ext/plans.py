"""Shows a plan of a short script, and the table of GPUs that plans know.

``.. planned:: --gpu T4`` has a script as its content: it is shown, then the command, then what this printed.
``.. gpus::`` renders the table of the package.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from gpulesson.planning.hardware import gpus

from .freshness import modules
from .tables import table

SCRIPT = "train.py"
TYPES = ("float32", "float16", "bfloat16")
HEADS = ["GPU", "memory", "GB/s", *TYPES, "Not seen in a document", "Vendor"]


class Planned(SphinxDirective):
    """The content is a training script; the arguments are options of the command."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        self.assert_has_content()
        code = "\n".join(self.content)
        options = " ".join(self.arguments).split()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, SCRIPT).write_text(code, encoding="utf-8")
            command = [sys.executable, "-m", "gpulesson", "plan", *options, SCRIPT]
            done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", check=False)
        if done.returncode:
            raise self.error(f"the plan ended with status {done.returncode}:\n{done.stderr}")
        for path in modules(self.env.app):
            self.env.note_dependency(str(path))
        line = " ".join(["python -m gpulesson plan", *options, SCRIPT])
        label = "Output of this build"
        output = done.stdout.rstrip("\n")
        return [
            nodes.literal_block(code, code, language="python"),
            nodes.literal_block(line, line, language="bash"),
            nodes.paragraph(label, label, classes=["machine"]),
            nodes.literal_block(output, output, language="none", classes=["sphx-glr-script-out"]),
        ]


class Gpus(SphinxDirective):
    """The package's table: memory in GiB, rates in 10¹² operations a second."""

    columns: ClassVar[dict[str, str]] = {"memory_gib": "memory", "bandwidth": "GB/s"}

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(Path(gpus.__file__).with_suffix(".csv")))
        return [table([HEADS, *map(self._row, gpus.read())], "gpus")]

    def _row(self, gpu: gpus.Gpu) -> list[object]:
        rates = [f"{gpu.rates[name] / 1e12:g}" if name in gpu.rates else "" for name in TYPES]
        unseen = ", ".join(self.columns.get(name, name) for name in gpu.unseen)
        link = nodes.reference("", "document", refuri=gpu.source)
        memory, speed = f"{gpu.memory / 2**30:.2f}", f"{gpu.bandwidth / 1e9:g}"
        return [gpu.name, memory, speed, *rates, unseen, [link]]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.freshness")
    app.setup_extension("_ext.tables")
    app.add_directive("planned", Planned)
    app.add_directive("gpus", Gpus)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
