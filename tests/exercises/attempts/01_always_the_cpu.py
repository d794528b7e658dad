"""Exercise 1, an attempt: runs everywhere, and never on a GPU."""

import torch

device = torch.device("cpu")  # <- diagnosis: gpu-left-idle

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T  # [64, 10]

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
