"""Shows the committed figures of the benchmarks as tables: nothing on that page is typed by hand.

``.. benchmark:: overhead`` renders benchmarks/results/overhead.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from .tables import table

FOLDER = Path("benchmarks", "results")  # below conf.py
SIGNS = {"<=": "≤", ">=": "≥", ">": ">"}


class Benchmark(SphinxDirective):
    """The table of one benchmark, the figures that are quoted from it, and what it ran on."""

    required_arguments = 1

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
        heads: list[Any] = [head for _, head, _ in result["columns"]]
        figures = table([heads, *(cells(row, result["columns"]) for row in result["rows"])], "benchmark")
        quoted = nodes.bullet_list("", *[item(text) for text in sentences(result)])
        return [paragraph(f"{result['title']}."), figures, quoted, paragraph(machine(result["about"]))]


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
