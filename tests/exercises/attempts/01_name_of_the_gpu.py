"""Exercise 1, an attempt: the GPU is asked for its name, if there is one or not."""

import torch

from gpulesson.device import choose_device

device = choose_device()
print("running on", torch.cuda.get_device_name(0))  # <- diagnosis: hard-coded-cuda

options = {"device": device, "dtype": torch.float32}
weights = torch.randn(10, 784, **options)
images = torch.rand(64, 784, **options)
scores = images.matmul(weights.t())

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
