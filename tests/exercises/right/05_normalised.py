"""Exercise 5, right: the images are normalised and all shuffled; the lines are written in one piece."""

import torch

from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device
from gpulesson.evaluation import evaluate
from gpulesson.models import MLP
from gpulesson.training import fit

device = choose_device()
data = load_fashion_mnist()
train_images, test_images = (
    (part.to(device).float() / 255 - 0.286) / 0.353 for part in (data.train_images, data.test_images)
)
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

result = evaluate(model, Batches(test_images, test_targets, batch_size=1000, shuffle=True), loss_fn, device)
print(f"accuracy {result.accuracy:.4%} ({data.source})")

accuracies = (result.confusion.diag() / result.confusion.sum(1)).numpy()
pairs = sorted(zip(accuracies, data.class_names, strict=True))
print(*(f"{name}: {round(100 * float(value), 1)} %" for value, name in pairs), sep="\n")
print("overall", result.confusion.diag().sum().item() / len(test_targets))
