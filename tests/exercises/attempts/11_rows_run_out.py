"""Exercise 11: the batches do not go on from the beginning when the images end; another function steps."""

import torch

from gpulesson.models import MLP


def learn(model, optimizer, images, targets):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images.float() / 255), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def batch(data, number):
    starts = range(0, len(data), 64)
    start = starts[number % len(starts)]
    return data[start : start + 64]  # <- diagnosis: other-rows


def mine(pixels, labels, steps):
    torch.manual_seed(1)
    model = MLP(784, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        losses.append(learn(model, optimizer, batch(pixels, step), batch(labels, step)))
    return torch.stack(losses).tolist()


print(mine(torch.randint(256, (4000, 784), dtype=torch.uint8), torch.randint(10, (4000,)), 20)[-1])
