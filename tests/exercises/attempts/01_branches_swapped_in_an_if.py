"""Exercise 1, an attempt: the same, in four lines."""

import torch

if torch.cuda.is_available():  # <- diagnosis: branches-swapped
    device = torch.device("cpu")
else:
    device = torch.device("cuda")

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T  # [64, 10]

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
