"""How soon a way of training is as good as the naive script: fixed lengths, mean accuracies, all timed.

    python benchmarks/time_to_accuracy.py [--seeds 30]

A run has a fixed number of steps, and a way counts if its mean test accuracy over all seeds is at least the
naive script's: nobody stops at a lucky moment. (Keller Jordan's airbench measures like this,
https://arxiv.org/abs/2404.00498.) The learning rate of every way, the naive script's too, is the one with the
highest mean accuracy on 2,000 training images that are held out for this; the test images are looked at once,
at the end. (Epochs, batch sizes, betas and the components come from earlier trials, on held-out training
images as well.) A time is that of a whole run, from the images as bytes (in memory; the naive script opens
their files, once a run) to a trained 784-128-64-10 network that takes pixels from 0 to 1: with floats made,
mean subtracted, and folded back into the first layer. Ways take turns in random order, from a fresh seed in
each round; ratios are taken within a round. On a CPU one thread computes, and its own time counts.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.models import MLP
from gpulesson.step import Step
from gpulesson.timing import synchronize
from gpulesson.training import fit
from measuring import Result, about, interval, network, options, spread
from plain_loops import loss_fn, naive, naive_loader, reseed_epoch

HELD_OUT = 2000  # training images for the choice of rates
TUNING_SEEDS = 6
COMPONENTS = 48

Split = tuple[Tensor, Tensor, Tensor, Tensor]  # images [N, 28, 28] and labels [N] to train with, and to test


@dataclass(frozen=True)
class Way:
    """One way to train. `rates` are tried; the chosen one is the only one left."""

    name: str
    rates: Sequence[float]
    epochs: int = 5
    batch_size: int = 64
    betas: tuple[float, float] = (0.9, 0.999)
    prepare: str = "pixels"  # or "centred", "components"
    schedule: bool = False  # the rate rises for a tenth of the steps, and falls to zero
    matmul: str = "highest"
    reads_files: bool = False  # the naive script itself


WAYS = [
    Way("naive script", (1e-3, 2e-3, 3e-3, 5e-3), reads_files=True),
    Way("the same arithmetic, by fit", (1e-3, 2e-3, 3e-3, 5e-3)),
    Way(
        "centred, a schedule, batch 288",
        (5e-3, 7e-3, 1e-2, 1.4e-2),
        epochs=2,
        batch_size=288,
        betas=(0.6, 0.9),
        prepare="centred",
        schedule=True,
        matmul="medium",
    ),
    Way(
        f"{COMPONENTS} whitened components, batch 384",
        (2e-2, 3e-2, 4e-2, 6e-2),
        epochs=2,
        batch_size=384,
        betas=(0.5, 0.85),
        prepare="components",
        schedule=True,
    ),
]


def train(way: Way, split: Split, seed: int, device: torch.device) -> nn.Module:
    """Return a 784-128-64-10 network, trained from the weights and in the order of this seed."""
    if way.reads_files:
        return by_the_naive_script(way, seed, device)
    torch.set_float32_matmul_precision(way.matmul)
    inputs, fold = PREPARE[way.prepare](split[0].to(device))
    torch.manual_seed(seed)
    model = MLP(inputs.shape[1], 128, 64, 10).to(device)
    [rate] = way.rates
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=way.betas, fused=True)
    order = torch.Generator()
    batches = Batches(inputs, split[1].to(device), batch_size=way.batch_size, shuffle=True, generator=order)
    schedule = None
    if way.schedule:
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            rate,
            total_steps=way.epochs * len(batches) + 1,  # it is stepped once more than there are rates
            pct_start=0.1,
            anneal_strategy="linear",
            cycle_momentum=False,
        )
    loss = cross_entropy if way.schedule and device.type == "cpu" else loss_fn
    step = Step(optimizer, scheduler=schedule)
    for epoch in range(way.epochs):
        reseed_epoch(batches, seed, epoch)  # the order of the naive script
        fit(model, batches, loss, optimizer, device, range(epoch, epoch + 1), step=step)
    torch.set_float32_matmul_precision("highest")
    return fold(model)


def by_the_naive_script(way: Way, seed: int, device: torch.device) -> nn.Module:
    model, loader = network(device, seed), naive_loader(way.batch_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=way.rates[0])
    for epoch in range(way.epochs):
        reseed_epoch(loader, seed, epoch)
        naive(model, loader, optimizer, device)
    return model


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The same loss, of ``[1, C, N]``: so a CPU computes the softmax with its vector units."""
    return F.cross_entropy(logits.t().contiguous()[None], targets[None])


Fold = Callable[[nn.Module], nn.Module]


def as_pixels(images: Tensor) -> tuple[Tensor, Fold]:
    return images.flatten(1).float().div_(255), lambda model: model


def centred(images: Tensor) -> tuple[Tensor, Fold]:
    """Subtract the mean image, and divide all by one number; folded back into the first layer."""
    inputs = images.flatten(1).float().div_(255)
    mean = inputs.mean(0)
    inputs.sub_(mean)
    scale = math.sqrt(inputs.numel()) / torch.linalg.vector_norm(inputs)  # of all: no second copy of them
    inputs.mul_(scale)

    def fold(model: nn.Module) -> nn.Module:
        first = model.layers[0]
        with torch.no_grad():
            first.weight.mul_(scale)
            first.bias.sub_(first.weight @ mean)
        return model

    return inputs, fold


def sums_of_blocks(images: Tensor) -> Tensor:
    """Add the pixels of each block of 2 by 2: ``[N, 28, 28]`` bytes to ``[N, 196]`` floats.

    Four bytes are read as one 32-bit number, in which two pairs are added at once, each into 16 of its bits.
    """
    words = images.view(-1, 784).view(torch.int32)
    pairs = (words >> 8).bitwise_and_(0x00FF00FF).add_(words & 0x00FF00FF).view(-1, 14, 2, 7)
    return (pairs[:, :, 0] + pairs[:, :, 1]).view(torch.int16).view(-1, 196).float()


def components(images: Tensor, count: int = COMPONENTS, sample: int = 2000) -> tuple[Tensor, Fold]:
    """Project sums of 2 by 2 pixels on their strongest principal components, each with a like spread.

    A linear map, so a network on these inputs can be written as one on the pixels.
    """
    sums = [sums_of_blocks(part) for part in images.split(500)]  # parts stay in the cache
    few = torch.cat(sums[: sample // 500])
    mean = few.mean(0)
    values, vectors = torch.linalg.eigh((few - mean).t() @ (few - mean) / len(few))
    directions = vectors[:, -count:] / (values[-count:] + 0.1 * values.mean()).sqrt()
    shift = mean @ directions

    def fold(small: nn.Module) -> nn.Module:
        model = MLP(784, 128, 64, 10).to(images.device)
        weight, bias = small.layers[0].weight, small.layers[0].bias
        with torch.no_grad():
            blocks = 255 * (weight @ directions.t()).view(128, 14, 1, 14, 1)
            model.layers[0].weight.copy_(blocks.expand(128, 14, 2, 14, 2).reshape(128, 784))
            model.layers[0].bias.copy_(bias - weight @ shift)
            for place in (2, 4):
                model.layers[place].load_state_dict(small.layers[place].state_dict())
        return model

    return torch.cat([torch.addmm(shift, part, directions, beta=-1) for part in sums]), fold


PREPARE: dict[str, Callable[[Tensor], tuple[Tensor, Fold]]] = {
    "pixels": as_pixels,
    "centred": centred,
    "components": components,
}


def accuracy(model: nn.Module, split: Split, device: torch.device) -> float:
    """Return the accuracy on the images that are kept for it."""
    images, targets = split[2].to(device), split[3].to(device)
    with torch.inference_mode():
        return (model(images.float() / 255).argmax(1) == targets).float().mean().item()


def tuned(way: Way, held_out: Split, device: torch.device) -> Way:
    """Return the way with the one rate of `rates` that is best on held-out training images."""
    in_memory = replace(way, reads_files=False)  # the same arithmetic, sooner

    def mean(rate: float) -> float:
        one = replace(in_memory, rates=(rate,))
        seeds = range(1000, 1000 + TUNING_SEEDS)
        return statistics.mean(
            accuracy(train(one, held_out, seed, device), held_out, device) for seed in seeds
        )

    return replace(way, rates=(max(way.rates, key=mean),))


def splits() -> tuple[Split, Split]:
    """Return the training images in two parts, to tune with; and all of them with the test images."""
    data = load_fashion_mnist()
    order = torch.randperm(len(data.train_images), generator=torch.Generator().manual_seed(0))
    held, rest = order[:HELD_OUT], order[HELD_OUT:]
    images, targets = data.train_images, data.train_targets
    return (
        (images[rest], targets[rest], images[held], targets[held]),
        (images, targets, data.test_images, data.test_targets),
    )


def main() -> None:
    """Tune, measure, print, write."""
    chosen = options(__doc__, "time_to_accuracy", seeds=30)
    torch.set_num_threads(1)
    device = chosen.device
    clock = time.thread_time if device.type == "cpu" else time.perf_counter
    held_out, final = splits()
    ways = [tuned(way, held_out, device) for way in WAYS]
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    reached: dict[str, list[float]] = {way.name: [] for way in ways}
    for seed in range(chosen.seeds):
        for way in random.Random(seed).sample(ways, len(ways)):
            synchronize(device)
            start = clock()
            model = train(way, final, seed, device)
            synchronize(device)
            seconds[way.name].append(clock() - start)
            reached[way.name].append(accuracy(model, final, device))
    base, *_ = ways
    goal = round(statistics.mean(reached[base.name]), 4)  # to the digits that are shown
    rows = []
    for way in ways:
        ratios = [one / other for one, other in zip(seconds[base.name], seconds[way.name], strict=True)]
        mean, half = statistics.mean(reached[way.name]), interval(reached[way.name])
        rows.append({"way": way.name, "rate": way.rates[0], "epochs": way.epochs, "accuracy": mean})
        rows[-1] |= {"interval": half, "seconds": statistics.median(seconds[way.name]), **spread(ratios)}
        rows[-1]["counts"] = "yes" if round(mean, 4) >= goal else "no"
    result = Result(
        "time_to_accuracy",
        "Time to the naive script's accuracy: whole runs of fixed length",
        about(device, data=load_fashion_mnist().source, seeds=chosen.seeds),
        [
            ("way", "way", ""),
            ("rate", "rate", "g"),
            ("epochs", "epochs", ""),
            ("accuracy", "mean test accuracy", ".2%"),
            ("interval", "± (95 %)", ".2%"),
            ("seconds", "seconds a run", ".3f"),
            *[(key, f"speed-up, {key}" if key == "min" else key, ".1f") for key in ("min", "median", "max")],
            ("counts", "as good", ""),
        ],
        rows,
        notes=[
            f"As good: the mean accuracy is at least the naive script's, {goal:.2%}. Its rate was tuned like "
            f"the others': {TUNING_SEEDS} seeds, {HELD_OUT:,} training images held out.",
            f"{COMPONENTS} whitened components: trained on {COMPONENTS} numbers an image, a linear map of "
            "the pixels, and then written as the same network on pixels. That leaves out most of the "
            "arithmetic of the first layer, which must be said beside it.",
        ],
    )
    for row, way, least in zip(rows[2:], ways[2:], (16, 40), strict=True):
        what = f"time to the naive script's mean accuracy, {way.name}: speed-up"
        good = row["counts"] == "yes"  # 0: never as good, whatever the time
        result.claim(
            what if good else f"{what} (not as good)", row["median"] if good else 0.0, ".1f", ">=", least
        )
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
