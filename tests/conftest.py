"""What several test modules share."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA GPU, and torch finds none here")


@pytest.fixture(autouse=True)
def nobody_wishes_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPULESSON_DEVICE of whoever runs the tests must not decide their outcome."""
    monkeypatch.delenv("GPULESSON_DEVICE", raising=False)


@pytest.fixture(scope="session")
def warm():
    """The process that has imported PyTorch once, and forks; None where the system cannot have one."""
    from gpulesson.exercises.process.warm import warm_process

    with warm_process() as process:
        yield process


@pytest.fixture
def genuine_data() -> Path:
    """The folder with real Fashion-MNIST files."""
    folder = os.environ.get("GPULESSON_DATA")
    if not folder:
        pytest.skip("needs genuine Fashion-MNIST: set GPULESSON_DATA to a folder that holds FashionMNIST/raw")
    return Path(folder)


@pytest.fixture
def nothing_waits():
    """Wraps batches: between the first and the last the CPU may not wait for the GPU."""
    import torch

    class Watched:
        def __init__(self, batches) -> None:
            self.batches = batches

        def __iter__(self):
            for batch in self.batches:
                torch.cuda.set_sync_debug_mode("error")
                yield batch
                torch.cuda.set_sync_debug_mode("default")

    yield Watched
    torch.cuda.set_sync_debug_mode("default")  # also after a wait, which leaves the loop by an error


@pytest.fixture
def count_operators():
    """A function that runs another and counts the ATen operators by name, backward and optimizer included."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.counts: Counter[str] = Counter()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.counts[str(func.overloadpacket)] += 1
            return func(*args, **(kwargs or {}))

    def count(fn) -> Counter[str]:
        with Counting() as mode:
            fn()
        return mode.counts

    return count
