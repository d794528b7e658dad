"""Shows the package's tables of GPUs and links, and draws the time of a step against the number of GPUs.

``.. gpus::`` and ``.. links::`` are the tables. The options of ``.. steps-by-ranks:: H100`` are the seconds
that one GPU computes and the bytes of the gradients; chart and table come from the package's model.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from gpulesson_tools.planning.hardware import gpus, links
from gpulesson_tools.planning.hardware.links import Link
from gpulesson_tools.planning.speed import several_gpus

from .figures import mark_ratios, new_figure, shown
from .freshness import modules
from .tables import table

TYPES = ("float32", "float16", "bfloat16")
COLUMNS = {"memory_gib": "memory", "bandwidth": "GB/s"}
COUNTS = tuple(2**power for power in range(11))
SHOWN = 1, 8, 64, 1024
FORWARD = 1 / 3
"""Share of the forward pass: the backward pass computes twice as much."""
LINES = "solid", "dashed", "dotted", "dashdot"


class Gpus(SphinxDirective):
    """Memory in GiB, bandwidth in 10⁹ bytes a second, rates in 10¹² operations a second."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(Path(gpus.__file__).with_suffix(".csv")))
        heads = ["GPU", "memory", "GB/s", *TYPES, "Not seen in a document", "Vendor"]
        return [table([heads, *map(self._row, gpus.read())], "gpus")]

    def _row(self, gpu: gpus.Gpu) -> list[object]:
        rates = [f"{gpu.rates[name] / 1e12:g}" if name in gpu.rates else "" for name in TYPES]
        unseen = ", ".join(COLUMNS.get(name, name) for name in gpu.unseen)
        memory, speed = f"{gpu.memory / 2**30:.2f}", f"{gpu.bandwidth / 1e9:g}"
        return [gpu.name, memory, speed, *rates, unseen, document(gpu.source)]


class Links(SphinxDirective):
    """10⁹ bytes a second through one port, in one direction."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(Path(links.__file__).with_suffix(".csv")))
        heads = ["Link", "GB/s", "A port for", "GPUs", "Document"]
        return [table([heads, *map(self._row, links.read())], "links")]

    def _row(self, link: Link) -> list[object]:
        owner = "each node" if link.shared else "each GPU"
        return [link.name, f"{link.bandwidth / 1e9:g}", owner, ", ".join(link.gpus), document(link.source)]


def document(address: str) -> list[nodes.Node]:
    return [nodes.reference("", "document", refuri=address)]


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
        return [*shown(self, chart(times), f"steps-{self.arguments[0]}"), table(rows, "ranks")]


def step(seconds: float, nbytes: int, count: int, node: Link, network: Link) -> several_gpus.Step:
    """Return the least time of a step of DDP in which each rank computes for `seconds`."""
    sizes = [
        several_gpus.FIRST_BUCKET,
        *[several_gpus.BUCKET] * ((nbytes - several_gpus.FIRST_BUCKET) // several_gpus.BUCKET),
    ]
    sizes.append(nbytes - sum(sizes))
    sent = [several_gpus.all_reduce(size, count, node, network) for size in sizes]
    compute = several_gpus.Compute(FORWARD * seconds, (1 - FORWARD) * seconds, 0.0)
    return several_gpus.overlapped(compute, sent, sent[-1:])


def chart(times: dict[str, list[float]]) -> Any:
    """Draw seconds against the number of ranks, both on logarithmic scales, with a line for each network."""
    figure, axes = new_figure(height=3)
    for (name, line), style in zip(times.items(), LINES, strict=False):
        axes.plot(COUNTS, line, color="C0", linestyle=style)
        axes.annotate(name, (COUNTS[-1], line[-1]), (0, 4), textcoords="offset points", ha="right")
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="GPUs", ylabel="seconds", xticks=COUNTS[::2])
    mark_ratios(axes.yaxis)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", linestyle="dotted")
    ends = "; ".join(f"{name}: {line[0]:.2f} s to {line[-1]:.2f} s" for name, line in times.items())
    figure.set_label(f"Least time of a step with 1 to {COUNTS[-1]:,} GPUs. {ends}")
    return figure


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.freshness")
    app.setup_extension("_ext.tables")
    for name, directive in {"gpus": Gpus, "links": Links, "steps-by-ranks": StepsByRanks}.items():
        app.add_directive(name, directive)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
