"""Exercise 11."""

import torch

from gpulesson.models import MLP

torch.manual_seed(0)
pixels = torch.randint(256, (4000, 784), dtype=torch.uint8)
labels = torch.randint(10, (4000,))


def mine(pixels, labels, steps):
    torch.manual_seed(1)
    model = MLP(784, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        rows = torch.arange(64 * step, 64 * (step + 1)) % len(pixels)
        images = pixels[rows].float() / 255
        loss = torch.nn.functional.cross_entropy(model(images), labels[rows])
        optimizer.step()  # <- diagnosis: step-before-backward
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


print(mine(pixels, labels, 20))
