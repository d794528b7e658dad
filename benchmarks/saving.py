"""How long a save holds up the training loop: written at once, and in the background.

    python benchmarks/saving.py [--rounds 5] [--saves 6]

Networks of three sizes are trained on noise, with Adam; every tenth step is saved by AutoSave. Each round
trains three times in turn: without saving, with saving, with saving in the background. Held up is the longest
part of what a save takes from the loop: the time of `saves.step()` in a step that saves. The whole is the
time of all steps, which also shows what writing takes from the training beside it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gpulesson.checkpoint import AutoSave
from gpulesson.data import Batches
from gpulesson.timing import synchronize
from measuring import Result, about, options

EVERY = 10  # steps
SIZES = {"784-128-64-10": (784, 128, 64, 10), "784-1024-1024-10": (784, 1024, 1024, 10)}
SIZES["784-2048-2048-10"] = (784, 2048, 2048, 10)


def train(
    sizes: tuple[int, ...], saves: int, background: bool | None, device: torch.device
) -> tuple[Any, ...]:
    """Return the seconds of all steps, the median seconds of a step's save, and the bytes of a file."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for width, following in pairwise(sizes):
        layers += [nn.Linear(width, following), nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    samples = torch.randn(64, sizes[0], device=device)
    steps = EVERY * saves + 5  # the last save has time to be written beside some steps
    loader: list[tuple[Tensor]] = list(Batches(samples, batch_size=64)) * steps
    held: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        autosave = AutoSave(
            folder,
            model=model,
            optimizer=optimizer,
            every_steps=steps if background is None else EVERY,
            background=bool(background),
        )
        with autosave:
            for _ in autosave.epochs(1):
                start = time.perf_counter()
                for number, (inputs,) in enumerate(autosave.batches(loader), start=1):
                    loss = model(inputs).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    if number % EVERY == 0:
                        synchronize(device)
                    before = time.perf_counter()
                    autosave.step()
                    if number % EVERY == 0:
                        held.append(time.perf_counter() - before)
                autosave._settle()
                synchronize(device)
                whole = time.perf_counter() - start
                break
        size = 0 if autosave.path is None else autosave.path.stat().st_size
    return whole, statistics.median(held), size


def main() -> None:
    """Measure, print, write."""
    chosen = options(__doc__, "saving", rounds=5, saves=6)
    rows = []
    for name, sizes in SIZES.items():
        found = [
            [train(sizes, chosen.saves, background, chosen.device) for background in (None, False, True)]
            for _ in range(chosen.rounds)
        ]
        ratio = statistics.median(aside[1] / once[1] for _, once, aside in found)
        rows.append(
            {
                "network": name,
                "size": found[0][1][2] / 2**20,
                "once": 1000 * statistics.median(once[1] for _, once, _ in found),
                "aside": 1000 * statistics.median(aside[1] for _, _, aside in found),
                "ratio": ratio,
                "whole_once": statistics.median(once[0] / none[0] for none, once, _ in found),
                "whole_aside": statistics.median(aside[0] / none[0] for none, _, aside in found),
            }
        )
    result = Result(
        "saving",
        f"What a save every {EVERY} steps takes from the loop: at once, and in the background",
        about(chosen.device, rounds=chosen.rounds, saves=chosen.saves),
        [
            ("network", "network, Adam", ""),
            ("size", "file, MiB", ".1f"),
            ("once", "held up, ms", ".1f"),
            ("aside", "in the background, ms", ".1f"),
            ("ratio", "ratio", ".3f"),
            ("whole_once", "all steps / unsaved", ".2f"),
            ("whole_aside", "in the background", ".2f"),
        ],
        rows,
    )
    result.claim(
        f"time that a save of {rows[-1]['size']:.0f} MiB holds up the loop, in the background / at once",
        rows[-1]["ratio"],
        ".2f",
    )
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
