"""Exercise 1, an attempt: the type of an accelerator that may be None."""

import torch

device = torch.accelerator.current_accelerator(check_available=True).type  # <- diagnosis: no-accelerator

options = {"device": device, "dtype": torch.float32}
weights = torch.randn(10, 784, **options)
images = torch.rand(64, 784, **options)
scores = images.matmul(weights.t())

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
