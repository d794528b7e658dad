"""Exercise 1, an attempt: the two devices are the wrong way round."""

import torch

device = torch.device("cpu" if torch.cuda.is_available() else "cuda")  # <- diagnosis: branches-swapped

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T  # [64, 10]

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
