"""Exercise 6, an attempt: the number of the next epoch, plus one."""

import sys
import tempfile
from pathlib import Path

import torch

from gpulesson.checkpoint import load_checkpoint, resume, save_checkpoint
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
        # the order of the rows is drawn from torch's own generator
        for inputs, targets in Batches(X, y, batch_size=32, shuffle=True):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


undisturbed, optimizer = make()
train(undisturbed, optimizer, range(6))

# the run that is stopped …
model, optimizer = make()
train(model, optimizer, range(3))
save_checkpoint(folder / "run.pt", model=model, optimizer=optimizer, epoch=3)

# … and resumed, with new objects, as in a new process
model, optimizer = make()
last_epoch = resume(load_checkpoint(folder / "run.pt"), model=model, optimizer=optimizer)
train(model, optimizer, range(last_epoch + 1, 6))  # <- diagnosis: epoch-not-restored

pairs = zip(undisturbed.state_dict().values(), model.state_dict().values(), strict=True)
same = all(torch.equal(a, b) for a, b in pairs)
print("the same bits" if same else "another run")
sys.exit(not same)
