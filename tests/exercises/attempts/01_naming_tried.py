"""Exercise 1, an attempt: to name a device is taken for a test."""

import torch

try:
    device = torch.device("cuda:0")  # <- diagnosis: naming-is-no-test
except (RuntimeError, AssertionError):
    device = torch.device("cpu")
else:
    print("gpu")

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T
print(f"done on {scores.device}: {tuple(scores.shape)} scores")
