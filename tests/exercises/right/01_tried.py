"""Exercise 1, right: tried, and else the CPU."""

import torch

try:
    torch.zeros(1, device="cuda")
    device = "cuda"
except (RuntimeError, AssertionError):
    device = "cpu"

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T  # [64, 10]

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
