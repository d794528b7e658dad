"""Exercise 12: Make a batch sixteen times as large pay.

First two numbers in a table, then one rate. Check whenever you like:

    python -m gpulesson check exercise_12.py
"""

import torch

from gpulesson.models import MLP

# How many updates does an epoch of 1,200 training points have, with batches of 32 and
# with batches of 512? The last batch may be shorter; it is trained on, too.
UPDATES = {32: "?", 512: "?"}

# The learning rate for batches of 512: change it.
RATE = 3e-3


def make_points():
    """Return 1,600 made-up points of six numbers, and their classes, 0 to 3."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(1600, 6, generator=generator)
    classes = 2 * (points[:, 0] * points[:, 1] > 0).long() + (points[:, 2] > 0).long()
    return points, classes


def epochs_needed(seed, batch_size, rate, at_most=20):
    """Epochs until 90 % of the held-out points are right: the last 400."""
    points, classes = make_points()
    torch.manual_seed(seed)
    model = MLP(6, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    for epoch in range(1, at_most + 1):
        for rows in torch.randperm(1200).split(batch_size):
            loss = torch.nn.functional.cross_entropy(model(points[rows]), classes[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            hits = model(points[1200:]).argmax(dim=1) == classes[1200:]
        if hits.float().mean() >= 0.9:
            return epoch
    return at_most


def main():
    """Train from three seeds with either batch, and compare the epochs."""
    torch.set_num_threads(1)
    print(f"updates in an epoch: {UPDATES}")
    small = [epochs_needed(seed, 32, 3e-3) for seed in range(3)]
    large = [epochs_needed(seed, 512, RATE) for seed in range(3)]
    print(f"batches of  32, rate 0.003: {small}, in all {sum(small)} epochs")
    print(f"batches of 512, rate {RATE:g}: {large}, in all {sum(large)} epochs")
    pays = sum(large) <= 1.5 * sum(small)
    print("it pays" if pays else "it needs more than 1.5 times the epochs")


if __name__ == "__main__":
    main()
