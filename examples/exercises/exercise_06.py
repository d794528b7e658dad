"""Exercise 6: Resume without a trace.

Two functions are empty. Write them one after the other, and check whenever you like:

    python -m gpulesson check exercise_06.py
"""

import tempfile
from pathlib import Path

import torch
from torch import nn


def save(path, model, optimizer, epoch):
    """Write a checkpoint to path: all that a run needs to go on, bit for bit.

    So many epochs are finished. The run computes on the CPU, and draws its random
    numbers from torch's generator. You choose the names of the entries. The file opens
    with weights_only=True.
    """


def run(make_run, train, epochs, folder, stop_after=None):
    """Train for so many epochs, or go on with a run that was stopped; return the model.

    make_run(): returns a new model and its optimizer, from a fixed seed, on the CPU.
    train(model, optimizer): trains for one epoch.
    folder: a Path, only for the files of this run. At the first call it does not exist.
    stop_after: stop when the run has so many epochs, those of earlier calls included.
    Another call with this folder, in a new process, goes on from there, perhaps to a
    later stop, and ends with the same weights as a run without a stop, to the last bit.
    Once all epochs are finished, a call only returns the trained model. Load with
    weights_only=True.
    """


def main():
    """Make a run without a stop, and one with; compare their weights."""
    inputs = torch.randn(320, 8, generator=torch.Generator().manual_seed(1))
    targets = inputs.sin().sum(dim=1, keepdim=True)
    loss_fn = nn.MSELoss()

    def make_run():
        torch.manual_seed(0)
        layers = nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.02), nn.Linear(64, 1)
        model = nn.Sequential(*layers)
        return model, torch.optim.Adam(model.parameters(), lr=0.05)

    def train(model, optimizer):
        for rows in torch.randperm(len(inputs)).split(32):
            loss = loss_fn(model(inputs[rows]), targets[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"  trained an epoch, loss {loss.item():.3f}")

    with tempfile.TemporaryDirectory() as scratch:
        print("6 epochs without a stop:")
        whole = run(make_run, train, 6, Path(scratch) / "whole")
        print("stopped after 3 epochs:")
        run(make_run, train, 6, Path(scratch) / "stopped", stop_after=3)
        print("resumed:")
        resumed = run(make_run, train, 6, Path(scratch) / "stopped")

    if whole is None or resumed is None:
        print("run returns no model yet")
    else:
        pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
        same = all(torch.equal(a, b) for a, b in pairs)
        print("the same bits" if same else "another run")


if __name__ == "__main__":
    main()
