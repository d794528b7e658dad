"""Exercise 1, right: the default device is set, and matmul is called; printed without a line break."""

import torch

torch.set_default_device(["cpu", "cuda"][torch.cuda.is_available()])
scores = torch.rand(64, 784).matmul(torch.randn(784, 10))
print(f"done on {scores.device}: {tuple(scores.shape)} scores", end="")
