"""The first page: what a GPU gained, and the lessons as cards.

``.. gain::`` shows its text, the first paragraph large, and the machine on which lesson 1 was recorded. Names
in braces, such as ``{times}``, become what was recorded, see `speeds`; where that is out of date, nothing is
shown. ``.. lesson-cards::`` links to all lessons.
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from .paths import docname, examples_dir, executed_scripts
from .recorded.files import Recording, RecordingError, load, read_cells
from .recorded.pages import recorded_on, recordings_digest, recordings_dir

LESSON = "01_is_there_a_gpu"
SPEEDS = re.compile(  # as one of its cells prints them, in billions of calculations a second
    r" *(?P<few>\S+) +(?P<many>\S+)  rows and columns\n"
    r" *(?P<cpu_few>\S+) +(?P<cpu_many>\S+)  (?P<cpu>.+)\n"
    r" *(?P<gpu_few>\S+) +(?P<gpu_many>\S+)  (?P<gpu>.+)"
)


class Gain(SphinxDirective):
    """What a GPU gained, and which."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        app, script = self.env.app, examples_dir(self.env.app) / f"{LESSON}.py"
        self.env.note_dependency(str(script))
        self.env.metadata[self.env.docname]["recordings"] = (LESSON, recordings_digest(app, LESSON))
        try:
            recording = load(recordings_dir(app) / f"{LESSON}.json")
        except RecordingError:  # there is none, or the lesson's page warns of it
            return []
        found = speeds(recording, script)
        if not found:
            return []
        text = ".. rst-class:: number\n\n" + "\n".join(self.content).format(**found)
        machine = nodes.paragraph("", recorded_on(recording), classes=["measured"])
        return [nodes.container("", *self.parse_text_to_nodes(text), machine, classes=["headline"])]


def speeds(recording: Recording, script: Path) -> dict[str, str]:
    """Return what was printed for the names of `SPEEDS`, and ``times``, how many times as fast the GPU was.

    Of a cell that was changed since it was recorded, nothing is returned.
    """
    current = {cell.hash for cell in read_cells(script)}
    for cell in recording.cells:
        if (found := SPEEDS.fullmatch("\n".join(cell.stdout))) and cell.hash in current:
            cpu, gpu = (float(found[name].replace(",", "")) for name in ("cpu_many", "gpu_many"))
            return {**found.groupdict(), "times": f"{gpu / cpu:.0f}"}
    return {}


class LessonCards(SphinxDirective):
    """A card for each lesson; `_ext.tables` puts its sentence and its minutes there."""

    def run(self) -> list[nodes.Node]:
        self.env.metadata[self.env.docname]["lists_lessons"] = True
        lessons = [docname(self.env.app, name) for name in executed_scripts(self.env.app) if "/" not in name]
        cards = ""
        for lesson in lessons:
            pictures = Path(self.env.srcdir, lesson).parent.glob(
                f"images/thumb/*_{Path(lesson).name}_thumb.*"
            )
            cards += "   .. container:: sphx-glr-thumbcontainer\n\n"
            for picture in pictures:  # as on the lessons' own list
                cards += (
                    f"      .. image:: /{picture.relative_to(self.env.srcdir).as_posix()}\n         :alt:\n\n"
                )
            cards += f"      :doc:`/{lesson}`\n\n"
        return self.parse_text_to_nodes(f".. container:: sphx-glr-thumbnails\n\n{cards}")


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("gain", Gain)
    app.add_directive("lesson-cards", LessonCards)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
