"""Puts the recorded output of a GPU beside the output of this build, cell by cell, and says whose each is.

A lesson that ran has left a mark behind each cell (cell_marks.py). When its page is read, the output around
each mark gets a label, and a box with the recording of that very cell follows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata

from .cell_marks import gather, ran_cell
from .freshness import digest, fingerprint
from .lesson_cells import read_cells
from .recorded_boxes import outdated_box, recorded_box, this_build
from .recording import Recording, RecordingError
from .recording_files import load

logger = logging.getLogger(__name__)


class PlaceOutputs(SphinxTransform):
    """Label the output of each cell, and put the recording of the cell behind it."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        marks = list(self.document.findall(ran_cell))
        if not marks:
            return
        lesson = Path(self.env.docname).name
        facts = self.env.metadata[self.env.docname]
        facts["recordings"] = (lesson, recordings_digest(self.app, lesson))
        recording = self.recording(lesson)
        known = {cell.hash: cell for cell in recording.cells} if recording else {}
        if recording and (stale := [mark["hash"] for mark in marks if mark["hash"] not in known]):
            cells = read_cells(Path(self.env.doc2path(self.env.docname)).with_suffix(".py"))
            facts["stale_cells"] = [f"line {c.line}: {c.first_line}" for c in cells if c.hash in stale]
        for mark in marks:
            live = gather(mark)
            group = this_build(mark["machine"], live) if live else None
            box = None
            if recording and mark["hash"] in known:
                box = recorded_box(recording, known[mark["hash"]], live)
            elif recording and live:
                box = outdated_box(recording)
            mark.replace_self([node for node in (group, box) if node])

    def recording(self, lesson: str) -> Recording | None:
        path = recordings_dir(self.app) / f"{lesson}.json"
        if not path.exists():
            return None
        try:
            return load(path)
        except RecordingError as error:
            logger.warning("%s", error, type="recordings", subtype="refused", location=self.env.docname)
            return None


def recordings_dir(app: Sphinx) -> Path:
    return Path(app.srcdir) / "recordings"


def recordings_digest(app: Sphinx, lesson: str = "*") -> str:
    """Digest the file and the figures of a lesson's recording, or of all."""
    folder = recordings_dir(app)
    return digest(
        fingerprint(path) for pattern in (f"{lesson}.json", f"{lesson}/*") for path in folder.glob(pattern)
    )


def changed_recordings(app: Sphinx, env: BuildEnvironment, *changes: set[str]) -> list[str]:
    """Read a page again whose recording was made, changed or removed; no lesson has to run for that."""
    pages = {name: facts["recordings"] for name, facts in env.metadata.items() if "recordings" in facts}
    return [name for name, (lesson, known) in pages.items() if recordings_digest(app, lesson) != known]


def list_outdated(app: Sphinx, env: BuildEnvironment) -> None:
    """List the cells that changed since they were recorded; in a release build, that is a warning."""
    for docname, facts in sorted(env.metadata.items()):
        if cells := facts.get("stale_cells"):
            lesson = docname.rpartition("/")[2]
            message = (
                "recorded output is out of date for %d cells of %s (nox -s record -- %s renews it):\n  %s"
            )
            values = (len(cells), lesson, lesson, "\n  ".join(cells))
            if app.config.gpulesson_release:
                logger.warning(message, *values, type="recordings", subtype="outdated")
            else:
                logger.info(message, *values)


def refuse_strays(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of recordings that belong to no page."""
    lessons = {facts["recordings"][0] for facts in env.metadata.values() if "recordings" in facts}
    for path in sorted(recordings_dir(app).glob("*.json")):
        if path.stem not in lessons:
            message = "recording recordings/%s: there is no lesson %s. Rename it, or remove it."
            logger.warning(message, path.name, path.stem, type="recordings", subtype="refused")


def setup(app: Sphinx) -> ExtensionMetadata:
    release = "build for a release: recorded output that is out of date is a warning"
    app.add_config_value("gpulesson_release", False, "", types=[bool], description=release)
    app.setup_extension("_ext.cell_marks")
    app.add_transform(PlaceOutputs)
    app.connect("env-get-outdated", changed_recordings)
    app.connect("env-updated", list_outdated)
    app.connect("env-updated", refuse_strays)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
