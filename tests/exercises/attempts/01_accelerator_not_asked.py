"""Exercise 1, an attempt: the accelerator that PyTorch was built for, not the one that is there."""

import torch
from torch.accelerator import current_accelerator

device = current_accelerator() or torch.device("cpu")  # <- diagnosis: accelerator-not-asked

options = {"device": device, "dtype": torch.float32}
weights = torch.randn(10, 784, **options)
images = torch.rand(64, 784, **options)
scores = images.matmul(weights.t())

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
