"""Exercise 10: Train and evaluate without a leak.

Two functions are empty. Write them one after the other, and check whenever you like:

    python -m gpulesson check exercise_10.py
"""

import torch
from torch import nn

import gpulesson


def train(model, optimizer, loss_fn, batches):
    """Train on each batch once, in order; return the mean loss, without a graph.

    batches: pairs of inputs [N, features] and labels [N], on the model's device, all
    with the same number of rows. loss_fn returns the mean over the rows of a batch. The
    model may be in any mode. The result is a number, or a tensor without a graph. No
    graph lives on after its step, and nothing but the result stays after the call.
    """


def evaluate(model, loss_fn, batches):
    """Return the mean loss of all rows, with as little memory as one batch needs.

    batches, loss_fn and the model are as above, but the last batch may have fewer rows.
    Each row counts the same. The result is a number, or a tensor without a graph. The
    model gets one batch after the other, as they are, and no batch's outputs live on
    when the next ones are done. Nothing but the result stays after the call.
    """


def main():
    """Train for three epochs, and print what is in memory."""
    torch.manual_seed(0)
    with gpulesson.practice_gpu(force=True):  # it counts alike on any machine
        device = torch.device("cuda")
        hidden = [layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.ReLU())]
        model = nn.Sequential(*hidden, nn.Linear(256, 10)).to(device)
        optimizer, loss_fn = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()
        inputs = torch.rand(1600, 256, device=device)
        labels = (4 * inputs[:, 0]).long()
        batches = list(zip(inputs.split(64), labels.split(64), strict=True))
        results = []
        for epoch in range(3):
            results.append(train(model, optimizer, loss_fn, batches[:20]))
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            results.append(evaluate(model, loss_fn, batches[20:]))
            needed = torch.cuda.max_memory_allocated() - before
            held = torch.cuda.memory_allocated()
            print(f"epoch {epoch + 1}: losses {results[-2]}, {results[-1]};", end=" ")
            print(f"{held:,} bytes held; the evaluation needs {needed:,}")

        before = torch.cuda.memory_allocated()
        loss = loss_fn(model(batches[0][0]), batches[0][1])
        activations = torch.cuda.memory_allocated() - before
        print(f"one loss with its graph holds {activations:,} bytes")
        del loss


if __name__ == "__main__":
    main()
