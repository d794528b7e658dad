"""Exercise 5, an attempt: the easiest class first."""

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

right = result.confusion.diagonal()
of_each = result.confusion.sum(dim=1)  # a row: all images of one true class
accuracies = right / of_each
for kind in accuracies.argsort(descending=True).tolist():
    print(f"{data.class_names[kind]:<12} {accuracies[kind].item():.1%}")  # <- diagnosis: classes-unordered

print(f"together {right.sum().item() / of_each.sum().item():.4%}")
