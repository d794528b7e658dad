"""What the practice GPU costs: CPU time of a training loop on it, against the same loop on the plain CPU.

    python benchmarks/practice_overhead.py [--rounds 11] [--json FILE]

The model is 784-128-64-10 (or 784-1024-1024-10), the batch 64, the optimizer Adam, ``loss.item()`` every
step. ``slices`` cuts the batches out of one tensor; ``loader`` is a DataLoader over a TensorDataset,
shuffled. Each round runs plain, practice, practice, plain, with fresh weights, on one thread, and compares
CPU time (``time.process_time``: both runs really compute on the CPU). The same four runs, plain against
plain, are the control. Both must end with the same losses.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gpulesson.practice import practice_gpu

BATCH = 64
STEPS = {128: 100, 1024: 12}
TARGETS = {128: 2.0, 1024: 1.3}


def batches(kind: str, images: torch.Tensor, labels: torch.Tensor) -> Iterable[Any]:
    """Return the batches of one epoch."""
    if kind == "loader":
        return DataLoader(TensorDataset(images, labels), batch_size=BATCH, shuffle=True)
    return ((images[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, len(images), BATCH))


def train(
    kind: str, sizes: tuple[int, int], device: str, data: tuple[torch.Tensor, ...]
) -> tuple[float, list[float]]:
    """Train for one epoch and return CPU seconds and the losses."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(784, sizes[0]), nn.ReLU(), nn.Linear(sizes[0], sizes[1]), nn.ReLU(), nn.Linear(sizes[1], 10)
    ).to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    start = time.process_time()
    for images, labels in batches(kind, *data):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = loss_fn(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return time.process_time() - start, losses


def rounds(kind: str, hidden: int, number: int) -> Iterator[dict[str, float]]:
    """Yield the ratio, the control's ratio and the plain time of each round."""
    generator = torch.Generator().manual_seed(1)
    samples = BATCH * STEPS[hidden]
    data = (
        torch.rand(samples, 784, generator=generator),
        torch.randint(0, 10, (samples,), generator=generator),
    )
    sizes = (128, 64) if hidden == 128 else (hidden, hidden)
    for number_of_round in range(number + 1):
        times: dict[str, float] = {"plain": 0.0, "practice": 0.0, "control": 0.0}
        for who in ("plain", "practice", "control", "control", "practice", "plain"):
            practised = who == "practice"
            with practice_gpu(force=True) if practised else nullcontext():
                seconds, losses = train(kind, sizes, "cuda" if practised else "cpu", data)
            times[who] += seconds
            expected = losses if who == "plain" else expected  # noqa: F821 - the first run is plain
            assert losses == expected, "the practice GPU computed other losses than the CPU"
        if number_of_round:  # the first one warms up
            yield {
                "ratio": times["practice"] / times["plain"],
                "control": times["control"] / times["plain"],
                "plain_ms_per_step": times["plain"] / 2 / STEPS[hidden] * 1e3,
            }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11, help="rounds for each row")
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, one thread, {platform.machine()}")
    print(
        f"{'loop':8} {'hidden':>6} {'plain ms/step':>14}   practice/plain min median max   control   target"
    )
    rows = []
    for kind in ("slices", "loader"):
        for hidden in STEPS:
            measured = list(rounds(kind, hidden, options.rounds))
            ratios = sorted(row["ratio"] for row in measured)
            row = {
                "loop": kind,
                "hidden": hidden,
                "plain_ms_per_step": statistics.median(row["plain_ms_per_step"] for row in measured),
                "ratio": {"min": ratios[0], "median": statistics.median(ratios), "max": ratios[-1]},
                "control": statistics.median(row["control"] for row in measured),
                "target": TARGETS[hidden],
            }
            rows.append(row)
            low, middle, high = row["ratio"].values()
            print(
                f"{kind:8} {hidden:6} {row['plain_ms_per_step']:14.2f}"
                f"   {low:18.2f} {middle:6.2f} {high:4.2f}   {row['control']:7.2f}   {row['target']:6.1f}",
                flush=True,
            )
    if options.json:
        about = {"torch": torch.__version__, "python": platform.python_version(), "rounds": options.rounds}
        options.json.write_text(json.dumps({**about, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
