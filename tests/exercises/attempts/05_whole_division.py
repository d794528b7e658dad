"""Exercise 5, an attempt: two slashes."""

import torch

from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device
from gpulesson.evaluation import evaluate
from gpulesson.models import MLP
from gpulesson.training import fit

device = choose_device()
data = load_fashion_mnist()
train_images = data.train_images.to(device).float() / 255
train_labels = data.train_targets.to(device)
test_images = data.test_images.to(device).float() / 255
test_labels = data.test_targets.to(device)
train_batches = Batches(train_images, train_labels, batch_size=64, shuffle=True)
test_batches = Batches(test_images, test_labels, batch_size=1000)

torch.manual_seed(0)
model = MLP(784, 128, 64, 10).to(device)
loss_fn = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
fit(model, train_batches, loss_fn, optimizer, device, epochs=2)

result = evaluate(model, test_batches, loss_fn, device)
print(f"accuracy {result.accuracy:.4%} ({data.source})")

right = result.confusion.diagonal()
of_each = result.confusion.sum(dim=1)  # a row: all images of one true class
accuracies = 100 * right // of_each  # <- diagnosis: whole-division
for number in accuracies.argsort().tolist():  # the smallest first
    print(f"{data.class_names[number]:<12} {accuracies[number].item():.1f}%")

print(f"together {right.sum().item() / of_each.sum().item():.4%}")
