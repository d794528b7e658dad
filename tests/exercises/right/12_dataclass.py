"""Exercise 12: names of its own, and a table."""

import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

torch.set_num_threads(1)


@dataclass(frozen=True)
class Setting:
    batch: int
    lr: float


small = Setting(batch=32, lr=1e-3)
large = Setting(batch=512, lr=5e-2)


def load():
    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    return train_test_split(x, y, test_size=0.2, random_state=0)


x_train, x_test, y_train, y_test = load()


def shuffled(batch):
    for rows in torch.randperm(len(x_train)).split(batch):
        yield x_train[rows], y_train[rows]


def count_epochs(seed, setting):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=setting.lr)
    epoch, accuracy = 0, 0.0
    while accuracy < 0.95 and epoch < 200:
        for inputs, targets in shuffled(setting.batch):
            loss = F.cross_entropy(net(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        epoch += 1
        with torch.no_grad():
            accuracy = (net(x_test).argmax(1) == y_test).double().mean().item()
    return epoch


rows = [(s, count_epochs(s, small), count_epochs(s, large)) for s in range(3)]
print(f"{'seed':>4} {small.batch:>6} {large.batch:>6} {'ratio':>6}")
for s, a, b in rows:
    print(f"{s:>4} {a:>6} {b:>6} {b / a:>6.2f}")
pays = max(b / a for _, a, b in rows) <= 1.5
print("it pays" if pays else "it needs more epochs than it is worth")
sys.exit(0 if pays else 1)
