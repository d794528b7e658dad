"""Exercise 1, an attempt: the guard is true where there is no GPU."""

import torch

have = not torch.cuda.is_available()
device = torch.device("cuda") if have else torch.device("cpu")  # <- diagnosis: branches-swapped

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T
print(f"done on {scores.device}: {tuple(scores.shape)} scores")
