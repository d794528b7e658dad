"""Exercise 6, an attempt: the resumed run does an epoch twice."""

import tempfile
from pathlib import Path

import torch

from gpulesson.data import Batches, regression_data
from gpulesson.models import MLP

X, y = regression_data(samples=320, features=8, noise=0.1, seed=3)
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(MLP(8, 32, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(model, optimizer, epochs):
    for _ in epochs:
        for inputs, targets in Batches(X, y, batch_size=32, shuffle=True):  # draws from torch's own generator
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def stopped(path):
    model, optimizer = make()
    train(model, optimizer, range(3))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save({**state, "rng": torch.get_rng_state()}, path)


def resumed(path):
    model, optimizer = make()
    state = torch.load(path, weights_only=True)
    for part, name in ((model, "model"), (optimizer, "optimizer")):
        part.load_state_dict(state[name])
    torch.set_rng_state(state["rng"])
    train(model, optimizer, range(state["epoch"] - 1, 6))  # <- diagnosis: epoch-not-restored
    return model


def main():
    undisturbed, optimizer = make()
    train(undisturbed, optimizer, range(6))
    stopped(folder / "run.pt")
    pairs = zip(
        undisturbed.state_dict().values(), resumed(folder / "run.pt").state_dict().values(), strict=True
    )
    print("the same bits" if all(torch.equal(a, b) for a, b in pairs) else "another run")


main()
