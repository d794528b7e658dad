"""Draws the time of a step against the number of GPUs, from the package's model, and lists the links.

``.. steps-by-ranks:: H100`` has as options what one GPU computes and how much all of them exchange. The chart
and its table are made when the page is built. ``.. links::`` renders the package's table of links.
"""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from gpulesson.planning.hardware import links
from gpulesson.planning.hardware.links import Link
from gpulesson.planning.speed import several_gpus

from .freshness import modules
from .results import STYLE, WIDTH, scale
from .tables import table

COUNTS = tuple(2**power for power in range(11))
SHOWN = 1, 8, 64, 1024
FORWARD = 1 / 3
"""Share of the forward pass: the backward pass computes twice as much."""
LEFT, RIGHT, TOP, HEIGHT = 44, 20, 12, 220
LINES = """
svg.chart .line { fill: none; stroke: var(--color-link); stroke-width: 2px; }
svg.chart .slow { stroke-dasharray: 7 3; }
svg.chart .slower { stroke-dasharray: 2 3; }
svg.chart .slowest { stroke-dasharray: 8 3 2 3; }"""
CLASSES = "line", "line slow", "line slower", "line slowest"


class StepsByRanks(SphinxDirective):
    """The argument is a GPU of the table; the chart has a line for each network of the option `networks`."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[Any] = {
        "seconds": float,
        "gradients": directives.positive_int,
        "networks": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        for path in (*modules(self.env.app), Path(links.__file__).with_suffix(".csv")):
            self.env.note_dependency(str(path))
        node = links.of_gpu(self.arguments[0])
        if node is None:
            raise self.error(f"the table of links has no link for {self.arguments[0]!r}")
        try:
            networks = [links.network(name) for name in self.options["networks"].split(",")]
            seconds, nbytes = self.options["seconds"], self.options["gradients"]
        except KeyError as missing:
            raise self.error(f"the option {missing} is missing") from None
        except ValueError as wrong:
            raise self.error(str(wrong)) from None
        lines = {
            network.name: [step(seconds, nbytes, count, node, network) for count in COUNTS]
            for network in networks
        }
        rows = [["GPUs", *lines]]
        for count in SHOWN:
            found = [line[COUNTS.index(count)] for line in lines.values()]
            cells = [f"{each.seconds:.2f} s, {math.ceil(100 * each.efficiency - 1e-6)} %" for each in found]
            rows.append([f"{count:,}", *cells])
        times = {name: [each.seconds for each in line] for name, line in lines.items()}
        return [nodes.raw("", chart(times), format="html"), table(rows, "ranks")]


def step(seconds: float, nbytes: int, count: int, node: Link, network: Link) -> several_gpus.Step:
    """Return the least time of a step of DDP in which each rank computes for so many seconds."""
    sizes = [
        several_gpus.FIRST_BUCKET,
        *[several_gpus.BUCKET] * ((nbytes - several_gpus.FIRST_BUCKET) // several_gpus.BUCKET),
    ]
    sizes.append(nbytes - sum(sizes))
    sent = [several_gpus.all_reduce(size, count, node, network) for size in sizes]
    compute = several_gpus.Compute(FORWARD * seconds, (1 - FORWARD) * seconds, 0.0)
    return several_gpus.overlapped(compute, sent, sent[-1:])


def chart(times: dict[str, list[float]]) -> str:
    """Draw seconds against the number of ranks, both on logarithmic scales, with a line for each network."""
    ticks = scale(min(map(min, times.values())), max(map(max, times.values())))
    low, high = math.log(ticks[0]), math.log(ticks[-1])
    bottom = TOP + HEIGHT

    def x(count: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(count) / math.log(COUNTS[-1])

    def y(seconds: float) -> float:
        return bottom - HEIGHT * (math.log(seconds) - low) / (high - low)

    parts = [f'<line x1="{LEFT}" y1="{bottom}" x2="{x(COUNTS[-1]):.1f}" y2="{bottom}"/>']
    for tick in ticks:
        parts.append(
            f'<line class="one" x1="{LEFT}" y1="{y(tick):.1f}" x2="{x(COUNTS[-1]):.1f}" y2="{y(tick):.1f}"/>'
        )
        parts.append(f'<text class="end" x="{LEFT - 6}" y="{y(tick) + 4:.1f}">{tick:g} s</text>')
    for count in COUNTS[::2]:
        parts.append(f'<text class="middle" x="{x(count):.1f}" y="{bottom + 16}">{count:,}</text>')
    parts.append(f'<text class="middle" x="{(LEFT + WIDTH) / 2:.0f}" y="{bottom + 34}">GPUs</text>')
    for style, (name, line) in zip(CLASSES, times.items(), strict=False):
        points = " ".join(f"{x(count):.1f},{y(each):.1f}" for count, each in zip(COUNTS, line, strict=True))
        parts.append(f'<polyline class="{style}" points="{points}"/>')
        parts.append(
            f'<text class="end" x="{x(COUNTS[-1]):.1f}" y="{y(line[-1]) - 6:.1f}">{escape(name)}</text>'
        )
    ends = "; ".join(f"{name}: {line[0]:.2f} s to {line[-1]:.2f} s" for name, line in times.items())
    title = escape(f"Least time of a step with 1 to {COUNTS[-1]:,} GPUs. {ends}")
    height = bottom + 40
    start = f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    start += f' role="img" aria-label="{title}">'
    return "\n".join([start, f"<style>{STYLE}{LINES}</style>", *parts, "</svg>"])


class Links(SphinxDirective):
    """The package's table of links: 10⁹ bytes a second through one port, in one direction."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(Path(links.__file__).with_suffix(".csv")))
        heads = ["Link", "GB/s", "A port for", "GPUs", "Document"]
        return [table([heads, *map(self._row, links.read())], "links")]

    def _row(self, link: Link) -> list[object]:
        reference = nodes.reference("", "document", refuri=link.source)
        owner = "each node" if link.shared else "each GPU"
        return [link.name, f"{link.bandwidth / 1e9:g}", owner, ", ".join(link.gpus), [reference]]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.freshness")
    app.setup_extension("_ext.tables")
    app.add_directive("steps-by-ranks", StepsByRanks)
    app.add_directive("links", Links)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
