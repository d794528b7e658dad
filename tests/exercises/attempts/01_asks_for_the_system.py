"""Exercise 1, an attempt: the system is asked, and not PyTorch."""

import sys

import torch

device = "cuda"
if sys.platform == "darwin":  # <- diagnosis: condition-true
    device = "cpu"

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T
print(f"done on {scores.device}: {tuple(scores.shape)} scores")
