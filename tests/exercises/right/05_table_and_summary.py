"""Exercise 5: a table, then the hardest class once more."""

from dataclasses import dataclass, field

import torch

from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device
from gpulesson.evaluation import evaluate
from gpulesson.models import MLP
from gpulesson.training import fit


def train_and_evaluate(device):
    data = load_fashion_mnist()

    def batches(images, labels, **options):
        return Batches(images.to(device).float() / 255, labels.to(device), **options)

    train_batches = batches(data.train_images, data.train_targets, batch_size=64, shuffle=True)
    test_batches = batches(data.test_images, data.test_targets, batch_size=1000)
    torch.manual_seed(0)
    net = MLP(784, 128, 64, 10).to(device)
    loss_fn = torch.nn.CrossEntropyLoss()
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    fit(net, train_batches, loss_fn, adam, device, epochs=2)
    result = evaluate(net, test_batches, loss_fn, device)
    print(f"accuracy {result.accuracy:.4%} ({data.source})")
    return data.class_names, result.confusion


@dataclass(order=True)
class Row:
    share: float
    name: str = field(compare=False)
    right: int = field(compare=False)
    images: int = field(compare=False)

    def __str__(self):
        bar = "#" * round(20 * self.share)
        return f"{self.name:>12} | {self.right:4d} of {self.images:4d} | {self.share:.3f} | {bar}"


def rows_of(names, confusion):
    for number, (name, counts) in enumerate(zip(names, confusion.tolist(), strict=True)):
        yield Row(counts[number] / sum(counts), name, counts[number], sum(counts))


def main():
    names, confusion = train_and_evaluate(choose_device())
    rows = sorted(rows_of(names, confusion))
    accuracies = [row.share for row in rows]
    print(*rows, sep="\n")
    print(f"hardest: {rows[0].name} ({accuracies[0]:.1%})")
    right, images = sum(r.right for r in rows), sum(r.images for r in rows)
    print(f"all classes together: {right / images:.4%}")


if __name__ == "__main__":
    main()
