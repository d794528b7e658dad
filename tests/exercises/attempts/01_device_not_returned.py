"""Exercise 1: the functions choose and make what is needed, and keep it for themselves."""

import torch

HAS_GPU = torch.cuda.is_available()


def chosen() -> torch.device:
    name = "cpu"
    if HAS_GPU:
        name = "cuda"
    torch.device(name)  # <- diagnosis: missing-return


weights, images = torch.randn(784, 10, device=chosen()), torch.rand(64, 784, device=chosen())
scores = images @ weights
print(f"done on {scores.device}: {tuple(scores.shape)} scores")
