"""Exercise 11, an attempt: labels of other rows."""

import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpulesson.models import MLP

torch.manual_seed(0)
pixels = torch.randint(256, (4000, 784), dtype=torch.uint8)
labels = torch.randint(10, (4000,))
STEPS = 20


def slow(pixels, labels, steps):
    """Train for some steps; return the loss of each, as floats."""
    torch.manual_seed(1)
    model = MLP(784, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        images = pixels.float() / 255
        rows = torch.arange(64 * step, 64 * (step + 1)) % len(images)
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


def mine(pixels, labels, steps):
    """Return the same losses, by less work."""
    torch.manual_seed(1)
    model = MLP(784, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        rows = torch.arange(64 * step, 64 * (step + 1)) % len(pixels)
        images = pixels[rows].float() / 255  # this batch, and not all
        loss = torch.nn.functional.cross_entropy(model(images), labels[:64])  # <- diagnosis: other-labels
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())  # read together, below
    losses = torch.stack(losses)
    if not torch.isfinite(losses).all():  # one look, at the end
        print("a loss is not finite")
    return losses.tolist()


class Count(TorchDispatchMode):
    """Counts operators (views left out), their bytes, and the values that are read."""

    operators = nbytes = reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.reads += "_local_scalar_dense" in str(func)
        if not func.is_view:
            self.operators += 1
            picks = "index" in str(func)  # touches only the rows that it picks
            tensors = tree_leaves((args[picks:], kwargs, result))
            self.nbytes += sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
        return result


if "profile" in sys.argv:
    with torch.profiler.profile() as profiled:
        mine(pixels, labels, STEPS)
    print(
        profiled.key_averages().table(sort_by="self_cpu_time_total", row_limit=12, max_name_column_width=40)
    )

with Count() as before:
    expected = slow(pixels, labels, STEPS)
with Count() as now:
    losses = mine(pixels, labels, STEPS)
for name, count in (("slow", before), ("mine", now)):
    operators, megabytes = count.operators / STEPS, count.nbytes / 1e6 / STEPS
    print(f"{name}: {operators:.1f} operators and {megabytes:.2f} MB a step,", end=" ")
    print(f"{count.reads} reads in all")
same = len(losses) == STEPS and all(abs(a - b) < 1e-5 for a, b in zip(expected, losses, strict=True))
if not same:
    verdict = "other losses than before"
elif now.operators > 0.75 * before.operators or now.nbytes > 0.15 * before.nbytes or now.reads > 1:
    verdict = "there is more that nobody needs"
else:
    verdict = "lean"
print(verdict)
sys.exit(verdict != "lean")
