"""Test accuracy of the package's training beside a plain script's, on the same data, over several seeds.

    python benchmarks/accuracy.py [--seeds 10] [--epochs 5]

Both train the 784-128-64-10 network with Adam, learning rate 0.001, batches of 64, five epochs. The plain
script is what most tutorials have: torchvision's data set with ToTensor, a shuffling DataLoader, batches
moved in the loop. The other is `gpulesson.training.fit` on batches of tensors that live on the device. Needs
Fashion-MNIST (or an excerpt) in the folder that GPULESSON_DATA names.
"""

import statistics
import time

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import FashionMNIST
from torchvision.transforms import ToTensor

from gpulesson.data import Batches, data_folder
from gpulesson.evaluation import evaluate
from gpulesson.models import MLP
from gpulesson.training import fit
from measuring import Result, about, fashion, options, spread


def plain(seed: int, device: torch.device, epochs: int) -> float:
    """Return the test accuracy (0 to 1) after a training written the usual way."""
    train_set, test_set = (
        FashionMNIST(data_folder(), train=part, transform=ToTensor()) for part in (True, False)
    )
    torch.manual_seed(seed)
    model = MLP(784, 128, 64, 10).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = torch.nn.CrossEntropyLoss()
    for _ in range(epochs):
        model.train()
        for images, labels in DataLoader(train_set, batch_size=64, shuffle=True):
            loss = loss_fn(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in DataLoader(test_set, batch_size=1000):
            correct += (model(images.to(device)).argmax(dim=1).cpu() == labels).sum().item()
    return correct / len(test_set)


def with_fit(seed: int, device: torch.device, epochs: int) -> float:
    """Return the test accuracy (0 to 1) after `fit` on tensors that live on the device."""
    data = fashion()
    train, test = (part.to(device).float() / 255 for part in (data.train_images, data.test_images))
    torch.manual_seed(seed)
    model = MLP(784, 128, 64, 10).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = torch.nn.CrossEntropyLoss()
    batches = Batches(train, data.train_targets.to(device), batch_size=64, shuffle=True)
    fit(model, batches, loss_fn, optimizer, device, epochs, progress=False)
    accuracy = evaluate(
        model, Batches(test, data.test_targets.to(device), batch_size=1000), loss_fn, device
    ).accuracy
    assert accuracy is not None
    return accuracy


def main() -> None:
    """Run both, interleaved, print and write."""
    chosen = options(__doc__, "accuracy", seeds=10, epochs=5)
    device = chosen.device
    ways = {"plain script": plain, "gpulesson fit": with_fit}
    found: dict[str, list[float]] = {name: [] for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(chosen.seeds):
        for name, train in ways.items():
            start = time.perf_counter()
            found[name].append(train(seed, device, chosen.epochs))
            seconds[name].append(time.perf_counter() - start)
    result = Result(
        "accuracy",
        f"Test accuracy after {chosen.epochs} epochs, over {chosen.seeds} seeds",
        about(device, "torchvision", data=fashion().source, seeds=chosen.seeds, epochs=chosen.epochs),
        [
            ("way", "training", ""),
            *[(key, key, ".2%") for key in ("min", "median", "max", "mean")],
            ("seconds", "seconds a run, median", ".2f"),
        ],
        [
            {
                "way": name,
                **spread(values),
                "mean": statistics.mean(values),
                "seconds": statistics.median(seconds[name]),
            }
            for name, values in found.items()
        ],
        notes=["The two draw other orders of the images, so single seeds differ."],
    )
    plain_row, row = result.rows
    result.claim("accuracy of the plain script, mean of seeds", plain_row["mean"], ".2%")
    result.claim("accuracy of `fit`, mean of seeds", row["mean"], ".2%")
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
