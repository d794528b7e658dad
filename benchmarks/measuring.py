"""What the benchmarks share: the machine, the tables that they print, and their JSON files."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gpulesson.device import choose_device, device_name
from gpulesson.models import MLP

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
QUOTED = [  # what the README shows: a file of results, how the figure's description begins, words for it
    (
        "accuracy",
        "accuracy, `fit` minus",
        "accuracy: `fit` minus the same loop written by hand, seed by seed",
    ),
    ("overhead", "time of a step, `fit` / by hand: Batches", "time of a step: `fit` / written by hand"),
    (
        "gpu/time_to_accuracy",
        "time to the naive",
        "speed-up, from the naive script to the best measured: same accuracy in less time",
    ),
    (
        "gpu/plan_on_gpu",
        "allocated on the GPU",
        "memory that `plan` predicts for four models: off by at most",
    ),
    (
        "page_audits",
        "Lighthouse, performance",
        "Lighthouse, performance (of 100): the slowest of the pages checked",
    ),
]
COMPARE = {"<=": float.__le__, ">=": float.__ge__, ">": float.__gt__}


@dataclass
class Result:
    """The outcome of one benchmark, which is printed and written to ``results/<name>.json``.

    Attributes
    ----------
    name : str
        The file's name.
    title : str
        What was compared, in one line.
    about : dict
        Machine, versions, date, data, settings.
    columns : list of (key, head, format)
        `format` is what Python's ``format`` takes.
    rows : list of dict
        One value a column; a column that a row lacks stays empty.
    claims : list of dict
        The figures to quote: ``what``, ``value``, ``format``, and the target, ``compare`` and ``target``.
    notes : list of str
        What a reader must know to read the table.
    """

    name: str
    title: str
    about: dict[str, Any]
    columns: list[tuple[str, str, str]]
    rows: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def claim(self, what: str, value: float, spec: str, compare: str = "", target: float = 0.0) -> None:
        """Add a figure to quote; without `compare` it has no target."""
        self.claims.append(
            {"what": what, "value": value, "format": spec, "compare": compare, "target": target}
        )

    def finish(self, file: Path | None) -> None:
        """Print the table, and write the JSON file."""
        print("\n" + self.title)
        print("; ".join(f"{key} {value}" for key, value in self.about.items()) + "\n")
        for line in text_table([head for _, head, _ in self.columns], [*map(self.cells, self.rows)]):
            print(line)
        print()
        for claim in self.claims:
            print(claim_text(claim))
        for note in self.notes:
            print(note)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def cells(self, row: dict[str, Any]) -> list[str]:
        """Return the texts of one row."""
        return [format(row[key], spec) if row.get(key) is not None else "" for key, _, spec in self.columns]


def claim_text(claim: dict[str, Any]) -> str:
    """Write a figure with its target, and whether the target is met."""
    value = format(claim["value"], claim["format"])
    if not claim["compare"]:
        return f"{claim['what']}: {value}"
    sign = {"<=": "at most ", ">=": "at least ", ">": "more than "}[claim["compare"]]
    met = COMPARE[claim["compare"]](float(claim["value"]), float(claim["target"]))
    return f"{claim['what']}: {value} (target: {sign}{claim['target']:g}; {'met' if met else 'NOT met'})"


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if number == 0 else text.rjust(width)
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [heads, *rows]
    ]


def spread(values: Iterable[float], key: str = "") -> dict[str, float]:
    """Return minimum, median and maximum."""
    low, *_, high = ordered = sorted(values)
    return {f"{key}min": low, f"{key}median": statistics.median(ordered), f"{key}max": high}


SPREAD = [("min", "min", ".3f"), ("median", "median", ".3f"), ("max", "max", ".3f")]


def interval(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of the mean (Student's t)."""
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def about(device: torch.device | None = None, *libraries: str, **more: Any) -> dict[str, Any]:
    """Describe the machine and what ran on it."""
    device = device or torch.device("cpu")
    facts: dict[str, Any] = {
        "device": f"{device}: {device_name(device)}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{library: version(library) for library in libraries},
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    return {**facts, **more}


def options(doc: str | None, name: str, **numbers: int) -> argparse.Namespace:
    """Read the command line: ``--json``, ``--no-json``, ``--device``, and integers with their defaults."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", type=Path, default=RESULTS / f"{name}.json", help="where to write the figures"
    )
    parser.add_argument("--no-json", dest="json", action="store_const", const=None, help="only print")
    parser.add_argument(
        "--device", type=choose_device, default=choose_device(), help="default: the accelerator"
    )
    for key, default in numbers.items():
        parser.add_argument(f"--{key}", type=int, default=default, help=f"default: {default}")
    return parser.parse_args()


def network(device: torch.device | str = "cpu", seed: int = 0) -> nn.Module:
    """Return the 784-128-64-10 network, with the weights of this seed whatever the device."""
    torch.manual_seed(seed)
    return MLP(784, 128, 64, 10).to(device)


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    """Return whether two networks have the same weights bit for bit."""
    pairs: Iterable[tuple[Tensor, Tensor]] = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(one.detach().cpu(), other.detach().cpu()) for one, other in pairs)


def read(name: str) -> dict[str, Any]:
    """Read the committed figures of one benchmark."""
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return result


def readme_block() -> str:
    """Write the figures that the README quotes, each with what it was measured on, as a table."""
    lines = ["| measured | result | on |", "|---|---|---|", gain()]
    for name, begin, words in QUOTED:
        result = read(name)
        claim = next(claim for claim in result["claims"] if claim["what"].startswith(begin))
        missed = "NOT met" in claim_text(claim)
        target = f" (target {claim['compare']} {claim['target']:g}, missed)" if missed else ""
        value, facts = format(claim["value"], claim["format"]), result["about"]
        machine = f"{facts['device'].partition(': ')[2]}, PyTorch {facts['torch']}, {facts['date']}"
        lines.append(f"| {words} | {value}{target} | {machine} |")
    return "\n".join(lines)


def gain() -> str:
    """Return the row of the GPU's speed beside the CPU's: what lesson 1's recording printed."""
    sys.path.append(str(ROOT / "docs"))
    from _ext.first_page import LESSON, speeds
    from _ext.recorded.files import load

    recording = load(ROOT / "docs" / "recordings" / f"{LESSON}.json")
    found, run = speeds(recording, ROOT / "examples" / f"{LESSON}.py"), recording.run
    what = f"speed-up of a matrix product, {found['many']} × {found['many']}: the GPU / {found['cpu']}"
    return f"| {what} | {found['times']} | {run.gpu}, PyTorch {run.torch}, {run.date} |"


MARKS = re.compile(r"(<!-- measured, by benchmarks -->\n).*?(<!-- end -->)", re.DOTALL)


def with_block(readme: str) -> str:
    """Return the README's text with the committed figures between its two marks."""
    return MARKS.sub(lambda marks: f"{marks[1]}{readme_block()}\n{marks[2]}", readme)


if __name__ == "__main__":  # python benchmarks/measuring.py: put the committed figures into the README
    README.write_text(with_block(README.read_text(encoding="utf-8")), encoding="utf-8")
