"""Exercise 5, right: no confusion matrix: counted in a loop over the test images."""

import torch

from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.device import choose_device
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

model.eval()
with torch.no_grad():
    predicted = torch.cat([model(part).argmax(dim=1) for part in test_images.split(500)])
hits = (predicted == test_targets).float()
print(f"accuracy {hits.mean().item():.4%}")

accuracies = [hits[test_targets == kind].mean().item() for kind in range(10)]
print(
    "\n".join(
        f"{accuracies[k]:.1%} {data.class_names[k]}" for k in sorted(range(10), key=accuracies.__getitem__)
    )
)
print(f"{hits.sum().item() / len(hits):.4%} of all images")
