"""How near ``plan`` comes to the memory that others have measured on GPUs, and published.

``tests/planning/published_memory.csv`` holds the measurements, each with its source: the memory that
PyTorch's allocator reserved, or had given out (allocated), or what ``nvidia-smi`` counts (used), which
includes a CUDA context; its size was published with those figures, and is added here.

The programs are written as their sources describe them, also where the libraries of that time did otherwise
than today's. With BERT (2022), the optimizer took one parameter after the other, and gradients were filled
with zeros. With ViT-L/16 in the table's first five rows, Adam was that of a PyTorch before 2.1 (the logs
name 2.1.0.dev20230623), which made two lists of temporary tensors where today's makes one:
``torch/optim/adam.py``, ``denom = torch._foreach_add(exp_avg_sq_sqrt, eps)``.

Of what is left, no part has been measured. The differences of ViT-L/16 are those of one more tensor of a
layer's output in each layer and 0.2 GB besides: probably ``nn.MultiheadAttention`` copies what attention
returns, if its memory is not laid out as the module's input is, and CUDA's kernels lay it out otherwise than
the CPU's. Those of BERT-large are as large as one more tensor of attention weights in each layer; the reason
is not known.

Only shapes are taken, so that no GPU is needed: ``python benchmarks/plan_memory.py``, about four minutes
and 10 GB of memory. Needs torchvision and transformers.
"""

from __future__ import annotations

import csv
import functools
import gc
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.models import vit_l_16
from transformers import BertConfig, BertForSequenceClassification

from gpulesson_tools.planning.memory import any_batch, fitting
from gpulesson_tools.planning.recording.record import Record
from gpulesson_tools.planning.recording.recorded import record_function
from measuring import Result, about, options

TABLE = Path(__file__).parents[1] / "tests" / "planning" / "published_memory.csv"
CONTEXT = fitting.CONTEXT.most
"""Bytes of the context as it was measured beside BERT."""
STEPS = 3


class AdamBefore21(torch.optim.Adam):
    """Adam with the two lists of temporary tensors that it had before PyTorch 2.1."""

    def step(self, closure: Any = None) -> Any:
        """Take a step while the second list is there, too."""
        with second_list():
            return super().step(closure)


@contextmanager
def second_list() -> Iterator[None]:
    """While it is open, adding epsilon also makes new tensors, which are kept to the end."""
    add, made = torch._foreach_add_, list[Tensor]()

    def adding(tensors: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(other, float):
            made.extend(torch._foreach_add(tensors, other))
        return add(tensors, other, *args, **kwargs)

    with mock.patch.object(torch, "_foreach_add_", adding):
        yield


def vit(batch: int, micro_batches: int, precision: str) -> None:
    """Fine-tune torchvision's ViT-L/16, with Adam."""
    model: Any = vit_l_16(weights=None)
    model.heads.head = torch.nn.Linear(1024, 10)
    dtype = torch.bfloat16 if precision == "bf16-true" else torch.float32
    model = model.to("cuda", dtype).train()
    optimizer = AdamBefore21(model.parameters(), lr=5e-5)
    mixed = precision == "16-mixed"
    scaler = torch.amp.GradScaler("cuda", enabled=mixed)
    for number in range(STEPS * micro_batches):
        inputs = torch.rand(batch, 3, 224, 224).to("cuda")
        targets = torch.randint(10, (batch,)).to("cuda")
        with torch.autocast("cuda", torch.float16, enabled=mixed):
            outputs = model(inputs.to(dtype))
        loss = F.cross_entropy(outputs.float(), targets) / micro_batches
        if micro_batches == 1:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        if number % micro_batches == 0:
            scaler.step(optimizer)
            scaler.update()
            if micro_batches > 1:
                optimizer.zero_grad()


def vit_alone(batch: int, micro_batches: int, precision: str) -> None:
    """Train ViT-L/16 as PyTorch's tutorial does: without targets, gradients given up after each step."""
    model: Any = vit_l_16(weights=None).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        model(torch.rand(batch, 3, 224, 224).to("cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def bert(batch: int, micro_batches: int, precision: str) -> None:
    """Fine-tune BERT-large on sequences of 512, as transformers' Trainer does."""
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    config = BertConfig(**sizes, intermediate_size=4096, attn_implementation="eager")
    model: Any = BertForSequenceClassification(config).to("cuda").train()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    mixed = precision == "16-mixed"
    scaler = torch.amp.GradScaler("cuda", enabled=mixed)
    for _ in range(STEPS):
        for _ in range(micro_batches):
            ids = torch.randint(30_000, (batch, 512)).to("cuda")
            labels = torch.randint(2, (batch,)).to("cuda")
            with torch.autocast("cuda", torch.float16, enabled=mixed):
                loss = model(input_ids=ids, labels=labels).loss / micro_batches
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=False)


@functools.lru_cache(maxsize=1)
def recorded(program: Any, micro_batches: int, precision: str) -> tuple[Record, Record]:
    """Record a program's shapes with two small batches."""
    records = []
    for batch in (2, 3):
        record = record_function(lambda: program(batch, micro_batches, precision), STEPS, dry=True)  # noqa: B023
        record.batch_size = batch
        records.append(record)
        gc.collect()
    return records[0], records[1]


def predicted(row: dict[str, str]) -> int:
    """Return the bytes that the planner predicts for a row of the table."""
    program = {"ViT-L/16": vit, "BERT-large": bert}[row["model"]]
    if row["counted"] == "allocated":
        program = vit_alone
    small = recorded(program, int(row["micro_batches"]), row["precision"])
    workspace = fitting.cublas_workspace((8, 0))
    replay = fitting.replay(any_batch.at_batch(*small, int(row["batch"])), workspace=workspace)
    if row["counted"] == "allocated":
        return replay.peak_allocated
    return replay.peak_reserved + (CONTEXT if row["counted"] == "used" else 0)


COLUMNS = [
    ("model", "model", ""),
    ("batch", "batch", "d"),
    ("micro_batches", "× batches", "d"),
    ("precision", "precision", ""),
    ("gpu", "GPU", ""),
    ("counted", "counted", ""),
    ("published", "published, GB", ".2f"),
    ("predicted", "predicted, GB", ".2f"),
    ("difference", "difference", "+.1%"),
]


def main() -> None:
    """Predict each row of the table."""
    wanted = options(__doc__, "plan_memory", rows=1000)
    facts = about(None, "torchvision", "transformers", table=TABLE.name)
    result = Result("plan_memory", "Memory predicted by plan, and published by others", facts, COLUMNS)
    with TABLE.open(encoding="utf-8", newline="") as lines:
        for row in list(csv.DictReader(lines))[: wanted.rows]:
            measured = float(row["figure"]) * {"GB": 1e9, "MiB": 2**20}[row["unit"]]
            found = predicted(row)
            result.rows.append(
                {
                    **{key: row[key] for key in ("model", "precision", "gpu", "counted")},
                    "batch": int(row["batch"]),
                    "micro_batches": int(row["micro_batches"]),
                    "published": measured / 1e9,
                    "predicted": found / 1e9,
                    "difference": found / measured - 1,
                }
            )
            print(result.cells(result.rows[-1]), flush=True)
    off = [abs(row["difference"]) for row in result.rows]
    result.claim("memory that others measured: figures compared with plan", len(off), "d", ">=", 5)
    result.claim("memory that others measured: plan is off, median", statistics.median(off), ".1%", "<=", 0.1)
    result.claim("memory that others measured: plan is off by at most", max(off), ".1%", "<=", 0.15)
    result.finish(wanted.json)


if __name__ == "__main__":
    main()
