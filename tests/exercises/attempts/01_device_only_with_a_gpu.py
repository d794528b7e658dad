"""Exercise 1, an attempt: without a GPU there is no device."""

import torch

if torch.cuda.is_available():  # <- diagnosis: only-with-a-gpu
    device = torch.device("cuda")

options = {"device": device, "dtype": torch.float32}
weights = torch.randn(10, 784, **options)
images = torch.rand(64, 784, **options)
scores = images.matmul(weights.t())

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
