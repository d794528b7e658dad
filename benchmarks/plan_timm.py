"""Does ``plan`` say rightly which batches fit? Asked of timm's published training table, on an RTX 3090.

``published_timm.csv`` holds rows of ``benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv`` of
https://github.com/huggingface/pytorch-image-models (folder results, commit 5e7d47c): the batch with which
each model was trained, the width of its images and its millions of parameters. Its ``benchmark.py`` says how
it was measured: float16 by autocast, SGD. The batches in the table are 512, 384, 256, 192, 128, 96 and so on:
the largest of them that ran is taken to be the one that is given, and the one before it not to have run. In
PyTorch 1.12 optimizers took one parameter after the other, and ``zero_grad`` filled gradients with zeros.

Needs the timm of that time: ``pip install --no-deps timm==0.6.7``. Only shapes are taken, so that no GPU and
little memory are needed: ``python benchmarks/plan_timm.py``, about ten minutes.
"""

from __future__ import annotations

import csv
import gc
from pathlib import Path
from typing import Any

import timm
import torch
from torch.nn import functional as F

from gpulesson_tools.planning.hardware import gpus
from gpulesson_tools.planning.memory import any_batch, fitting
from gpulesson_tools.planning.recording.record import Record
from gpulesson_tools.planning.recording.recorded import record_function
from measuring import Result, about, options

TABLE = Path(__file__).with_name("published_timm.csv")
FIRST = 512
"""The batch that was tried first."""


def tried_before(batch: int) -> int | None:
    """Return the batch that was tried, and did not run, before this one; None if it was the first."""
    if batch >= FIRST:
        return None
    power = 1 << (batch.bit_length() - 1)
    return 2 * power if batch > power else power + power // 2


def train(name: str, image: int, batch: int, steps: int = 3) -> None:
    """Train a model of timm as its benchmark does."""
    model: Any = timm.create_model(name, pretrained=False).to("cuda").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False)
    inputs = torch.randn(batch, 3, image, image, device="cuda")
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", torch.float16):
            outputs = model(inputs)
            target = torch.empty(batch, device="cuda", dtype=torch.long).random_(model.num_classes)
            F.cross_entropy(outputs, target).backward()
        optimizer.step()


def recorded(name: str, image: int, batch: int) -> Record:
    """Record the shapes of three steps."""
    record = record_function(lambda: train(name, image, batch), 3, dry=True)
    record.batch_size = batch
    return record


def judged(published: dict[str, str], gpu: gpus.Gpu) -> dict[str, Any]:
    """Say what the plan says of the batch that ran, and of the one that did not."""
    name, image, batch = published["model"], int(published["image"]), int(published["batch"])
    small = recorded(name, image, 2), recorded(name, image, 3)
    held = sum(each.nbytes for each in small[0].allocations if each.kind == "parameters")
    more = tried_before(batch)
    capability = gpu.capability or (8, 6)
    workspace = fitting.cublas_workspace(capability)
    ran = any_batch.at_batch(*small, batch)
    row = {
        "model": name,
        "image": image,
        "millions": held / 4e6,
        "published_millions": float(published["parameters"]),
        "batch": batch,
        "verdict": fitting.verdict(ran, gpu.memory, capability).answer,
        "allocated": fitting.replay(ran, workspace=workspace).peak_allocated / 2**30,
        "failed": more,
    }
    if more is not None:
        failed = any_batch.at_batch(*small, more)
        row["failed_verdict"] = fitting.verdict(failed, gpu.memory, capability).answer
        row["failed_allocated"] = fitting.replay(failed, workspace=workspace).peak_allocated / 2**30
    return row


COLUMNS = [
    ("model", "model", ""),
    ("millions", "million parameters", ".2f"),
    ("published_millions", "published", ".2f"),
    ("image", "image", "d"),
    ("batch", "ran", "d"),
    ("allocated", "GiB", ".1f"),
    ("verdict", "plan", ""),
    ("failed", "did not run", "d"),
    ("failed_allocated", "GiB", ".1f"),
    ("failed_verdict", "plan", ""),
]


def main() -> None:
    """Judge each row, and count."""
    wanted = options(__doc__, "plan_timm", rows=10_000)
    gpu = gpus.find("RTX 3090")
    result = Result(
        "plan_timm",
        "What plan says of the batches in timm's table of training on an RTX 3090",
        about(None, "timm", table=TABLE.name),
        COLUMNS,
    )
    with TABLE.open(encoding="utf-8", newline="") as lines:
        for published in list(csv.DictReader(lines))[: wanted.rows]:
            row = judged(published, gpu)
            print(*(row.get(key, "") for key, *_ in COLUMNS), flush=True)
            result.rows.append(row)
            gc.collect()
    count(result)
    result.finish(wanted.json)


def count(result: Result) -> None:
    """Add the figures to quote."""
    fine = [row["verdict"] in ("fits", "close") for row in result.rows]
    refused = [row["failed_verdict"] != "fits" for row in result.rows if row["failed"]]
    outright = [row["failed_verdict"] == "does not fit" for row in result.rows if row["failed"]]
    result.claim("timm's training table: models asked for", len(fine), "d", ">=", 40)
    result.claim(
        "timm's training table: batches that ran, called fits or close",
        sum(fine) / len(fine),
        ".1%",
        ">=",
        1.0,
    )
    result.claim("timm's training table: batches that did not run", len(refused), "d")
    result.claim(
        "timm's training table: batches that did not run, not called fits",
        sum(refused) / len(refused),
        ".1%",
        ">=",
        0.8,
    )
    result.claim(
        "timm's training table: batches that did not run, called does not fit",
        sum(outright) / len(outright),
        ".1%",
    )
    result.notes.append(f"Ran: {sum(fine)} of {len(fine)}; did not run: {sum(refused)} of {len(refused)}.")


if __name__ == "__main__":
    main()
