"""What others measured with more GPUs, beside what communication alone explains.

``published_scaling.csv`` has throughputs that others published, with the source of each. From the run with
the fewest GPUs comes the time to compute; :mod:`gpulesson_tools.planning.speed.several_gpus` adds what of the
communication cannot hide, over links that carry what their documents say. Nothing is measured
here: ``python benchmarks/published_scaling.py``.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from gpulesson_tools.planning.hardware import links
from gpulesson_tools.planning.hardware.links import Link
from gpulesson_tools.planning.speed.several_gpus import (
    BUCKET,
    DDP,
    FIRST_BUCKET,
    Collective,
    Compute,
    Step,
    all_reduce,
    half,
    overlapped,
)
from measuring import Result, about, options

TABLE = Path(__file__).with_suffix(".csv")
COLUMNS = [
    ("what", "training", ""),
    ("computing", "computing, ms", ".1f"),
    ("model", "model, ms", ".1f"),
    ("measured", "measured, ms", ".1f"),
    ("expected", "efficiency: all hidden", ".1%"),
    ("added", "nothing hidden", ".1%"),
    ("efficiency", "measured", ".1%"),
    ("ratio", "measured / model", ".3f"),
]


def read() -> list[dict[str, str]]:
    """Return the rows of the table."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def seconds(row: dict[str, str], gpus: str, rate: str) -> float:
    """Return the time of a step: each GPU has its batch."""
    return int(row[gpus]) * int(row["batch"]) / float(row[rate])


def network(text: str) -> Link:
    """Return a network of the table, or one with this bandwidth out of a node, in 10⁹ bytes a second."""
    if not text or text[0].isalpha():
        return links.network(text or links.NETWORK)
    quickest = links.network(links.NETWORK)
    return Link("", "network", True, float(text) * 1e9, quickest.ring, quickest.tree)


def collectives(row: dict[str, str]) -> list[Collective]:
    """Return what a step of a row's GPUs sends."""
    node = links.of_gpu(row["gpu"])
    assert node is not None, row["gpu"]
    nbytes = int(row["parameters"]) * int(row["bytes"])

    def collective(size: int) -> Collective:
        return all_reduce(size, int(row["gpus"]), node, network(row["network"]), int(row["per_node"]))

    if row["strategy"] == DDP:  # the smallest last bucket that there can be: a message of no bytes
        sizes = [FIRST_BUCKET, *[BUCKET] * ((nbytes - FIRST_BUCKET) // BUCKET)]
        return [*map(collective, [*sizes, nbytes - sum(sizes)]), collective(0)]
    return [half(collective(nbytes))] * 3


def with_communication(row: dict[str, str], compute: Compute) -> Step:
    """Return the step of a row's GPUs, with what they compute."""
    sent = collectives(row)
    return overlapped(compute, sent, sent[-1:] if row["strategy"] == DDP else [])


def compared(row: dict[str, str]) -> dict[str, Any]:
    """Put a published time beside the model's."""
    fewer, measured = seconds(row, "fewer", "fewer_rate"), seconds(row, "gpus", "rate")
    found = with_communication(row, Compute(0.0, fewer, 0.0))
    return {
        "what": f"{row['model']}, {row['precision']}, batch {int(row['batch']):,}, from {row['fewer']} to "
        f"{row['gpus']} {row['gpu']}",
        "computing": fewer * 1e3,
        "model": found.seconds * 1e3,
        "measured": measured * 1e3,
        "expected": found.efficiency,
        "added": fewer / (fewer + sum(each.seconds for each in collectives(row))),
        "efficiency": fewer / measured,
        "ratio": measured / found.seconds,
    }


def main() -> None:
    """Compare each row, print, write."""
    wanted = options(__doc__, "published_scaling")
    title = "Published training with more GPUs, and what communication alone explains"
    result = Result("published_scaling", title, about(None, table=TABLE.name), COLUMNS)
    result.rows = [compared(row) for row in read()]
    for key, what in (("efficiency", "measured"), ("expected", "the model's")):
        least = min(row[key] for row in result.rows)
        result.claim(f"published training with more GPUs: least efficiency, {what}", least, ".1%")
    furthest = max(row["ratio"] for row in result.rows)
    result.claim("published training with more GPUs: most time, measured / model", furthest, ".2f")
    result.notes.append("Sources: " + "; ".join(dict.fromkeys(row["source"] for row in read())) + ".")
    result.notes.append(
        "Computing is the published step with fewer GPUs; two published runs differ by themselves, so that "
        "more than 100 % can be."
    )
    result.finish(wanted.json)


if __name__ == "__main__":
    main()
