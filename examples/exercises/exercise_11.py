"""Exercise 11: Make a slow loop lean.

`slow` works, and does three things that nobody needs. Two functions are empty. Write
them one after the other, and check whenever you like:

    python -m gpulesson check exercise_11.py

To see a profile of `slow`: python exercise_11.py profile
"""

import os
import sys

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler's own messages

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gpulesson
from gpulesson.models import MLP


def slow(pixels, labels, steps):
    """Train for some steps, on the device of the pixels; return the loss of each.

    pixels: bytes [N, 784], labels: class numbers [N], with N at least 64 * steps.
    """
    torch.manual_seed(1)
    model = MLP(784, 64, 10).to(pixels.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        images = pixels.float() / 255
        rows = slice(64 * step, 64 * (step + 1))
        loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        norms = [parameter.grad.norm() for parameter in model.parameters()]
        total = torch.stack(norms).norm()
        if not torch.isfinite(total):
            print("this step is not finite")
        optimizer.step()
        losses.append(loss.item())
    return losses


def batch(pixels, labels, step):
    """Return the images and the labels of one step: rows 64 * step and the next 63.

    pixels and labels are those of all rows, as for `slow`. The images are float32, from
    0 to 1, [64, 784], on the device of the pixels. Convert no other rows.
    """


def losses(pixels, labels, steps):
    """Return the same list of floats as `slow`, with less work.

    No image is converted twice, and no norm is computed. Nothing is read from the
    device before the last step is done. Then all losses are read together.
    """


class Count(TorchDispatchMode):
    """Counts operators (views left out) and their bytes."""

    operators = nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.operators += 1
            tensors = tree_leaves((args, kwargs, result))
            self.nbytes += sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
        return result


def main():
    """Train both on the practice GPU; print what a step needs, and the last loss."""
    torch.manual_seed(0)
    steps = 20
    pixels = torch.randint(256, (2000, 784), dtype=torch.uint8)
    labels = torch.randint(10, (2000,))

    if "profile" in sys.argv:
        with torch.profiler.profile() as profiled:
            slow(pixels, labels, steps)
        table = profiled.key_averages()
        print(table.table("self_cpu_time_total", 12, max_name_column_width=40))

    with gpulesson.practice_gpu(force=True) as gpu:
        pixels, labels = pixels.cuda(), labels.cuda()
        for function in (slow, losses):
            gpu.clear_events()
            with Count() as count:
                found = function(pixels, labels, steps)
            reads = sum(e.count for e in gpu.events if e.kind == "device to host")
            print(f"{function.__name__}: {count.operators / steps:.1f} operators and")
            print(f"   {count.nbytes / 1e6 / steps:.2f} MB a step, {reads} reads,")
            print(f"   last loss: {found[-1] if found else None}")


if __name__ == "__main__":
    main()
