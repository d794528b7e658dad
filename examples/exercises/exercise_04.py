"""Exercise 4: Write the training loop.

Three functions are empty. Write them one after the other, and check whenever you like:

    python -m gpulesson check exercise_04.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_step(model, inputs, targets, loss_fn, optimizer, device):
    """Train on one batch, on the device, and return its loss as a number.

    inputs: [N, features], targets: class numbers [N], both on the CPU. The model is on
    the device already; it may be in any mode.
    """


def accuracy(model, batches, device):
    """Return the share of right answers, from 0 to 1, over all rows of all batches.

    batches: pairs of inputs [N, features] and class numbers [N], on the CPU. The last
    one may be shorter. The model is on the device already; it may be in any mode.
    """


def run(model, train_set, test_set, device, epochs):
    """Train on all of train_set, so many times; return the accuracy on test_set.

    The model comes from the CPU. Take an optimizer and a batch size that you like. Each
    epoch sees the training rows in a new order.
    """


def main():
    """Train on 2,000 pictures of clothes, as in the lesson, and test on 500."""
    from gpulesson.data import load_fashion_mnist
    from gpulesson.device import choose_device

    images = load_fashion_mnist()
    X_train, X_test = images.train_images[:2000], images.test_images[:500]
    y_train, y_test = images.train_targets[:2000], images.test_targets[:500]
    train_set = TensorDataset(X_train.flatten(1) / 255, y_train)
    test_set = TensorDataset(X_test.flatten(1) / 255, y_test)

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(784, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)
    )
    device = choose_device()
    for epochs in (0, 10):
        result = run(model, train_set, test_set, device, epochs)
        print(f"accuracy after {epochs:>2} epochs on {device}: {result}")


if __name__ == "__main__":
    main()
