"""Exercise 1: Compute on every machine.

Two functions are empty. Write them one after the other, and check whenever you like:

    python -m gpulesson check exercise_01.py
"""

import torch


def pick_device():
    """Return the device to compute on: a CUDA GPU where there is one, else the CPU.

    Return a torch.device, or its name. The check calls it with a GPU and without.
    """


def scores(count, device):
    """Return the scores of random images: [count, 10], on the device.

    Make weights [10, 784] with torch.randn, and images [count, 784] with torch.rand.
    Make both on the device itself, so that nothing has to be copied there. A score is
    a row of images times a row of weights: all of them are one matrix product.

    device: the torch.device to compute on.
    """


def main():
    """Compute as on this machine, and as on one with a (simulated) GPU."""
    import contextlib

    import gpulesson

    for name, machine in (
        ("here", contextlib.nullcontext()),
        ("with a GPU", gpulesson.practice_gpu()),
    ):
        with machine:
            device = pick_device()
            result = scores(64, torch.device(device or "cpu"))
            where = "nothing" if result is None else f"{list(result.shape)}"
            place = "nowhere" if result is None else result.device
            print(f"{name:<10}  chosen: {device}, scores: {where} on {place}")


if __name__ == "__main__":
    main()
