"""Exercise 1, solved: the device is chosen in one place, from what is there."""

import torch

from gpulesson.device import choose_device

device = choose_device()
# without this package, the same choice, less the environment variable:
#   found = torch.accelerator.current_accelerator(check_available=True)
#   device = torch.device("cpu") if found is None else found

weights = torch.randn(10, 784, device=device)
images = torch.rand(64, 784, device=device)
scores = images @ weights.T  # [64, 10]

print(f"done on {scores.device}: {tuple(scores.shape)} scores")
