"""Exercise 1, an attempt: the parentheses are missing, so it is always true."""

import torch

device = torch.device("cuda" if torch.cuda.is_available else "cpu")  # <- diagnosis: not-called

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T  # [64, 10]

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
