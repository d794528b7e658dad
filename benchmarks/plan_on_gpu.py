"""What `plan` says of four models with three batches each, and what this GPU does with them.

    python benchmarks/plan_on_gpu.py [--batch 16] [--steps 10]

The batches are `batch`, twice and four times as many samples. A plan is made from shapes alone, for the GPU
of this machine as its data sheet describes it. Then the same steps run on the device: the peak of what is
allocated and reserved, and the median time of a step after the third. cuBLAS's workspaces are in the plan;
what cuDNN takes while a convolution runs is not.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gpulesson
from gpulesson.timing import synchronize
from gpulesson_tools.planning.hardware import gpus
from measuring import Result, about, options
from practice_gpu.device.gpu import NAME

sys.path.append(str(Path(__file__).parents[1] / "tests" / "planning"))
import tasks

STEPS = 3
MIB = 2**20


def mlp(batch: int) -> tasks.Task:
    layers = nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    return nn.Sequential(*layers), tasks.images(batch, 784), tasks.classes_loss


def resnet50(batch: int) -> tasks.Task:
    from torchvision.models import resnet50 as make

    return make(), tasks.images(batch, 3, 224, 224, classes=1000), tasks.classes_loss


def vision_transformer(batch: int) -> tasks.Task:
    from torchvision.models import vit_b_16

    return vit_b_16(), tasks.images(batch, 3, 224, 224, classes=1000), tasks.classes_loss


def gpt(batch: int) -> tasks.Task:
    return tasks.GPT(512), tasks.tokens(batch, 32, 200), tasks.tokens_loss


MODELS: dict[str, Callable[[int], tasks.Task]] = {
    "784-2048-2048-10": mlp,
    "ResNet-50": resnet50,
    "ViT-B/16": vision_transformer,
    "GPT, 512 wide": gpt,
}


def train(task: tasks.Task, steps: int, after: Callable[[], None] = lambda: None) -> None:
    """Take steps with Adam on the device; call `after` at the end of each."""
    model, batch, loss_of = task
    model.to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        inputs = batch("cuda")
        optimizer.zero_grad()
        loss_of(model, *inputs).backward()
        optimizer.step()
        after()


def measured(make: Callable[[int], tasks.Task], batch: int, steps: int) -> dict[str, float]:
    """Return the peaks in MiB, and the median of a step's milliseconds."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    times: list[float] = []

    def note() -> None:
        synchronize(torch.device("cuda"))
        times.append(time.perf_counter())

    train(make(batch), STEPS + steps, note)
    lasted = [1e3 * (end - start) for start, end in pairwise(times)][STEPS - 1 :]
    return {
        "allocated": torch.cuda.max_memory_allocated() / MIB,
        "reserved": torch.cuda.max_memory_reserved() / MIB,
        "step": statistics.median(lasted),
    }


def planned(make: Callable[[int], tasks.Task], batch: int, gpu: str) -> dict[str, float]:
    """Return what a plan says of the same."""
    found = gpulesson.plan(lambda size: train(make(size), STEPS), gpu=gpu, batch_size=batch, dry=True)
    floor = found.gpus[0].floor
    assert floor is not None
    return {
        "planned_allocated": found.replay.peak_allocated / MIB,
        "planned_reserved": found.replay.peak_reserved / MIB,
        "floor": 1e3 * floor.seconds,
    }


def main() -> None:
    """Measure, print, write."""
    chosen = options(__doc__, "plan_on_gpu", batch=16, steps=10)
    if chosen.device.type != "cuda":
        raise SystemExit(f"this compares plans with a CUDA GPU, and the device is {chosen.device}")
    name = torch.cuda.get_device_name()
    gpu = gpus.find("T4" if name == NAME else name)
    rows: list[dict[str, Any]] = []
    for model, make in MODELS.items():
        for batch in (chosen.batch, 2 * chosen.batch, 4 * chosen.batch):
            row: dict[str, Any] = {"model": model, "batch": batch}
            row |= measured(make, batch, chosen.steps) | planned(make, batch, gpu.name)
            row["ratio"], row["times"] = (
                row["planned_allocated"] / row["allocated"],
                row["step"] / row["floor"],
            )
            rows.append(row)
    result = Result(
        "plan_on_gpu",
        f"Plans for {gpu.name}, and what it did: peak of the memory in MiB, milliseconds of a step",
        about(chosen.device, "torchvision", batch=chosen.batch, steps=chosen.steps),
        [
            ("model", "model", ""),
            ("batch", "batch", "d"),
            ("allocated", "allocated", ".1f"),
            ("planned_allocated", "planned", ".1f"),
            ("ratio", "planned / allocated", ".3f"),
            ("reserved", "reserved", ".0f"),
            ("planned_reserved", "planned", ".0f"),
            ("step", "step", ".2f"),
            ("floor", "at least", ".2f"),
            ("times", "step / at least", ".2f"),
        ],
        rows,
    )
    off = max(abs(row["ratio"] - 1) for row in rows)
    result.claim("allocated on the GPU, four models: plan is off by at most", off, ".1%", "<=", 0.1)
    nearest = min(row["times"] for row in rows)
    result.claim("step on the GPU / least time of the plan, the smallest", nearest, ".2f", ">=", 1.0)
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
