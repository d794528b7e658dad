"""Exercise 1, an attempt: one of two tensors has no device."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
weights = torch.randn(10, 784)  # <- diagnosis: two-devices
images = torch.rand(64, 784, device=device)
scores = images @ weights.T
print(scores.device)
