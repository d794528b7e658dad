"""Exercise 2, an attempt: the tensors are changed until the answers fit."""

import sys

import numpy as np
import torch

import gpulesson

ANSWERS = {
    "a": "cpu",  # nobody said otherwise
    "b": "cuda:0",  # made there
    "c": "cuda:0",  # the copy
    "d": "cuda:0",
    "e": "cpu",  # a copy back
    "f": "cpu",  # shares memory with the NumPy array: no default device can change that
    "g": "cuda:0",  # made while cuda was the default
    "h": "cuda:0",  # a single number may join from the CPU
}

with gpulesson.practice_gpu():  # a real CUDA GPU, where there is one
    device = torch.device("cuda")

    # the tensors
    a = torch.zeros(3)
    b = torch.zeros(3, device=device)
    c = a.to(device)
    d = torch.ones(3)
    d = d.to(device)  # <- diagnosis: tensors-changed
    e = c.cpu()
    with torch.device("cuda"):
        f = torch.from_numpy(np.ones(3))
        g = torch.arange(3)
    h = b + torch.tensor(1.0)

    places = {
        name: str(tensor.device) for name, tensor in zip("abcdefgh", (a, b, c, d, e, f, g, h), strict=True)
    }

right = sum(ANSWERS[name] == place for name, place in places.items())
print(f"{right} of {len(places)}")
sys.exit(right < len(places))
