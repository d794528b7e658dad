"""Puts the recorded output of a GPU beside the output of this build, cell by cell, each with its machine.

While a lesson runs, `mark_cell` writes a mark after each cell into the generated page: the cell's hash, the
machine that ran it, and the data. When the page is read, a sentence above the first output names that
machine, and a box shows the recording of each cell whose text or whose figure was another on the GPU; figures
are compared by their descriptions. Notebooks and scripts are made from the lesson itself, without marks. The
table of all recordings says on which GPU each lesson was recorded, when, and how many of its cells are up to
date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import imagesize
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from ..boxes import fold
from ..freshness import digest, fingerprint
from ..paths import docname, executed_scripts
from ..tables import table
from .files import Figure, RecordedCell, Recording, RecordingError, Run, lines_of, load, read_cells, sources

logger = logging.getLogger(__name__)

HEAD: list[object] = ["Lesson", "Recorded on", "Data", "Wall time", "Up to date"]
NONE = (
    "No GPU run has been recorded yet. All output on these pages is of the machine that built them, which "
    "each page names."
)
ASIDE = "Going further"  # begins the name of a folded cell whose output is folded, too

# -- the mark behind a cell


class ran_cell(nodes.Invisible, nodes.Element):
    """Marks the end of a cell: its `hash`, the `machine` that ran it, the `data` it knows."""


class RanCell(SphinxDirective):
    """The mark that `mark_cell` leaves."""

    required_arguments = 1
    option_spec: ClassVar[Any] = {"machine": directives.unchanged, "data": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        machine, data = (self.options.get(name, "") for name in self.option_spec)
        return [ran_cell("", hash=self.arguments[0], machine=machine, data=data)]


def mark_cell(block: Any, block_vars: dict[str, Any], gallery_conf: Any) -> str:
    """Return the mark of the cell that just ran; for sphinx-gallery it is an image scraper's markup."""
    cells = read_cells(Path(block_vars["src_file"]))
    key = next(cell.hash for cell in cells if cell.line == block.lineno)
    data = "; ".join(sorted(sources(block_vars["example_globals"])))
    return f"\n.. ran-cell:: {key}\n   :machine: {machine()}\n   :data: {data}\n"


def machine() -> str:
    """Name the device on which a lesson computes in this process, if it has loaded torch."""
    if "torch" not in sys.modules:
        return ""
    import torch

    from gpulesson.device import choose_device, device_name

    device = choose_device()
    name = "CPU" if device.type == "cpu" else device_name(device)
    return f"{name}, PyTorch {torch.__version__}"


def gather(mark: ran_cell) -> list[nodes.Node]:
    """Take the figures before a mark and the texts after it out of the page."""
    siblings, place = mark.parent.children, mark.parent.index(mark)
    first, last = place, place + 1
    while first > 0 and is_figure(siblings[first - 1]):
        first -= 1
    while last < len(siblings) and is_text(siblings[last]):
        last += 1
    found = siblings[first:place] + siblings[place + 1 : last]
    for node in found:
        mark.parent.remove(node)
    return found


def is_figure(node: nodes.Node) -> bool:
    return isinstance(node, nodes.image) and "figure" in node["classes"]


def is_text(node: nodes.Node) -> bool:
    if isinstance(node, nodes.raw):
        return "output_html" in node.astext()
    return isinstance(node, nodes.literal_block) and "sphx-glr-script-out" in node["classes"]


# -- the page of a lesson


class PlaceOutputs(SphinxTransform):
    """Label the output of each cell, and put the cell's recording beside it."""

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
        said, first, boxes = "", None, 0
        for mark in marks:
            live, cell = gather(mark), known.get(mark["hash"])
            box = (
                recorded_box(recordings_dir(self.app), recording, cell, live) if recording and cell else None
            )
            group = nodes.container("", *live, classes=["live"]) if live else None
            if group and mark["machine"] != said:
                if said:
                    group.insert(0, label(f"Computed on: {mark['machine'].partition(',')[0]}"))
                said = mark["machine"]
            found: list[nodes.Node] = [node for node in (group, box) if node]
            if group and box and any(box.findall(nodes.image)):  # the GPU's picture comes first
                found = [box, fold(f"The same on this build's machine: {short(said)}", group, kind="same")]
            first, boxes = first or (mark if found else None), boxes + bool(box)
            place = mark.parent.index(mark)
            code = mark.parent[place - 1]
            if isinstance(code, nodes.admonition) and code[0].astext().startswith(ASIDE):
                code += found
            else:
                mark.parent.insert(place + 1, found)
        if first:
            shown = recording if boxes else None
            machine = next((mark["machine"] for mark in marks if mark["machine"]), "")
            text = introduction(machine, shown, marks[-1]["data"])
            first.parent.insert(first.parent.index(first), text)
        for mark in marks:
            mark.parent.remove(mark)

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
    """Read a page again if its recording was made, changed or removed; a lesson with parts runs, too."""
    pages = {name: facts["recordings"] for name, facts in env.metadata.items() if "recordings" in facts}
    return [name for name, (lesson, known) in pages.items() if recordings_digest(app, lesson) != known]


def list_outdated(app: Sphinx, env: BuildEnvironment) -> None:
    """List the cells that changed since they were recorded; in a release build, that is a warning."""
    for page, facts in sorted(env.metadata.items()):
        if cells := facts.get("stale_cells"):
            lesson = page.rpartition("/")[2]
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


# -- the boxes below a cell


def introduction(machine: str, recording: Recording | None, data: str) -> nodes.paragraph:
    """Say once a page what computed its outputs, and what is in its boxes."""
    text = nodes.paragraph("", classes=["machine", "machines"])
    if machine:
        device, _, version = short(machine).partition(", ")
        device = "a CPU" if device == "CPU" else f"the {device}"
        text += nodes.Text(f"All outputs here were computed on {device} with {version}.")
    if recording:
        others = sorted({*recording.data} - {*data.split("; ")})
        text += [nodes.Text(" Boxes marked "), nodes.emphasis("", "Recorded")]
        text += nodes.Text(f" show what a real GPU printed or drew: {short(recorded_on(recording))}.")
        if others:
            text += nodes.Text(
                f" That run had other data ({'; '.join(others)}), so its losses and accuracies differ."
            )
    return text


def short(machine: str) -> str:
    """Shorten the version: PyTorch 2.15.0+cpu is PyTorch 2.15."""
    return re.sub(r"(?<=PyTorch )(\d+\.\d+)[^,]*", r"\1", machine)


def recorded_box(
    recordings: Path, recording: Recording, cell: RecordedCell, live: Sequence[nodes.Node]
) -> nodes.container | None:
    """Show what the GPU put out; None if that was the same."""
    if same(cell, live):
        return None
    content = shown(recordings / recording.lesson, cell)
    content = content or [nodes.paragraph("", "This cell printed nothing there.")]
    return nodes.container("", label(f"Recorded: {recording.run.gpu}"), *content, classes=["recorded"])


def recorded_on(recording: Recording) -> str:
    run = recording.run
    return f"{run.gpu}, PyTorch {run.torch}, {run.date}"


def label(text: str) -> nodes.paragraph:
    return nodes.paragraph(text, text, classes=["machine"])


def shown(folder: Path, cell: RecordedCell) -> list[nodes.Node]:
    """Show figures, text and HTML in sphinx-gallery's order and classes."""
    found = [picture(folder, figure) for figure in cell.figures]
    if cell.stdout:
        text = "\n".join(cell.stdout)
        found.append(nodes.literal_block(text, text, language="none", classes=["sphx-glr-script-out"]))
    if cell.html:
        html = "\n".join(cell.html)
        found.append(nodes.raw("", f'<div class="output_html">\n{html}\n</div>', format="html"))
    return found


def picture(folder: Path, figure: Figure) -> nodes.Node:
    """Show a picture; its size keeps the place free until it is loaded."""
    width, height = imagesize.get(folder / figure.file)
    size = {"width": str(figure.width), "height": f"{figure.width * height / width:.0f}"}
    uri, classes = f"/recordings/{folder.name}/{figure.file}", ["sphx-glr-single-img", "no-scaled-link"]
    return nodes.image("", uri=uri, alt=figure.alt, classes=classes, **size)


def same(cell: RecordedCell, live: Sequence[nodes.Node]) -> bool:
    """Return whether this build and the GPU put out the same text and the same figures, and no HTML."""
    texts = [lines_of(node.astext()) for node in live if isinstance(node, nodes.literal_block)]
    pictures = [
        node["alt"] for node in live if isinstance(node, nodes.image) and "only-light" in node["classes"]
    ]
    drawn = [figure.alt for figure in cell.figures]
    return not cell.html and texts == ([cell.stdout] if cell.stdout else []) and pictures == drawn


# -- the page of all recordings


class MeasuredTable(SphinxDirective):
    """A row for each lesson, the machines, and the content; or a sentence if nothing was recorded."""

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
            link, _ = self.parse_inline(f":doc:`/{docname(self.env.app, name)}`")
            yield [link, *(row(recording, lessons[name]) if recording else ["not recorded", "", "", ""])]


def row(recording: Recording, script: Path) -> list[object]:
    cells = read_cells(script)
    current = {cell.hash for cell in cells} & {cell.hash for cell in recording.cells}
    return [
        [nodes.Text(recording.run.gpu), nodes.Text(recording.run.date)],
        "; ".join(recording.data) or "none",
        f"{sum(cell.seconds for cell in recording.cells):.1f} s",
        f"{len(current)} of {len(cells)} cells",
    ]


def described(run: Run) -> nodes.list_item:
    """Describe the machine and the software of one run."""
    several = f"{run.gpu_count} × " if run.gpu_count > 1 else ""
    text = (
        f"{several}{run.gpu}, {run.date}: PyTorch {run.torch}, built for {run.built_for}; "
        f"torchvision {run.torchvision}; driver {run.driver}; Python {run.python}; "
        f"gpulesson {run.gpulesson}; {run.platform}"
    )
    return nodes.list_item("", nodes.paragraph(text, text))


def setup(app: Sphinx) -> ExtensionMetadata:
    release = "build for a release: recorded output that is out of date is a warning"
    app.add_config_value("gpulesson_release", False, "", types=[bool], description=release)
    app.setup_extension("_ext.tables")  # reads the page of the measured table again
    app.add_node(ran_cell)
    app.add_directive("ran-cell", RanCell)
    app.add_directive("measured-table", MeasuredTable)
    app.add_transform(PlaceOutputs)
    app.connect("env-get-outdated", changed_recordings)
    app.connect("env-updated", list_outdated)
    app.connect("env-updated", refuse_strays)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
