"""Exercise 1, an attempt: the device is chosen, and nothing made there."""

import torch

from gpulesson.device import choose_device


def compute(device):
    weights = torch.randn(10, 784)  # <- diagnosis: not-on-the-device
    images = torch.rand(64, 784)
    return images @ weights.T


device = choose_device()
scores = compute(device)
print(f"done on {device}")
