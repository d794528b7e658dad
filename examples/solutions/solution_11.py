"""Exercise 11, solved: convert what is used, compute no norms, read once."""

import torch

from gpulesson.models import MLP


def batch(pixels, labels, step):
    rows = slice(64 * step, 64 * (step + 1))
    return pixels[rows].float() / 255, labels[rows]


def losses(pixels, labels, steps):
    torch.manual_seed(1)
    model = MLP(784, 64, 10).to(pixels.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for step in range(steps):
        images, targets = batch(pixels, labels, step)
        loss = torch.nn.functional.cross_entropy(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(loss.detach())
    return torch.stack(kept).tolist()
