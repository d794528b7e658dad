"""Exercise 1, an attempt: without a GPU it says so, and does nothing."""

import torch

if torch.cuda.is_available():
    device = torch.device("cuda")
    weights = torch.randn(10, 784, device=device)
    images = torch.rand(64, 784, device=device)
    scores = images @ weights.T  # [64, 10]

    print(f"done on {scores.device}: {tuple(scores.shape)} scores")
else:
    print("done on cpu: no GPU here")  # <- diagnosis: work-left-out
