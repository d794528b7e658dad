"""Exercise 1, an attempt: the choice is named, and not made."""

import torch

from gpulesson.device import choose_device

device = choose_device  # <- diagnosis: not-called

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T
print(f"done on {scores.device}: {tuple(scores.shape)} scores")
