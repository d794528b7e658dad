"""Exercise 1, an attempt: one .cuda() is left over."""

import torch

from gpulesson.device import choose_device, device_name

device = choose_device()
print(f"running on {device_name(device)}")


def make_inputs(count):
    images = torch.rand(count, 784)
    return images.cuda()  # <- diagnosis: hard-coded-cuda


weights = torch.randn(10, 784, device=device)
images = make_inputs(64)
scores = images @ weights.T
print(f"done on {scores.device}: {tuple(scores.shape)} scores")
