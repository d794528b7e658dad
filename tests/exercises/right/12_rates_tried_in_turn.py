"""Exercise 12: some rates are tried, and the first that pays is kept."""

import sys

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gpulesson.data import Batches
from gpulesson.models import MLP

torch.set_num_threads(1)
digits = load_digits()
X_train, X_test, y_train, y_test = train_test_split(
    torch.tensor(digits.data / 16, dtype=torch.float32),
    torch.tensor(digits.target),
    test_size=0.2,
    random_state=0,
)


def epochs_needed(seed, batch_size, rate, at_most=200):
    torch.manual_seed(seed)
    model = MLP(64, 64, 10)
    opt = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    batches = Batches(X_train, y_train, batch_size=batch_size, shuffle=True)
    for epoch in range(1, at_most + 1):
        for x, y in batches:
            opt.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        with torch.inference_mode():
            if (model(X_test).argmax(1) == y_test).float().mean() >= 0.95:
                return epoch
    return at_most


seeds = range(3)
small = [epochs_needed(s, 32, 1e-3) for s in seeds]
print("batch  32, rate 0.001:", small)
for RATE in (1e-3, 3e-3, 1e-2, 3e-2, 1e-1):
    large = [epochs_needed(s, 512, RATE) for s in seeds]
    print(f"batch 512, rate {RATE:g}:", large)
    if pays := all(b <= 1.5 * a for a, b in zip(small, large, strict=True)):
        break
print("it pays" if pays else "it needs more epochs than it is worth")
sys.exit(not pays)
