"""Exercise 5, right: a typed dictionary, sorted by its values, and no line break at the end."""

import torch

from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device
from gpulesson.evaluation import evaluate
from gpulesson.models import MLP
from gpulesson.training import fit

device = choose_device()
data = load_fashion_mnist()
train_images, test_images = (part.to(device).float() / 255 for part in (data.train_images, data.test_images))
train_targets, test_targets = (
    data.train_targets.to(device),
    data.test_targets.to(device),
)

torch.manual_seed(0)
model = MLP(784, 128, 64, 10).to(device)
loss_fn = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
fit(
    model,
    Batches(train_images, train_targets, batch_size=64, shuffle=True),
    loss_fn,
    optimizer,
    device,
    epochs=2,
)

result = evaluate(model, Batches(test_images, test_targets, batch_size=1000), loss_fn, device)
print(f"accuracy {result.accuracy:.4%} ({data.source})")

accuracies: dict[str, float] = {}
for number, name in enumerate(data.class_names):
    accuracies[name] = (result.confusion[number, number] / result.confusion[number].sum()).item()
for name, value in sorted(accuracies.items(), key=lambda item: item[1]):
    print(f"{name.upper():>12} | {value:.3f}")
print(f"sum of the diagonal: {result.confusion.trace() / result.confusion.sum():.4%}", end="")
