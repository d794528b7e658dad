"""Exercise 2, an attempt: one of the names is not there."""

import sys

import numpy as np
import torch

import gpulesson

ANSWERS = {  # <- diagnosis: no-such-key
    "a": "cpu",
    "b": "cuda:0",
    "c": "cuda:0",
    "d": "cpu",
    "e": "cpu",
    "f": "cpu",
    "g": "cuda:0",
}

with gpulesson.practice_gpu():  # a real CUDA GPU, where there is one
    device = torch.device("cuda")

    # the tensors
    a = torch.zeros(3)
    b = torch.zeros(3, device=device)
    c = a.to(device)
    d = torch.ones(3)
    d.to(device)
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
