"""Exercise 1, an attempt: both copies on the GPU are thrown away."""

import torch

use = torch.cuda.is_available()
weights = torch.randn(10, 784)
images = torch.rand(64, 784)
if use:
    weights.cuda()  # <- diagnosis: move-thrown-away
    images.cuda()
scores = images @ weights.T
print(f"done on {scores.device}")
