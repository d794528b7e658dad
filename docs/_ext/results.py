"""Shows the committed results of benchmarks and tests: nothing on these pages is typed by hand.

``.. benchmark:: overhead`` shows benchmarks/results/overhead.json, ``.. benchmark:: gpu/ladder`` results of a
GPU. ``:split: epochs`` cuts a wide table in two: the columns from ``epochs`` on form the second. ``:chart:``
draws the columns ``min``, ``median`` and ``max``, ratios, and folds the table, as a long one is.
``.. headline:: gpu/ladder`` shows one figure, large: the one whose description begins with ``:claim:``.

``.. trust:: flipped_bits full_disk`` shows these rows of docs/trust.json. A missing or failed row makes the
build fail. Without names it says on what the tests ran. ``.. libraries::`` shows docs/libraries.json: a
sentence, and the table, folded.
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

from .boxes import fold
from .figures import mark_ratios, new_figure, shown
from .tables import paragraph, table

SIGNS = {"<=": "≤", ">=": "≥", ">": ">"}
MOST_ROWS = 20  # of a table that is not folded
WAYS = ("before", "inside")  # of importing a library


class Committed(SphinxDirective):
    """Shows a file; a page is read again when its file has changed."""

    def read(self, name: str) -> Any:
        file = Path(self.env.app.confdir, name)
        self.env.note_dependency(file)
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


class Benchmark(Committed):
    """The table of one benchmark, its claims and notes, and the machine."""

    required_arguments = 1
    option_spec: ClassVar[Any] = {"split": directives.unchanged_required, "chart": directives.flag}

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        program = name.removeprefix("gpu/")
        if not Path(self.env.app.confdir, "benchmarks", f"{program}.py").is_file():
            raise self.error(f"there is no benchmark {program}.py")
        result = self.read(f"benchmarks/results/{name}.json")
        if result is None:
            return [paragraph(f"Not measured yet: run `nox -s bench -- {program}`.")]
        figures: list[nodes.Node] = [
            figure_table(columns, result["rows"]) for columns in self.parts(result["columns"])
        ]
        if "chart" in self.options or len(result["rows"]) > MOST_ROWS:
            figures = [fold(f"The table, of {len(result['rows'])} rows", *figures, kind="table")]
        if "chart" in self.options:
            figures = [*shown(self, chart(result), f"benchmark-{name}".replace("/", "-")), *figures]
        quoted = nodes.bullet_list("", *[item(text) for text in sentences(result)])
        return [paragraph(f"{result['title']}."), *figures, quoted, paragraph(machine(result["about"]))]

    def parts(self, columns: list[list[str]]) -> list[list[list[str]]]:
        """Return the columns of each table; the first column names the rows, and is in all of them."""
        if "split" not in self.options:
            return [columns]
        keys = [key for key, _, _ in columns]
        if (key := self.options["split"]) not in keys[1:]:
            raise self.error(f"there is no column {key!r} to split at; the others are {', '.join(keys[1:])}")
        at = keys.index(key)
        return [columns[:at], columns[:1] + columns[at:]]


class Headline(Committed):
    """One figure of a benchmark, large; the content explains it, and the machine follows."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[Any] = {
        "claim": directives.unchanged_required,
        "unit": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        name, begin = self.arguments[0], self.options.get("claim", "")
        result = self.read(f"benchmarks/results/{name}.json")
        claims = [claim for claim in (result or {"claims": []})["claims"] if claim["what"].startswith(begin)]
        if len(claims) != 1:
            raise self.error(f"{name}.json has {len(claims)} figures that begin with {begin!r}, not one")
        figure = format(claims[0]["value"], claims[0]["format"]) + self.options.get("unit", "")
        about = result["about"]
        machine = about["device"].partition(": ")[2]
        ran = f"{machine}, PyTorch {about['torch']}, {about['date']}{target(claims[0])}"
        return [
            nodes.container(
                "",
                nodes.paragraph("", figure, classes=["number"]),
                *self.parse_content_to_nodes(),
                nodes.paragraph("", ran, classes=["measured"]),
                classes=["headline"],
            )
        ]


def figure_table(columns: list[list[str]], rows: list[dict[str, Any]]) -> nodes.table:
    """Make a table of the rows that have a value in these columns."""
    texts = [cells(row, columns) for row in rows]
    return table([[head for _, head, _ in columns], *(row for row in texts if any(row[1:]))], "benchmark")


def chart(result: dict[str, Any]) -> Any:
    """Draw the ratios of each row: a line from the smallest to the largest, a dot at the median.

    The scale is logarithmic: twice as fast is as far from 1 as half as fast.
    """
    columns, rows = result["columns"], result["rows"]
    spec = next(spec for key, _, spec in columns if key == "median")
    figure, axes = new_figure(height=0.48 * len(rows) + 0.5)
    words: dict[str, Any] = {"transform": axes.get_yaxis_transform()}
    for place, row in enumerate(rows):
        middle = row["median"]
        axes.plot([row.get("min", middle), row.get("max", middle)], [place, place], color="C0", linewidth=3)
        axes.plot(middle, place, "o", color="C0")
        axes.text(0, place - 0.15, plain(str(row[columns[0][0]])), va="bottom", **words)
        axes.text(1.03, place, format(middle, spec), va="center", **words)
        axes.plot(
            [1, 1], [place - 0.12, place + 0.25], color="grey", linewidth=1, zorder=1
        )  # not through words
    axes.set(xscale="log", ylim=(len(rows) - 0.5, -0.9), yticks=[])
    mark_ratios(axes.xaxis)
    axes.spines["left"].set_visible(False)
    figure.set_label(f"{plain(result['title'])}: smallest, median and largest ratio, as in the table")
    return figure


def plain(text: str) -> str:
    return text.replace("`", "")


def cells(row: dict[str, Any], columns: list[list[str]]) -> list[str]:
    """Return the texts of one row; a missing value is empty."""
    return [format(row[key], spec) if row.get(key) is not None else "" for key, _, spec in columns]


def sentences(result: dict[str, Any]) -> Iterator[str]:
    """Yield the claims, with their targets, and the notes."""
    for claim in result["claims"]:
        yield f"{claim['what']}: {format(claim['value'], claim['format'])}{target(claim)}"
    yield from result["notes"]


def target(claim: dict[str, Any]) -> str:
    """Name the target, if there is one, and say if it is missed."""
    if not claim["compare"]:
        return ""
    value, aim = claim["value"], claim["target"]
    shown = format(aim, claim["format"]) if claim["format"].endswith("%") else f"{aim:g}"
    met = {"<=": value <= aim, ">=": value >= aim, ">": value > aim}[claim["compare"]]
    return f" (target: {SIGNS[claim['compare']]} {shown}{'' if met else ', missed'})"


def machine(about: dict[str, Any]) -> str:
    """Describe the machine, the software and the date."""
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in about.items() if name != "date")
    return f"Measured on {about['date']}: {facts}."


def item(text: str) -> nodes.list_item:
    return nodes.list_item("", paragraph(text))


class Trust(Committed):
    """The table of some promises, or a sentence about the tests of all."""

    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        found = self.read("docs/trust.json")
        if not self.arguments:
            return [paragraph(tested_on(found))]
        rows = [self.row(name, found["rows"].get(name)) for name in self.arguments[0].split()]
        return [table([["Tested", "As promised", "Besides"], *rows], "trust")]

    def row(self, name: str, row: dict[str, Any] | None) -> list[str]:
        """Return what was tested, the figure, and the notes."""
        if row and "not run" in row:
            return [row["what"], f"not run here: {row['not run']}", ""]
        if row is None or not as_promised(row):
            raise self.error(
                f"docs/trust.json: {name} is missing, or not as promised: {row}. Run: nox -s trust"
            )
        return [row["what"], f"{row['done']:,}\xa0of\xa0{row['of']:,}", "; ".join(row["notes"])]


def as_promised(row: dict[str, Any]) -> bool:
    """Return whether no try failed, and there were enough of them."""
    least = row["least"]  # a text where only a part of the tries was made
    return row["kept"] is True and isinstance(least, int) and row["done"] == row["of"] >= least > 0


def tested_on(found: dict[str, Any]) -> str:
    about, dates = found["about"], sorted({row["date"] for row in found["rows"].values()})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"PyTorch {about['torch']}, Python {about['python']}, {about['system']}, {when}."


class Libraries(Committed):
    """How many programs of how many libraries ran on the practice GPU, their results, and the table."""

    def run(self) -> list[nodes.Node]:
        found = self.read("docs/libraries.json")
        about = found["about"]
        rows = sorted(found["rows"].values(), key=lambda row: (row["library"].lower(), row["what"]))
        ran = [row for row in rows if not {row[way] for way in WAYS} & {"fails", "differs"}]
        equal = [row for row in ran if all(row[way] == "equal" for way in WAYS)]
        sentence = (
            f"Of {len(rows)} programs with {len({row['library'] for row in rows})} libraries, {len(ran)} ran "
            f"on the practice GPU. {len(equal)} had the CPU's results to the last bit. "
            f"(PyTorch {about['torch']}, Python {about['python']}, {about['system']}, {about['date']}.)"
        )
        heads = ["Library", "What the program does", "Imported before", "Imported after"]
        cells = [
            [f"{row['library']} {row['version']}", row["what"], *(row[way] for way in WAYS)] for row in rows
        ]
        programs = table([heads, *cells], "libraries")
        return [paragraph(sentence), fold("The programs, one by one", programs, kind="libraries")]


def setup(app: Sphinx) -> ExtensionMetadata:
    app.setup_extension("_ext.boxes")
    app.setup_extension("_ext.tables")
    for name, directive in {
        "benchmark": Benchmark,
        "headline": Headline,
        "trust": Trust,
        "libraries": Libraries,
    }.items():
        app.add_directive(name, directive)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
