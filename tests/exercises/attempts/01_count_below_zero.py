"""Exercise 1, an attempt: the condition for the CPU never holds."""

import torch


def pick():
    if torch.cuda.device_count() < 0:  # <- diagnosis: condition-true
        return "cpu"
    return "cuda"


device = pick()

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T
print(f"done on {scores.device}: {tuple(scores.shape)} scores")
