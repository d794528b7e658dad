"""Test accuracy of the package's training beside a plain script's, from the same weights in the same order.

    python benchmarks/accuracy.py [--seeds 10] [--epochs 5]

Both train the 784-128-64-10 network with Adam, learning rate 0.001, batches of 64, five epochs. The plain
script is what most tutorials have: torchvision's data set with ToTensor, a shuffling DataLoader, batches
moved in the loop. The other is `gpulesson.training.fit` on batches of tensors that live on the device. In
each pair both start from the weights of one seed and meet the images in one order, so what differs is the
training alone. The images are the lessons', the excerpt of Fashion-MNIST.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import FashionMNIST
from torchvision.transforms import ToTensor

from gpulesson.data import Batches, excerpt_folder, load_fashion_mnist
from gpulesson.evaluation import evaluate
from gpulesson.training import fit
from measuring import Result, about, interval, network, options, spread
from plain_loops import loss_fn, naive, naive_loader, reseed_epoch


def plain(seed: int, device: torch.device, epochs: int) -> float:
    """Return the test accuracy (0 to 1) after a training written the usual way."""
    model, batches = network(device, seed), naive_loader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        reseed_epoch(batches, seed, epoch)
        naive(model, batches, optimizer, device)
    test_set = FashionMNIST(excerpt_folder(), train=False, transform=ToTensor())
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in DataLoader(test_set, batch_size=1000):
            correct += (model(images.to(device)).argmax(dim=1).cpu() == labels).sum().item()
    return correct / len(test_set)


def with_fit(seed: int, device: torch.device, epochs: int) -> float:
    """Return the test accuracy (0 to 1) after `fit` on tensors that live on the device."""
    data, model = load_fashion_mnist(), network(device, seed)
    train, test = (part.to(device).float() / 255 for part in (data.train_images, data.test_images))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    targets = data.train_targets.to(device)
    batches = Batches(train, targets, batch_size=64, shuffle=True, generator=torch.Generator())
    for epoch in range(epochs):
        reseed_epoch(batches, seed, epoch)
        fit(model, batches, loss_fn, optimizer, device, epochs=range(epoch, epoch + 1))
    test_batches = Batches(test, data.test_targets.to(device), batch_size=1000)
    accuracy = evaluate(model, test_batches, loss_fn, device).accuracy
    assert accuracy is not None
    return accuracy


def main() -> None:
    """Run both, interleaved, print and write."""
    chosen = options(__doc__, "accuracy", seeds=10, epochs=5)
    torch.set_num_threads(1)
    device = chosen.device
    ways = {"a plain script": plain, "`fit`": with_fit}
    found: dict[str, list[float]] = {name: [] for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(chosen.seeds):
        for name, train in ways.items():
            start = time.perf_counter()
            found[name].append(train(seed, device, chosen.epochs))
            seconds[name].append(time.perf_counter() - start)
    apart = [ours - theirs for theirs, ours in zip(*found.values(), strict=True)]
    rows = [{"way": name, **spread(values), **average(values)} for name, values in found.items()]
    for row, name in zip(rows, ways, strict=True):
        row["seconds"] = statistics.median(seconds[name])
    result = Result(
        "accuracy",
        f"Test accuracy after {chosen.epochs} epochs, over {chosen.seeds} seeds",
        about(
            device,
            "torchvision",
            data=load_fashion_mnist().source,
            seeds=chosen.seeds,
            epochs=chosen.epochs,
        ),
        [
            ("way", "training", ""),
            *[(key, key, ".2%") for key in ("min", "median", "max", "mean")],
            ("interval", "± (95 %)", ".2%"),
            ("seconds", "seconds a run, median", ".2f"),
        ],
        [*rows, {"way": "`fit` minus the plain script, seed by seed", **spread(apart), **average(apart)}],
        notes=["With one seed both start from the same weights and meet the images in the same order."],
    )
    for row in rows:
        what = f"accuracy of {row['way']}, mean of {chosen.seeds} seeds (± {row['interval']:.2%})"
        result.claim(what, row["mean"], ".2%")
    mean, half = average(apart).values()
    what = f"accuracy, `fit` minus the plain script, seed by seed (± {half:.2%})"
    result.claim(what, mean, ".2%", ">=", 0)
    result.finish(chosen.json)


def average(values: list[float]) -> dict[str, float]:
    """Return the mean, and half the width of its 95 % interval."""
    return {"mean": statistics.mean(values), "interval": interval(values)}


if __name__ == "__main__":
    main()
