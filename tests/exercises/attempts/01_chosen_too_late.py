"""Exercise 1, an attempt: one of two tensors is made on the device."""

import torch

from gpulesson.device import choose_device

device = choose_device()

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784)  # <- diagnosis: two-devices
scores = images @ weights.T

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
