"""Shows the committed figures of the benchmarks as tables: nothing on that page is typed by hand.

``.. benchmark:: overhead`` renders benchmarks/results/overhead.json. A table that is too wide for the page is
cut in two: with ``:split: epochs`` the columns from ``epochs`` on form a second one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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


class Benchmark(SphinxDirective):
    """The table of one benchmark, the figures that are quoted from it, and what it ran on."""

    required_arguments = 1
    option_spec: ClassVar[Any] = {"split": directives.unchanged_required}

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
        figures = [figure_table(columns, result["rows"]) for columns in self.parts(result["columns"])]
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
