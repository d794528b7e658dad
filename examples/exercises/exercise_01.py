"""Exercise 1: this script needs an NVIDIA GPU. Make it run on every machine."""

import torch

device = torch.device("cuda")

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T  # .T swaps rows and columns: [64, 784] @ [784, 10]

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
