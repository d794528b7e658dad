"""Exercise 2: Say where it is, and bring it elsewhere.

First a table, then a function. Check whenever you like:

    python -m gpulesson check exercise_02.py
"""

import numpy as np
import torch

ANSWERS = {  # "cpu" or "cuda:0"
    "a": "?",
    "b": "?",
    "c": "?",
    "d": "?",
    "e": "?",
    "f": "?",
    "g": "?",
    "h": "?",
}


def make_tensors():
    """Return the eight tensors of the table."""
    device = torch.device("cuda")

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

    return {"a": a, "b": b, "c": c, "d": d, "e": e, "f": f, "g": g, "h": h}


def bring(model, batch, device):
    """Bring a model and a batch to the device; return the batch's copy.

    model: an nn.Module. It moves itself, and so need not be returned.
    batch: a dictionary, {"images": tensor, "labels": tensor}. It stays as it is, with
    the tensors that it holds: the copies are in a new dictionary, with the same names.
    device: a torch.device. Both may come from the CPU or from the GPU.
    """


def main():
    """Count the right answers; bring a model and a batch to the GPU."""
    import gpulesson
    from gpulesson.device import tensor_devices

    with gpulesson.practice_gpu():  # a real CUDA GPU, where there is one
        tensors = make_tensors()
        right = sum(
            str(ANSWERS[name]) in (str(t.device), t.device.type)  # "cuda" will do, too
            for name, t in tensors.items()
        )
        print(f"{right} of {len(tensors)}")

        model = torch.nn.Linear(4, 2)
        batch = {"images": torch.rand(8, 4), "labels": torch.arange(8)}
        copies = bring(model, batch, torch.device("cuda"))
        for name, thing in (("model", model), ("batch", batch), ("copies", copies)):
            places = {key: str(place) for key, place in tensor_devices(thing).items()}
            print(f"{name:<7} {places}")


if __name__ == "__main__":
    main()
