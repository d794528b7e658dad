"""Exercise 3: Train and test on a device.

Three functions are empty. Write them one after the other, and check whenever you like:

    python -m gpulesson check exercise_03.py
"""

import torch
from torch import nn


def train(model, X, y, loss_fn, optimizer, epochs):
    """Train so many epochs; return their losses, a list of one number (float) an epoch.

    X: features [N, 4], y: labels [N], on the device of the model. In each epoch all N
    flowers go through the model at once. Call the model itself, as the lesson does.
    """


def accuracy(model, X, y):
    """Return the share of right answers, a number (float) from 0 to 1.

    X: features [N, 4], y: labels [N], on the device of the model, whose outputs are
    [N, 3]. It may be in any mode. Compute without gradients, in evaluation mode.
    """


def run(make_model, X_train, y_train, X_test, y_test, device, epochs, seed):
    """Set the seed, make a model, train it on the device; return its test accuracy.

    make_model() returns a new model on the CPU, with random weights. The features and
    the labels are on the CPU, too: train on the one part, test on the other. Take the
    cross-entropy as the loss, and the lesson's optimizer, or another one.
    """


def main():
    """Train the network of the lesson, on its flowers, and see what it has learned."""
    from sklearn.model_selection import train_test_split

    from gpulesson.data import load_iris
    from gpulesson.device import choose_device

    def make_model():
        return nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 3)
        )

    torch.set_num_threads(1)  # for so few numbers, one core of the CPU is the fastest
    iris = load_iris()
    parts = train_test_split(iris.features, iris.targets, test_size=30, random_state=33)
    X_train, X_test, y_train, y_test = parts

    torch.manual_seed(32)
    model, loss_fn = make_model(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = train(model, X_train, y_train, loss_fn, optimizer, 100) or [None]
    for number, lesson in ((0, 1.1507), (-1, 0.8158)):
        mine = "none yet" if losses[number] is None else f"{losses[number]:.4f}"
        print(f"loss: {mine}, in the lesson: {lesson}")

    device = choose_device()
    flowers = X_train, y_train, X_test, y_test
    for epochs in (1, 500):
        result = run(make_model, *flowers, device, epochs, seed=32)
        print(f"accuracy after {epochs:>3} epochs on {device}: {result}")


if __name__ == "__main__":
    main()
