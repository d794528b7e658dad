"""Exercise 1, an attempt: one GPU is not enough for it."""

import torch

device = "cuda" if torch.cuda.device_count() > 1 else "cpu"  # <- diagnosis: condition-false

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T
print(f"done on {scores.device}: {tuple(scores.shape)} scores")
