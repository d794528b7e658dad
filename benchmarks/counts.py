"""What one training step costs in counts, which no noise touches: operators, host reads, calls.

    python benchmarks/counts.py

The 784-128-64-10 network at batch 64 on the CPU. Each figure is what one more step costs: the count of a pass
of twelve steps less that of a pass of eight, divided by four. Operators are ATen's, under a dispatch mode,
with backward and optimizer. A host read fetches a value from a tensor to Python (`.item()`, `.tolist()`): on
a GPU the CPU waits there. Calls are those of Python and C functions that Python's profiler sees.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Subset, TensorDataset

from gpulesson.data import Batches, load_fashion_mnist
from gpulesson.training import fit
from measuring import Result, about, network, options
from plain_loops import by_hand, loss_fn, naive, naive_loader

FEW, MANY = 8, 12  # steps


class Operators(TorchDispatchMode):
    """Counts the operators that run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


def calls(fn: Callable[[], object]) -> Counter[str]:
    """Run `fn` and count the functions that are called, by name."""
    found: Counter[str] = Counter()

    def seen(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            found[frame.f_code.co_name] += 1
        elif event == "c_call":
            found[getattr(argument, "__name__", "")] += 1

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        fn()
    finally:
        sys.setprofile(before)
    return found


def count(fn: Callable[[], object]) -> dict[str, float]:
    """Run `fn` twice and count: ATen operators, host reads, calls."""
    with Operators() as mode:
        fn()
    found = calls(fn)
    reads = mode.counts["aten._local_scalar_dense"] + found["tolist"]
    return {"operators": mode.counts.total(), "reads": reads, "calls": found.total()}


def loops(images: Tensor, targets: Tensor) -> dict[str, Callable[[int], Callable[[], object]]]:
    """Return, by name, functions that make a pass of a given number of steps over images ``[N, 28, 28]``.

    The first one reads its pictures from the files of the data set.
    """

    def make(train: Callable[..., object], batches: Callable[[int], Any], **adam: bool) -> Any:
        def of(steps: int) -> Callable[[], object]:
            model = network()
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **adam)
            run = lambda: train(model, batches(steps * 64), optimizer, torch.device("cpu"))  # noqa: E731
            run()  # gives the optimizer its state
            return run

        return of

    def with_fit(model: Any, batches: Any, optimizer: Any, device: Any) -> object:
        return fit(model, batches, loss_fn, optimizer, device, epochs=1)

    def pictures(samples: int) -> DataLoader:
        return DataLoader(Subset(naive_loader().dataset, range(samples)), batch_size=64, shuffle=True)

    def tensors(samples: int) -> DataLoader:
        return DataLoader(TensorDataset(images[:samples], targets[:samples]), batch_size=64, shuffle=True)

    def resident(samples: int) -> Batches:
        return Batches(images[:samples], targets[:samples], batch_size=64, shuffle=True)

    return {
        "naive: a picture at a time": make(naive, pictures),
        "naive loop, TensorDataset": make(naive, tensors),
        "naive loop, index batching": make(naive, resident),
        "by hand: one read an epoch, fused Adam": make(by_hand, resident, fused=True),
        "fit, fused Adam": make(with_fit, resident, fused=True),
    }


def per_step(of: Callable[[int], Callable[[], object]]) -> dict[str, float]:
    """Return what a step costs, and under ``epoch_reads`` the host reads of a pass beyond its steps'."""
    few, many = (count(of(steps)) for steps in (FEW, MANY))
    step = {key: (many[key] - few[key]) / (MANY - FEW) for key in few}
    return {**step, "epoch_reads": few["reads"] - FEW * step["reads"]}


def main() -> None:
    """Count, print, write."""
    chosen = options(__doc__, "counts")
    torch.set_num_threads(1)
    data = load_fashion_mnist()
    found = loops(data.train_images.float() / 255, data.train_targets)
    rows = {name: per_step(of) for name, of in found.items()}
    result = Result(
        "counts",
        "What one more step of batch 64 costs, in exact counts",
        about(data=data.source),
        [
            ("loop", "loop", ""),
            ("operators", "ATen operators a step", ".0f"),
            ("reads", "host reads a step", ".0f"),
            ("epoch_reads", "host reads an epoch besides", ".0f"),
            ("calls", "Python and C calls a step", ".0f"),
        ],
        [{"loop": name, **row} for name, row in rows.items()],
    )
    *_, hand, ours = rows.values()
    result.claim(
        "`fit`: ATen operators a step, beyond a hand-written loop's",
        ours["operators"] - hand["operators"],
        ".0f",
        "<=",
        0,
    )
    # once an epoch the losses; once a call the labels, if they are in memory, the first loss, on a CPU, and
    # the weights at the end
    result.claim(
        "`fit`: host reads in a call of one epoch", ours["epoch_reads"] + ours["reads"] * 938, ".0f", "<=", 4
    )
    result.claim(
        "`fit`: calls a step, beyond a hand-written loop's", ours["calls"] - hand["calls"], ".0f", "<=", 10
    )
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
