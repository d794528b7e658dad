"""A training step as one CUDA graph, against the same step operator by operator.

    python benchmarks/captured.py [--rounds 9]

The 784-128-64-10 network with fused Adam, on random images that are on the device already. Each round times
both, in random order, over steps that are queued together and waited for once; ratios are taken within a
round. Both must end with the same losses. Where there are no CUDA graphs, both are plain steps.
"""

from __future__ import annotations

import random
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpulesson.capture import captured_step
from gpulesson.timing import synchronize
from measuring import SPREAD, Result, about, network, options, spread
from plain_loops import loss_fn

STEPS = 50
CASES = [(batch_size, amp) for amp in (None, "bf16") for batch_size in (64, 512, 4096)]
Step = Callable[[Tensor, Tensor], Tensor]


def plain(model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device, amp: Any) -> Step:
    """Return the step as a loop has it."""

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=amp is not None):
            loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def pair(device: torch.device, batch: tuple[Tensor, Tensor], amp: Any) -> dict[str, Step]:
    """Return both steps, each with its own network and optimizer."""
    steps: dict[str, Step] = {}
    graphs = {"capturable": True} if device.type == "cuda" else {}
    for name in ("plain", "captured"):
        model = network(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, **graphs)
        captured = name == "captured"
        steps[name] = (
            captured_step(model, loss_fn, optimizer, *batch, amp=amp)
            if captured
            else plain(model, optimizer, device, amp)
        )
    return steps


def seconds_and_loss(step: Step, batch: tuple[Tensor, Tensor], device: torch.device) -> tuple[float, float]:
    """Return the seconds of one step, of `STEPS` that are waited for together, and the last loss."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(STEPS):
        loss = step(*batch)
    synchronize(device)
    return (time.perf_counter() - start) / STEPS, loss.item()


def measure(device: torch.device, batch_size: int, amp: Any, rounds: int) -> dict[str, Any]:
    """Return one row of the table."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch_size, 784, generator=generator).to(device)
    batch = images, torch.randint(10, (batch_size,), generator=generator).to(device)
    steps = pair(device, batch, amp)
    took: dict[str, list[float]] = {name: [] for name in steps}
    losses = dict.fromkeys(steps, 0.0)
    for number in range(rounds + 1):
        for name in random.sample(list(steps), len(steps)):
            seconds, losses[name] = seconds_and_loss(steps[name], batch, device)
            if number:  # the first round warms up
                took[name].append(seconds)
        if abs(losses["plain"] - losses["captured"]) > 1e-2 * max(1.0, losses["plain"]):
            raise SystemExit(f"batch {batch_size}, {amp or 'float32'}: other losses, {losses}")
    ratios = [one / other for one, other in zip(took["plain"], took["captured"], strict=True)]
    row = {f"{name}_us": statistics.median(values) * 1e6 for name, values in took.items()}
    return {"case": f"batch {batch_size:,}, {amp or 'float32'}", **row, **spread(ratios)}


def main() -> None:
    """Measure, print, write."""
    warnings.simplefilter("ignore")
    chosen = options(__doc__, "captured", rounds=9)
    torch.set_num_threads(1)
    random.seed(0)
    rows = [measure(chosen.device, batch_size, amp, chosen.rounds) for batch_size, amp in CASES]
    result = Result(
        "captured",
        "A training step as one CUDA graph, against the same step operator by operator",
        about(chosen.device, rounds=chosen.rounds),
        [("case", "step", ""), ("plain_us", "µs plain", ".0f"), ("captured_us", "µs captured", ".0f")]
        + [(key, f"speed-up, {key}" if key == "min" else key, spec) for key, _, spec in SPREAD],
        rows,
    )
    result.claim(f"captured step / plain step, {rows[0]['case']}: speed-up", rows[0]["median"], ".2f")
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
