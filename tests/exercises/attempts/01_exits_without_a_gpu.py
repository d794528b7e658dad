"""Exercise 1, an attempt: without a GPU it ends itself."""

import sys

import torch

if not torch.cuda.is_available():
    print("this needs a GPU")  # <- diagnosis: work-left-out
    sys.exit(0)
device = torch.device("cuda")

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T  # [64, 10]

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
