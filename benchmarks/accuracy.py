"""Test accuracy of the package's training beside a plain script's, on the same data, over several seeds.

    python benchmarks/accuracy.py --seeds 10 --json accuracy.json

Both train the 784-128-64-10 network with Adam, learning rate 0.001, batches of 64, five epochs. The plain
script is what most tutorials have: torchvision's data set with ToTensor, a shuffling DataLoader, batches
moved in the loop. The other is `gpulesson.training.fit` on batches of tensors that live on the device. Needs
Fashion-MNIST (or an excerpt) in the folder that GPULESSON_DATA names.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import FashionMNIST
from torchvision.transforms import ToTensor

from gpulesson.data import Batches, data_folder, load_fashion_mnist
from gpulesson.device import choose_device, device_name
from gpulesson.evaluation import evaluate
from gpulesson.models import MLP
from gpulesson.training import fit


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
    data = load_fashion_mnist(download=False, stand_in=False)
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
    """Run both, interleaved, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    device = choose_device()
    ways = {"plain script": plain, "gpulesson fit": with_fit}
    figures: dict[str, dict[str, list[float]]] = {name: {"accuracy": [], "seconds": []} for name in ways}
    for seed in range(options.seeds):
        for name, train in ways.items():
            start = time.perf_counter()
            figures[name]["accuracy"].append(train(seed, device, options.epochs))
            figures[name]["seconds"].append(time.perf_counter() - start)
    about = {
        "data": load_fashion_mnist(download=False, stand_in=False).source,
        "device": f"{device}: {device_name(device)}",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seeds": options.seeds,
        "epochs": options.epochs,
    }
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(f"{'':<14} {'min':>8} {'median':>8} {'max':>8} {'mean':>8}   seconds a run (median)")
    for name, row in figures.items():
        values = [100 * value for value in row["accuracy"]]
        spread = (min(values), statistics.median(values), max(values), statistics.mean(values))
        print(
            f"{name:<14} "
            + " ".join(f"{v:7.2f}%" for v in spread)
            + f"   {statistics.median(row['seconds']):.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps({"about": about, "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
