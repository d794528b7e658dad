"""Exercise 1, an attempt: the device is chosen, and one line does not care."""

import torch

from gpulesson.device import choose_device

device = choose_device()

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784).cuda()  # <- diagnosis: hard-coded-cuda
scores = images @ weights.T  # [64, 10]

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
