"""The GPU memory that a training needs at most: as the practice GPU predicts it, and as it is.

    python benchmarks/memory.py

Each training runs twice on the device and then on the practice GPU, in this process. A figure is the peak
less what was allocated before the second run: workspaces that libraries keep from the first one on are told
in a row of their own. What the practice GPU cannot know is what an operator takes for itself while it runs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from ladder import CNN
from measuring import Result, about, network, options
from plain_loops import loss_fn
from practice_gpu import practice_gpu

STEPS = 3
MiB = 2**20


def train(model: nn.Module, optimizer: Callable[..., Any], batch_size: int, bf16: bool = False) -> None:
    """Train for a few steps on images of noise, which travel to the device batch by batch."""
    model.to("cuda")
    stepper = optimizer(model.parameters())
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        images = torch.rand(batch_size, 28, 28, generator=generator).to("cuda")
        labels = torch.randint(10, (batch_size,), generator=generator).to("cuda")
        stepper.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            loss = loss_fn(model(images if isinstance(model, CNN) else images.flatten(1)), labels)
        loss.backward()
        stepper.step()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-2)


def fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


def wide() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
    )


CASES: dict[str, Callable[[], None]] = {
    "784-128-64-10, Adam, batch 64": lambda: train(network(), torch.optim.Adam, 64),
    "784-128-64-10, fused Adam, batch 8,192": lambda: train(network(), fused, 8192),
    "784-4096-4096-10, SGD, batch 512": lambda: train(wide(), sgd, 512),
    "784-4096-4096-10, Adam, batch 512": lambda: train(wide(), torch.optim.Adam, 512),
    "784-4096-4096-10, Adam, batch 512, bfloat16": lambda: train(wide(), torch.optim.Adam, 512, bf16=True),
    "a small CNN, fused Adam, batch 256": lambda: train(CNN(), fused, 256),
    "a small CNN, fused Adam, batch 256, bfloat16": lambda: train(CNN(), fused, 256, bf16=True),
}


def peak(case: Callable[[], None]) -> dict[str, float]:
    """Return MiB: the peak of the second run above what was there before it, and what the first one left."""
    for _ in range(2):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        case()
        torch.cuda.synchronize()
    high, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {"peak": (high - before) / MiB, "reserved": reserved / MiB, "left": before / MiB}


def peaks(place: AbstractContextManager[Any]) -> dict[str, dict[str, float]]:
    with place:
        return {name: peak(case) for name, case in CASES.items()}


def main() -> None:
    """Measure, print, write."""
    chosen = options(__doc__, "memory")
    if chosen.device.type != "cuda":
        raise SystemExit(f"this measures a CUDA GPU's memory, and the device is {chosen.device}")
    measured, predicted = peaks(nullcontext()), peaks(practice_gpu(force=True))
    rows: list[dict[str, Any]] = []
    for name, own in measured.items():
        ratio = own["peak"] / predicted[name]["peak"]
        rows.append(
            {"case": name, "measured": own["peak"], "predicted": predicted[name]["peak"], "ratio": ratio}
        )
        rows[-1] |= {"reserved": own["reserved"], "reserved_predicted": predicted[name]["reserved"]}
    kept = max(own["left"] for own in measured.values())
    rows.append({"case": "kept by libraries from then on", "measured": kept, "predicted": 0.0})
    result = Result(
        "memory",
        "The peak of the GPU memory of a training: measured, and predicted by the practice GPU, in MiB",
        about(chosen.device),
        [
            ("case", "training", ""),
            ("measured", "measured", ".2f"),
            ("predicted", "predicted", ".2f"),
            ("ratio", "measured / predicted", ".3f"),
            ("reserved", "reserved", ".0f"),
            ("reserved_predicted", "predicted", ".0f"),
        ],
        rows,
    )
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    result.claim("measured / predicted peak of GPU memory, the furthest from one", worst, ".3f")
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
