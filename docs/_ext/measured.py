"""The table of recordings: which lesson was recorded on what, when, and how much of it still holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from .lesson_cells import read_cells
from .lesson_files import docname, executed_scripts
from .recorded_boxes import duration
from .recording import Recording, RecordingError, Run
from .recording_files import load
from .recordings import recordings_digest, recordings_dir
from .tables import table

NONE = (
    "No GPU run has been recorded yet. All output on these pages is of the machine that built them, and its "
    "label says which that is."
)


class MeasuredTable(SphinxDirective):
    """A row for each lesson, the machines, the content below; or the sentence that there is no recording."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        facts = self.env.metadata[self.env.docname]
        facts["recordings"] = ("*", recordings_digest(self.env.app))
        facts["lists_lessons"] = True  # a changed lesson changes what is up to date
        lessons = {name: path for name, path in executed_scripts(self.env.app).items() if "/" not in name}
        found = {name: self.recording(path) for name, path in lessons.items()}
        if not any(found.values()):
            return [nodes.paragraph(NONE, NONE, classes=["unrecorded"])]
        rows = table([HEAD, *self.rows(lessons, found)], "measured-table")
        runs = dict.fromkeys(recording.run for recording in found.values() if recording)
        return [rows, nodes.bullet_list("", *map(described, runs)), *self.parse_content_to_nodes()]

    def recording(self, script: Path) -> Recording | None:
        try:
            return load(recordings_dir(self.env.app) / f"{script.stem}.json")
        except RecordingError:  # there is none, or the lesson's page warns of it
            return None

    def rows(self, lessons: dict[str, Path], found: dict[str, Recording | None]) -> Iterator[list[object]]:
        for name, recording in found.items():
            page = self.link(docname(self.env.app, name))
            yield [page, *(row(recording, lessons[name]) if recording else ["not recorded", "", "", ""])]

    def link(self, page: str) -> list[nodes.Node]:
        """Link to a page by its title, which is known when all pages have been read."""
        options = {"reftype": "doc", "refdomain": "std", "reftarget": f"/{page}", "refexplicit": False}
        reference = addnodes.pending_xref("", nodes.inline("", page), refdoc=self.env.docname, **options)
        return [reference]


HEAD: list[object] = ["Lesson", "Recorded on", "Data", "Wall time", "Up to date"]


def row(recording: Recording, script: Path) -> list[object]:
    cells = read_cells(script)
    current = {cell.hash for cell in cells} & {cell.hash for cell in recording.cells}
    return [
        f"{recording.run.gpu}, {recording.run.date}",
        "; ".join(recording.data) or "none",
        duration(sum(cell.seconds for cell in recording.cells)),
        f"{len(current)} of {len(cells)} cells",
    ]


def described(run: Run) -> nodes.list_item:
    """Tell what is common to the lessons of one run."""
    several = f"{run.gpu_count} × " if run.gpu_count > 1 else ""
    text = (
        f"{several}{run.gpu}, {run.date}: PyTorch {run.torch}, built for {run.built_for}; "
        f"torchvision {run.torchvision}; driver {run.driver}; Python {run.python}; "
        f"gpulesson {run.gpulesson}; {run.platform}"
    )
    return nodes.list_item("", nodes.paragraph(text, text))


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.recordings")
    app.setup_extension("_ext.tables")
    app.add_directive("measured-table", MeasuredTable)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
