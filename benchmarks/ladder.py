"""From the naive script to near the limit, one change a rung: the time of an epoch.

    python benchmarks/ladder.py [--rounds 7]

The 784-128-64-10 network with Adam on the images of the data source that is named. A rung that claims the
same work must end its epoch with the naive script's loss, from the same weights, in the same order. In each
round every rung trains for one epoch with fresh weights, in random order; ratios are taken within a round.
On a CPU one thread computes, in the limits as well: the arithmetic alone, at the rate of large matrix
products. A warm-up round, in which compilers compile, is left out. How soon a way of training is as good as
the naive script, is another question, see time_to_accuracy.py: a rung with other work may have learned less
after its epoch, as the accuracy beside it shows.
"""

from __future__ import annotations

import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gpulesson.capture import captured_step
from gpulesson.data import Batches, Images, load_fashion_mnist
from gpulesson.evaluation import evaluate
from gpulesson.step import Step
from gpulesson.timing import measure as timed
from gpulesson.timing import synchronize
from gpulesson.training import fit
from measuring import Result, about, network, options, spread
from plain_loops import by_hand, loader, loss_fn, naive, naive_loader, reseed

FLOP = 6 * (784 * 128 + 128 * 64 + 64 * 10) - 2 * 784 * 128  # a sample; no gradient of the images is needed


NAIVE, FIT = "naive script: a picture at a time", "the same, by fit"


@dataclass(frozen=True)
class Rung:
    """One way to train: how batches are made, which loop, which optimizer."""

    name: str
    batches: str = "resident"  # or "naive", "workers", "tensors", "bytes"
    loop: str = "fit"  # or "naive", "by hand", "graph"
    batch_size: int = 64
    rate: float = 1e-3
    adam: dict[str, bool] = field(default_factory=lambda: {"fused": True})
    amp: str | None = None
    compiled: bool = False
    matmul: str = "highest"
    same: bool = True  # the same work: the naive script's losses
    only: str = ""  # a kind of device
    base: str = NAIVE  # the rung that it is compared with
    model: Callable[[torch.device, int], nn.Module] = network


class CNN(nn.Module):
    """Two convolutions and two linear layers, for images ``[N, 28, 28]``."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU())
        self.linear = nn.Sequential(nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pictures = self.convolutions(images.unsqueeze(1))  # [N, 64, 24, 24]
        return self.linear(nn.functional.max_pool2d(pictures, 2).flatten(1))


def cnn(device: torch.device, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return CNN().to(device)


def cnn_channels_last(device: torch.device, seed: int = 0) -> nn.Module:
    return cnn(device, seed).to(memory_format=torch.channels_last)


CONVOLUTIONS = "a small CNN, by fit, batch 512"
WITH_CNN: dict[str, Any] = {"batch_size": 512, "same": False, "only": "cuda", "base": CONVOLUTIONS}
RUNGS = [
    Rung(NAIVE, "naive", "naive", adam={}),
    Rung("two workers load", "workers", "naive", adam={}),
    Rung("tensors once: TensorDataset", "tensors", "naive", adam={}),
    Rung("index batching, resident", "resident", "naive", adam={}),
    Rung("resident as bytes", "bytes", "naive", adam={}),
    Rung("no .item() in a step", "resident", "by hand", adam={}),
    Rung("fused Adam", "resident", "by hand"),
    Rung(FIT),
    Rung("torch.compile", compiled=True),
    Rung("CUDA graph of the step", loop="graph", adam={"fused": True, "capturable": True}, only="cuda"),
    Rung("TF32", matmul="high", same=False, only="cuda"),
    Rung("bfloat16 autocast", amp="bf16", same=False),
    Rung("batch 256, rate 3e-3", batch_size=256, rate=3e-3, same=False),
    Rung("batch 256, 3e-3, medium", batch_size=256, rate=3e-3, matmul="medium", same=False),
    Rung("batch 512, 4e-3, medium", batch_size=512, rate=4e-3, matmul="medium", same=False),
    Rung("batch 512, 4e-3, bf16", batch_size=512, rate=4e-3, amp="bf16", same=False),
    Rung("batch 1024, 6e-3, bf16", batch_size=1024, rate=6e-3, amp="bf16", same=False),
    Rung(CONVOLUTIONS, batch_size=512, same=False, only="cuda", base=CONVOLUTIONS, model=cnn),
    Rung("the same, bfloat16", **WITH_CNN, amp="bf16", model=cnn),
    Rung("the same, bfloat16, channels_last", **WITH_CNN, amp="bf16", model=cnn_channels_last),
]


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Multiply float32 matrices with this precision, and with full precision afterwards."""
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


class Training:
    """A rung with its data, which trains epoch by epoch from fresh weights."""

    def __init__(self, rung: Rung, data: Images, device: torch.device) -> None:
        self.rung, self.device = rung, device
        self.model = rung.model(device, 0)
        if rung.compiled:
            self.model.compile(fullgraph=True)
        self.batches = make_batches(rung, data, device)
        self.count = len(data.train_images)

    def restart(self, seed: int) -> None:
        """Take the weights that this seed gives, and a new optimizer."""
        self.model.load_state_dict(self.rung.model(self.device, seed).state_dict())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.rung.rate, **self.rung.adam)
        self.loop = LOOPS[self.rung.loop](self)

    def epoch(self, seed: int) -> tuple[float, float]:
        """Train for one epoch in the order that `seed` decides; return seconds and mean loss."""
        reseed(self.batches, seed)
        with products(self.rung.matmul):
            synchronize(self.device)
            start = time.perf_counter()
            loss = self.loop()
            synchronize(self.device)
            return time.perf_counter() - start, loss

    def mean(self, losses: list[float]) -> float:
        """Average over samples; the last batch may be short."""
        size = self.rung.batch_size
        sizes = [min(size, self.count - size * step) for step in range(len(losses))]
        return sum(loss * part for loss, part in zip(losses, sizes, strict=True)) / self.count


def make_batches(rung: Rung, data: Images, device: torch.device) -> Any:
    if rung.batches in ("naive", "workers"):
        return naive_loader(rung.batch_size, workers=2 if rung.batches == "workers" else 0)
    images, targets = data.train_images, data.train_targets
    if rung.batches == "tensors":
        return loader(TensorDataset(images.float() / 255, targets), rung.batch_size)
    as_floats: dict[str, Any] = {"transform": lambda part: part.float() / 255}
    return Batches(
        images.to(device) if rung.batches == "bytes" else images.to(device).float() / 255,
        targets.to(device),
        batch_size=rung.batch_size,
        shuffle=True,
        generator=torch.Generator(),
        **(as_floats if rung.batches == "bytes" else {}),
    )


def with_fit(t: Training) -> Callable[[], float]:
    step = None if t.rung.amp is None else Step(t.optimizer, amp=t.rung.amp)
    return lambda: fit(t.model, t.batches, loss_fn, t.optimizer, t.device, 1, step=step).train_loss[0]


def with_graph(t: Training) -> Callable[[], float]:
    step = captured_step(t.model, loss_fn, t.optimizer, *next(iter(t.batches)))
    return lambda: t.mean(torch.stack([step(*batch) for batch in t.batches]).tolist())


LOOPS: dict[str, Callable[[Training], Callable[[], float]]] = {
    "naive": lambda t: lambda: t.mean(naive(t.model, t.batches, t.optimizer, t.device)),
    "by hand": lambda t: lambda: t.mean(by_hand(t.model, t.batches, t.optimizer, t.device)),
    "fit": with_fit,
    "graph": with_graph,
}


def epochs(trainings: list[Training], rounds: int) -> tuple[list[list[float]], list[float]]:
    """Return, for each rung, the seconds of every round, and the loss after an epoch from seed 0."""
    shuffle = random.Random(0).shuffle
    seconds: list[list[float]] = [[] for _ in trainings]
    losses = [0.0] * len(trainings)
    for number in range(rounds + 1):
        places = list(range(len(trainings)))
        shuffle(places)
        for place in places:
            trainings[place].restart(seed=0)
            took, losses[place] = trainings[place].epoch(seed=0)
            if number:  # the first round warms up
                seconds[place].append(took)
    return seconds, losses


def accuracy(training: Training, data: Images) -> float:
    """Return the share of the test images that the network names rightly, after its last epoch."""
    device = training.device
    batches = Batches(
        data.test_images.to(device).float() / 255, data.test_targets.to(device), batch_size=1000
    )
    found = evaluate(training.model, batches, loss_fn, device).accuracy
    assert found is not None
    return found


def limit(device: torch.device, dtype: torch.dtype, samples: int) -> float:
    """Return the seconds of an epoch's arithmetic at the rate of large matrix products, measured here."""
    size = 2048 if device.type == "cpu" else 8192
    one = torch.randn(size, size, device=device).to(dtype)
    return FLOP * samples / (2 * size**3 / timed(lambda: one @ one, device=device, repeats=7).median)


def check(trainings: list[Training], losses: list[float]) -> None:
    """Refuse a rung that says it does the same work, and has another loss."""
    for training, loss in zip(trainings, losses, strict=True):
        if training.rung.same and abs(loss / losses[0] - 1) > 1e-3:
            raise SystemExit(f"{training.rung.name}: loss {loss}, the naive script's is {losses[0]}")


def main() -> None:
    """Measure, print, write."""
    warnings.simplefilter("ignore")
    chosen = options(__doc__, "ladder", rounds=7)
    torch.set_num_threads(1)  # steps this small gain nothing from more
    device, data = chosen.device, load_fashion_mnist()
    trainings = [Training(rung, data, device) for rung in RUNGS if rung.only in ("", device.type)]
    seconds, losses = epochs(trainings, chosen.rounds)
    check(trainings, losses)
    rows = []
    by_name = {training.rung.name: took for training, took in zip(trainings, seconds, strict=True)}
    for training, took, loss in zip(trainings, seconds, losses, strict=True):
        ratios = [base / own for base, own in zip(by_name[training.rung.base], took, strict=True)]
        same = "same" if training.rung.same else "other"
        rows.append({"rung": training.rung.name, "work": same, "seconds": statistics.median(took)})
        rows[-1] |= {"loss": loss, "accuracy": accuracy(training, data), **spread(ratios)}
    samples = len(data.train_images)
    limits = {
        f"arithmetic in {name}": limit(device, getattr(torch, name), samples)
        for name in ("float32", "bfloat16")
    }
    for name, bound in limits.items():
        rows.append({"rung": f"limit: the {name}", "seconds": bound})
        rows[-1] |= {"median": rows[0]["seconds"] / bound}
    report(chosen, about(device, "torchvision", data=data.source, rounds=chosen.rounds), rows)


def fastest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of `fit` with the highest speed-up over the naive script."""
    of_fit = {rung.name for rung in RUNGS if rung.base == NAIVE and rung.loop == "fit"}
    return max((row for row in rows if row["rung"] in of_fit), key=lambda row: float(row["median"]))


def report(chosen: Any, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    columns = [
        ("rung", "rung", ""),
        ("work", "work", ""),
        ("seconds", "seconds an epoch", ".4f"),
        *[(key, f"speed-up, {key}" if key == "min" else key, ".2f") for key in ("min", "median", "max")],
        ("loss", "loss after an epoch", ".4f"),
        ("accuracy", "test accuracy", ".1%"),
    ]
    result = Result("ladder", "From the naive script to near the limit: one epoch", facts, columns, rows)
    gpu = chosen.device.type == "cuda"
    by_name = {row["rung"]: row for row in rows}
    best_of_fit = fastest(rows)
    for row, what, least in (
        (by_name[FIT], "same steps, same loss: `fit` / naive script", 20 if gpu else 7),
        (best_of_fit, f"`fit`, any batch ({best_of_fit['rung']}) / naive script", 22),
    ):
        spread_of = f"{row['min']:.1f} to {row['max']:.1f} in {chosen.rounds} rounds"
        reached = f"{row['accuracy']:.1%} after an epoch, the naive script {by_name[NAIVE]['accuracy']:.1%}"
        result.claim(f"{what}, median ({spread_of}; {reached})", row["median"], ".2f", ">=", least)
    best = min(
        row["seconds"] for row in rows if row["rung"] in {rung.name for rung in RUNGS if rung.base == NAIVE}
    )
    what = "fastest epoch / its arithmetic alone, in bfloat16, at the rate of 2048 by 2048 products"
    if gpu:
        what = what.replace("2048", "8192")
    result.claim(what, best / by_name["limit: the arithmetic in bfloat16"]["seconds"], ".1f")
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
