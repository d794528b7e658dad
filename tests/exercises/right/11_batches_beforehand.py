"""Exercise 11: a class, and the rows chosen by a generator."""

import torch
import torch.nn.functional as F

from gpulesson.models import MLP


class Run:
    def __init__(self):
        torch.manual_seed(1)
        self.model = MLP(784, 64, 10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-1)

    def step(self, images, targets):
        self.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(self.model(images.to(torch.float32) / 255.0), targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach().clone()


def batches(pixels, labels, steps):
    at = 0
    for _ in range(steps):
        rows = [(at + offset) % len(pixels) for offset in range(64)]
        at += 64
        yield pixels[rows], labels[rows]


def mine(pixels, labels, steps):
    run = Run()
    losses = [run.step(*batch) for batch in batches(pixels, labels, steps)]
    losses = torch.stack(losses)
    if not losses.isfinite().all():
        print("a loss is not finite")
    return tuple(losses.tolist())
