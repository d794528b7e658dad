"""Shows the committed figures of the benchmarks as tables and charts: nothing on that page is typed by hand.

``.. benchmark:: overhead`` renders benchmarks/results/overhead.json. A table that is too wide for the page is
cut in two: with ``:split: epochs`` the columns from ``epochs`` on form a second one. With ``:chart:``, a
chart shows the columns ``min``, ``median`` and ``max``, ratios, of each row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from .tables import table

FOLDER = Path("benchmarks", "results")  # below conf.py
SIGNS = {"<=": "≤", ">=": "≥", ">": ">"}
# of a chart, in its own units: 400 are the width of the page's text at most, and of a telephone
WIDTH, MARGIN, ROW = 400, 8, 36
# in the colours of the page, like the drawings; the line behind a word is wiped out
STYLE = """\
svg.chart { display: block; height: auto; margin: 1rem auto; max-width: 34rem; width: 100%; }
svg.chart text { fill: var(--color-foreground-primary); font-size: 12px; }
svg.chart text { paint-order: stroke; stroke: var(--color-background-primary); stroke-width: 4px; }
svg.chart .end { text-anchor: end; }
svg.chart .middle { text-anchor: middle; }
svg.chart line { stroke: var(--color-foreground-muted); }
svg.chart .one { stroke-dasharray: 4 3; }
svg.chart .range { stroke: var(--color-link); stroke-linecap: round; stroke-width: 3px; }
svg.chart circle { fill: var(--color-link); }"""


class Benchmark(SphinxDirective):
    """The table of one benchmark, the figures that are quoted from it, and what it ran on."""

    required_arguments = 1
    option_spec: ClassVar[Any] = {"split": directives.unchanged_required, "chart": directives.flag}

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        file = Path(self.env.app.confdir) / FOLDER / f"{name}.json"
        if not (program := file.parents[1] / f"{name}.py").is_file():
            raise self.error(f"there is no benchmark {program.name} in {program.parent}")
        self.env.note_dependency(file)
        if not file.is_file():
            command = nodes.literal("", f"nox -s bench -- {name}")
            return [nodes.paragraph("", "", nodes.Text("Not measured yet: run "), command, nodes.Text("."))]
        result = json.loads(file.read_text(encoding="utf-8"))
        figures: list[nodes.Node] = [
            figure_table(columns, result["rows"]) for columns in self.parts(result["columns"])
        ]
        if "chart" in self.options:
            figures.insert(0, nodes.raw("", chart(result), format="html"))
        quoted = nodes.bullet_list("", *[item(text) for text in sentences(result)])
        return [paragraph(f"{result['title']}."), *figures, quoted, paragraph(machine(result["about"]))]

    def parts(self, columns: list[list[str]]) -> list[list[list[str]]]:
        """Return the columns of each table; the first column, which names the rows, is in all."""
        if "split" not in self.options:
            return [columns]
        keys = [key for key, _, _ in columns]
        if (key := self.options["split"]) not in keys[1:]:
            raise self.error(f"there is no column {key!r} to split at; the others are {', '.join(keys[1:])}")
        at = keys.index(key)
        return [columns[:at], columns[:1] + columns[at:]]


def figure_table(columns: list[list[str]], rows: list[dict[str, Any]]) -> nodes.table:
    """Make a table of the rows that have something in these columns."""
    texts = [cells(row, columns) for row in rows]
    return table([[head for _, head, _ in columns], *(row for row in texts if any(row[1:]))], "benchmark")


def chart(result: dict[str, Any]) -> str:
    """Draw the ratios of each row as SVG: a line from the smallest to the largest, a dot at the median.

    The scale is logarithmic: twice as fast is as far from 1 as half as fast.
    """
    columns, rows = result["columns"], result["rows"]
    spec = next(spec for key, _, spec in columns if key == "median")
    found = [row[key] for row in rows for key in ("min", "median", "max") if key in row]
    ticks = scale(min(*found, 1), max(*found, 1))
    first, last = math.log(ticks[0]), math.log(ticks[-1])
    left, right = MARGIN, WIDTH - MARGIN

    def x(ratio: float) -> str:
        return f"{left + (right - left) * (math.log(ratio) - first) / (last - first):.1f}"

    bottom = ROW * len(rows) + 4
    parts = [f'<line class="one" x1="{x(1)}" y1="0" x2="{x(1)}" y2="{bottom}"/>']
    for number, row in enumerate(rows):
        words, line = ROW * number + 14, ROW * number + 24
        name = escape(str(row[columns[0][0]]).replace("`", ""))
        parts.append(f'<text x="0" y="{words}">{name}</text>')
        parts.append(f'<text class="end" x="{WIDTH}" y="{words}">{format(row["median"], spec)}</text>')
        if "min" in row:
            low, high = x(row["min"]), x(row["max"])
            parts.append(f'<line class="range" x1="{low}" y1="{line}" x2="{high}" y2="{line}"/>')
        parts.append(f'<circle cx="{x(row["median"])}" cy="{line}" r="5"/>')
    parts.append(f'<line x1="{left}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
    parts += [f'<text class="middle" x="{x(t)}" y="{bottom + 16}">{t:g}</text>' for t in ticks]
    title = escape(f"{result['title']}: smallest, median and largest ratio, as in the table".replace("`", ""))
    size = f'viewBox="0 0 {WIDTH} {bottom + 20}" width="{WIDTH}" height="{bottom + 20}"'
    start = f'<svg class="chart" {size} role="img" aria-label="{title}">'
    return "\n".join([start, f"<style>{STYLE}</style>", *parts, "</svg>"])


def scale(low: float, high: float) -> Sequence[float]:
    """Return the marks of an axis from below the lowest to above the highest: 1, 2, 5, 10, 20 and so on.

    Examples
    --------
    >>> scale(0.44, 5.2)
    [0.2, 0.5, 1.0, 2.0, 5.0, 10.0]
    >>> scale(0.73, 172)
    [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0]
    """
    marks = [float(f"{digit}e{power}") for power in range(-3, 6) for digit in (1, 2, 5)]
    first = max(place for place, mark in enumerate(marks) if mark <= low)
    last = min(place for place, mark in enumerate(marks) if mark >= high)
    return marks[first : last + 1]


def cells(row: dict[str, Any], columns: list[list[str]]) -> list[str]:
    """Return the texts of one row; what a row lacks stays empty."""
    return [format(row[key], spec) if row.get(key) is not None else "" for key, _, spec in columns]


def sentences(result: dict[str, Any]) -> Iterator[str]:
    """Yield the figures to quote, with their targets, and the notes."""
    for claim in result["claims"]:
        text = f"{claim['what']}: {format(claim['value'], claim['format'])}"
        if claim["compare"]:
            text += f" (target: {SIGNS[claim['compare']]} {claim['target']:g}{verdict(claim)})"
        yield text
    yield from result["notes"]


def verdict(claim: dict[str, Any]) -> str:
    """Say so where a target is missed."""
    value, target = claim["value"], claim["target"]
    met = {"<=": value <= target, ">=": value >= target, ">": value > target}[claim["compare"]]
    return "" if met else ", missed"


def machine(about: dict[str, Any]) -> str:
    """Say what ran on what, and when."""
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in about.items() if name != "date")
    return f"Measured on {about['date']}: {facts}."


def paragraph(text: str) -> nodes.paragraph:
    """Make a paragraph; what stands between backticks is code."""
    parts = [nodes.literal("", part) if i % 2 else nodes.Text(part) for i, part in enumerate(text.split("`"))]
    return nodes.paragraph("", "", *parts)


def item(text: str) -> nodes.list_item:
    return nodes.list_item("", paragraph(text))


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.tables")
    app.add_directive("benchmark", Benchmark)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
