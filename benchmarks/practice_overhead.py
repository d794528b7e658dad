"""What the practice GPU costs: CPU time of a training loop on it, against the same loop on the plain CPU.

    python benchmarks/practice_overhead.py [--rounds 11] [--json FILE] [--only LOOP …]

====================  ====================================================================================
``tiny SGD``,         a multilayer perceptron 2-32-32-2, batch 32: almost no arithmetic
``tiny Adam``
``slices 128``,       784-128-64-10 (or 784-1024-1024-10), batch 64, Adam, batches cut out of one tensor
``slices 1024``
``loader 128``,       the same, batches from a DataLoader over a TensorDataset, shuffled
``loader 1024``
``GPT``               a transformer of 2 blocks, 64 wide, 4 heads, context 64, dropout 0.1, batch 8, AdamW
``ResNet-18``         torchvision's, pictures of 32 by 32, batch 16, SGD with momentum
====================  ====================================================================================

Every loop reads ``loss.item()`` in every step. Each round runs plain, practice, practice, plain, with fresh
weights, on one thread, and compares CPU time (``time.process_time``: both runs really compute on the CPU).
The same runs, plain against plain, are the control. For comparison, "mode" is a ``TorchDispatchMode`` that
sees every operator and only passes it on. All must end with the same losses. On Linux the GNU C library keeps
freed memory (``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_``): how often pages go back to the system
and come again varies more than what is compared.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from gpulesson.practice import practice_gpu

Batches = Iterable[tuple[Tensor, Tensor]]
LETTERS = 65  # that the transformer knows

KEEP_MEMORY = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(2**32))


@dataclass(frozen=True)
class Loop:
    """A training loop: what it trains, how, on what, how many steps, and the ratio that is wanted."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    batches: Callable[[], Batches]
    steps: int
    target: float


# -- models


def perceptron(*sizes: int) -> nn.Module:
    """Return linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for given, returned in pairwise(sizes):
        layers += [nn.Linear(given, returned), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    """One block of the transformer: attention, then two linear layers."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.together = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`: samples, positions, width."""
        parts = self.projections(self.before(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout, is_causal=True)
        x = x + self.drop(self.together(seen.transpose(1, 2).flatten(2)))
        return x + self.layers(self.between(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """A small GPT."""

    def __init__(self, blocks: int, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads, dropout) for _ in range(blocks)])
        self.end = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, LETTERS))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores: samples, letters, positions."""
        places = self.places(torch.arange(x.shape[1], device=x.device))
        return self.end(self.blocks(self.letters(x) + places)).transpose(1, 2)  # type: ignore[no-any-return]


def resnet() -> nn.Module:
    """Return torchvision's ResNet-18, for ten classes."""
    from torchvision.models import resnet18

    return resnet18(num_classes=10)  # type: ignore[no-any-return]


# -- data


def points(samples: int, *shape: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return random samples and labels."""
    generator = torch.Generator().manual_seed(1)
    return (
        torch.rand(samples, *shape, generator=generator),
        torch.randint(classes, (samples,), generator=generator),
    )


def sliced(steps: int, batch: int, *shape: int, classes: int = 10) -> Callable[[], Batches]:
    """Cut batches out of one tensor."""
    data = points(steps * batch, *shape, classes=classes)
    return lambda: zip(*(tensor.split(batch) for tensor in data), strict=True)


def loaded(steps: int, batch: int, *shape: int, classes: int = 10) -> Callable[[], Batches]:
    """Let a DataLoader shuffle and stack them."""
    data = TensorDataset(*points(steps * batch, *shape, classes=classes))
    return lambda: DataLoader(data, batch_size=batch, shuffle=True)


def texts(steps: int, batch: int, context: int) -> Callable[[], Batches]:
    """Return pieces of a random text, and the same pieces one letter on."""
    text = torch.randint(LETTERS, (steps, batch, context + 1), generator=torch.Generator().manual_seed(1))
    return lambda: ((part[:, :-1], part[:, 1:]) for part in text)


# -- loops


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return SGD."""
    return torch.optim.SGD(parameters, lr=0.1)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    """Return SGD with momentum."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    """Return Adam."""
    return torch.optim.Adam(parameters, lr=1e-3)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """Return AdamW."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def tiny() -> nn.Module:
    """Return the smallest of the models."""
    return perceptron(2, 32, 32, 2)


def small() -> nn.Module:
    """Return the model that the lessons train."""
    return perceptron(784, 128, 64, 10)


def wide() -> nn.Module:
    """Return one that computes more."""
    return perceptron(784, 1024, 1024, 10)


def gpt() -> nn.Module:
    """Return the transformer."""
    return Transformer(blocks=2, width=64, heads=4, context=64, dropout=0.1)


LOOPS = {
    "tiny SGD": Loop(tiny, sgd, sliced(300, 32, 2, classes=2), 300, 2.0),
    "tiny Adam": Loop(tiny, adam, sliced(200, 32, 2, classes=2), 200, 2.0),
    "slices 128": Loop(small, adam, sliced(100, 64, 784), 100, 2.0),
    "slices 1024": Loop(wide, adam, sliced(12, 64, 784), 12, 1.3),
    "loader 128": Loop(small, adam, loaded(100, 64, 784), 100, 2.0),
    "loader 1024": Loop(wide, adam, loaded(12, 64, 784), 12, 1.3),
    "GPT": Loop(gpt, adamw, texts(12, 8, 64), 12, 1.5),
    "ResNet-18": Loop(resnet, momentum, sliced(4, 16, 3, 32, 32), 4, 1.1),
}


# -- measuring


class Empty(TorchDispatchMode):
    """Sees every operator, and passes it on."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as the practice GPU's mode: else PyTorch wraps it in a slow layer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func._op(*args, **(kwargs or {}))


def train(loop: Loop, device: str) -> tuple[float, list[float]]:
    """Train for one epoch and return CPU seconds and the losses."""
    torch.manual_seed(0)
    model = loop.model().to(device)
    optimizer = loop.optimizer(model.parameters())
    torch.manual_seed(0)  # for dropout: a device's random numbers are its own
    losses = []
    start = time.process_time()
    for inputs, labels in loop.batches():
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return time.process_time() - start, losses


def run(loop: Loop, who: str) -> tuple[float, list[float]]:
    """Train where `who` says."""
    if who == "practice":
        with practice_gpu(force=True):
            return train(loop, "cuda")
    with Empty() if who == "mode" else nullcontext():
        return train(loop, "cpu")


def rounds(loop: Loop, number: int) -> Iterator[dict[str, float]]:
    """Yield the ratio, the control's and the mode's, and the plain time of each round."""
    for number_of_round in range(number + 1):
        times = {"plain": 0.0, "practice": 0.0, "control": 0.0, "mode": 0.0}
        expected = None
        for who in ("plain", "practice", "control", "mode", "mode", "control", "practice", "plain"):
            seconds, losses = run(loop, who)
            times[who] += seconds
            expected = expected or losses
            assert losses == expected, f"{who}: other losses than on the CPU"
        if number_of_round:  # the first one warms up
            yield {
                "ratio": times["practice"] / times["plain"],
                "control": times["control"] / times["plain"],
                "mode": times["mode"] / times["plain"],
                "plain_ms_per_step": times["plain"] / 2 / loop.steps * 1e3,
            }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11, help="rounds for each row")
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    parser.add_argument("--only", nargs="+", default=LOOPS, choices=LOOPS, metavar="LOOP", help="some loops")
    options = parser.parse_args()
    if sys.platform == "linux" and not os.environ.keys() >= KEEP_MEMORY.keys():  # read when Python starts
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **KEEP_MEMORY})
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, one thread, {platform.machine()}")
    print(f"{'loop':12} {'plain ms/step':>13}   practice/plain min median max   control   mode   target")
    rows = []
    for name in options.only:
        loop = LOOPS[name]
        measured = list(rounds(loop, options.rounds))
        ratios = sorted(row["ratio"] for row in measured)
        row = {
            "loop": name,
            "plain_ms_per_step": statistics.median(row["plain_ms_per_step"] for row in measured),
            "ratio": {"min": ratios[0], "median": statistics.median(ratios), "max": ratios[-1]},
            "control": statistics.median(row["control"] for row in measured),
            "mode": statistics.median(row["mode"] for row in measured),
            "target": loop.target,
            "met": statistics.median(ratios) <= loop.target,
        }
        rows.append(row)
        low, middle, high = row["ratio"].values()
        print(
            f"{name:12} {row['plain_ms_per_step']:13.2f}   {low:18.2f} {middle:6.2f} {high:4.2f}"
            f"   {row['control']:7.2f} {row['mode']:6.2f}   {loop.target:6.1f}"
            f" {'met' if row['met'] else 'NOT met'}",
            flush=True,
        )
    if options.json:
        about = {"torch": torch.__version__, "python": platform.python_version(), "rounds": options.rounds}
        options.json.write_text(json.dumps({**about, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
