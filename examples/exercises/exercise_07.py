"""Exercise 7: Fix five mistakes.

Each of these functions has one mistake of the lesson, or two that come one after the
other. Three functions stop with an error, two give no message. Fix them, and check
whenever you like:

    python -m gpulesson check exercise_07.py
"""

import torch
from torch import nn

import gpulesson


def weighted_loss(outputs, labels, class_weights):
    """Return the cross-entropy in which each class counts by its weight.

    outputs: logits [N, classes], labels: [N], both on the same device, a GPU or the
    CPU. class_weights: [classes], on the CPU. The loss is computed where the outputs
    are, and returned so that backward() can be called on it.
    """
    loss_fn = nn.CrossEntropyLoss(weight=class_weights)
    return loss_fn(outputs, labels)


def train_step(model, inputs, labels, loss_fn, optimizer, device):
    """Train on one batch, on the device, and return its loss as a number.

    inputs: [N, features], labels: [N], both on the CPU. The model is on the device, a
    GPU or the CPU. Outputs and loss are computed there, and the model stays there.
    """
    inputs = inputs.to(device)
    loss = loss_fn(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def probabilities(outputs):
    """Return the probabilities of the classes as a NumPy array [N, classes].

    outputs: logits [N, classes], on a GPU or the CPU, with their graph or without.
    """
    return outputs.softmax(dim=1).numpy()


def batch_losses(model, loss_fn, batches):
    """Return the loss of each batch, in a list, and train nothing.

    batches: pairs of inputs [N, features] and labels [N], on the model's device. For
    each loss at most one block of 512 bytes stays in memory, and no graph.
    """
    losses = []
    for inputs, labels in batches:
        loss = loss_fn(model(inputs), labels)
        losses.append(loss)
    return losses


def predict(model, inputs):
    """Return the class [N] with the largest output of each row, without any chance.

    inputs: [N, features], on the model's device. The model may be in any mode, and it
    is in that mode again afterwards (model.training is True in training mode).
    """
    with torch.no_grad():
        return model(inputs).argmax(dim=1)


def main():
    """Call each function on a GPU, and print what it returns or how it stops."""
    torch.manual_seed(0)
    inputs, labels = torch.randn(300, 20), torch.randint(3, (300,))
    class_weights = torch.tensor([1.0, 1.0, 2.0])
    with gpulesson.practice_gpu():  # a real CUDA GPU, where there is one
        device = torch.device("cuda")
        model = nn.Sequential(
            nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.8), nn.Linear(64, 3)
        ).to(device)
        loss_fn = nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        x, y = inputs.to(device), labels.to(device)
        batches = list(zip(x.split(50), y.split(50), strict=True))

        def held():
            before = torch.cuda.memory_allocated()
            losses = batch_losses(model, loss_fn, batches)
            grown = torch.cuda.memory_allocated() - before
            return f"{losses and len(losses)} losses hold {grown} bytes"

        def changed():
            first, second = predict(model, x), predict(model, x)
            return f"{(first != second).sum()} of 300 answers changed"

        calls = {
            "weighted_loss": lambda: weighted_loss(model(x), y, class_weights),
            "train_step": lambda: train_step(
                model, inputs, labels, loss_fn, optimizer, device
            ),
            "probabilities": lambda: probabilities(model(x))[0],
            "batch_losses": held,
            "predict": changed,
        }
        for name, call in calls.items():
            try:
                print(f"{name}: {call()}")
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
