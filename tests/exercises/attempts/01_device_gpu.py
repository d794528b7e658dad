"""Exercise 1, an attempt: there is no device of that name."""

import torch

device = torch.device("gpu")  # <- diagnosis: unknown-device

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T  # [64, 10]

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
