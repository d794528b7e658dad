"""Exercise 1, an attempt: the error is caught, and the work is left out."""

import torch

try:
    device = torch.device("cuda")
    weights = torch.randn(10, 784, device=device)
    images = torch.rand(64, 784, device=device)
    scores = images @ weights.T  # [64, 10]

    print(f"done on {scores.device}: {tuple(scores.shape)} scores")
except Exception:
    print("done on cpu: (64, 10) scores")  # <- diagnosis: work-left-out
