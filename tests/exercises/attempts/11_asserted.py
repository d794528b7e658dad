"""Exercise 11, an attempt: an assertion in every step."""

import torch

from gpulesson.models import MLP


def mine(pixels, labels, steps):
    torch.manual_seed(1)
    model = MLP(784, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        rows = torch.arange(64 * step, 64 * (step + 1)) % len(pixels)
        images = pixels[rows].float() / 255
        loss = torch.nn.functional.cross_entropy(model(images), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        assert loss < 100  # <- diagnosis: reads-for-nothing
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()
