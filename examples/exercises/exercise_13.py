"""Exercise 13: Learn from a large batch in little memory.

Two functions are empty. Write them one after the other, and check whenever you like:

    python -m gpulesson check exercise_13.py
"""

import torch
from torch import nn

import gpulesson


def accumulate(model, loss_fn, inputs, labels, rows):
    """Leave in the parameters the gradients of the mean loss over the whole batch.

    At most `rows` rows go through the model at a time, and their activations are kept
    no longer than needed. The last part may be shorter. Old gradients are reset.

    inputs: [N, features], labels: class numbers [N], both on the model's device.
    loss_fn: returns the mean loss of the rows that it gets.
    """


def train(model, optimizer, loss_fn, batches, device, rows):
    """Train once on each batch: one step for each, which learns from all of its rows.

    At most `rows` rows go through the model at a time. The device has room for a whole
    batch, but not for its activations.

    batches: pairs of inputs and labels, on the CPU. The model is on the device already.
    """


def main():
    """Train with batches of 4,096 rows, on a practice GPU of 12 MiB."""
    torch.manual_seed(0)
    batches = [(torch.randn(4096, 64), torch.randint(10, (4096,))) for _ in range(3)]
    loss_fn = nn.CrossEntropyLoss()
    for rows in (4096, 1024, 256):
        torch.manual_seed(0)
        layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.ReLU())]
        with gpulesson.practice_gpu(memory="12 MiB", force=True):
            model = nn.Sequential(*layers, nn.Linear(64, 10)).to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            before = model[-1].bias.detach().cpu()
            try:
                train(model, optimizer, loss_fn, batches, torch.device("cuda"), rows)
                peak = torch.cuda.max_memory_allocated() / 2**20
                change = (model[-1].bias.detach().cpu() - before).norm()
                says = f"peak {peak:.1f} MiB, the last bias changed by {change:.6f}"
            except torch.OutOfMemoryError as error:
                says = str(error).split(" GPU 0")[0]
        print(f"{rows:>5} rows at a time: {says}")


if __name__ == "__main__":
    main()
