"""The first page: what a GPU gained, the lessons as cards, and the picture that messengers show of the site.

``.. gain::`` shows its text, the first paragraph large, and on what lesson 1 was recorded. Names in braces,
such as ``{times}``, become what was recorded, see `speeds`; where that is out of date, nothing is shown.
``.. lesson-cards::`` links to all lessons. The picture is drawn in a build with the site's address, of what
the page says: its title, the changed lines of its script, two paragraphs on the gain.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
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
PREVIEW = "_static/preview.png"
WIDTH, HEIGHT, MARGIN = 1200, 630, 56  # pixels
BRAND, *INKS = "#2b4f81", "#22733a", "black", "#555555"  # of the site's name, and of what is said of the gain
# ink and ground of a line that goes, or comes: the light ones of docs/_static/gpulesson.css
COLOURS = {"-": ("#8a0000", "#ffecec"), "+": ("#00520f", "#e3f8e3")}


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
        card = "   .. container:: sphx-glr-thumbcontainer\n\n      :doc:`/{}`\n\n"
        cards = "".join(map(card.format, lessons))
        return self.parse_text_to_nodes(f".. container:: sphx-glr-thumbnails\n\n{cards}")


def show_preview(app: Sphinx, env: BuildEnvironment) -> None:
    """Draw the picture, and name it, with its words, in the head of each page."""
    if app.config.html_baseurl and app.builder.name == "html":
        words = preview_words(env.get_doctree(app.config.root_doc))
        path = Path(app.outdir, PREVIEW)
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn(app.config.project, *words).savefig(path)
        app.config.ogp_image, app.config.ogp_image_alt = PREVIEW, " | ".join([words[0], *words[1], *words[2]])


def preview_words(page: nodes.document) -> tuple[str, list[str], list[str]]:
    """Return the page's title, its script's changed lines, and of the gain two paragraphs and the machine."""
    differences = [
        block.astext() for block in page.findall(nodes.literal_block) if block["language"] == "diff"
    ]
    changed = [line for line in "\n".join(differences).splitlines() if line[:1] in COLOURS]
    code = [line for line in changed if line[1:].strip() and '"""' not in line]
    boxes = [found for found in page.findall(nodes.container) if "headline" in found["classes"]]
    gain = [part.astext() for found in boxes for part in (*found[:2], found[-1])]
    return next(page.findall(nodes.title)).astext(), code, gain


def drawn(site: str, title: str, code: list[str], gain: list[str]) -> Any:
    """Draw the words, from the top to the bottom, into a figure of matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72)  # a point is a pixel
    y = MARGIN

    def write(text: str, size: int, space: int, **style: Any) -> None:
        nonlocal y
        figure.text(MARGIN / WIDTH, 1 - y / HEIGHT, text, size=size, va="top", **style)
        y += space

    write(site, 26, 42, color=BRAND)
    write(title, 50, 88, weight="bold")
    longest = max(map(len, code), default=0)
    for line in code:
        ink, ground = COLOURS[line[0]]
        band = {"facecolor": ground, "edgecolor": "none", "pad": 7}
        write(line.ljust(longest), 20, 37, color=ink, family="monospace", bbox=band)
    y += 26
    for text, size, space, ink in zip(gain, (44, 22, 18), (64, 32, 0), INKS, strict=False):
        for line in textwrap.wrap(text, 90):
            write(line, size, space, color=ink)
    return figure


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_directive("gain", Gain)
    app.add_directive("lesson-cards", LessonCards)
    app.connect("env-updated", show_preview)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
