"""The peak of a training step as ``plan`` says it, and as two other tools do: torch-kitsune and MemTracker.

All three are compared with a count that uses none of them: on the CPU, every storage that an operator makes
is counted from its birth to its death, in the blocks of 512 bytes of CUDA's allocator. Adam's step counters
are left out, which stay on the host when the parameters are on a GPU. torch-kitsune
(https://pypi.org/project/torch-kitsune, 0.7.0) takes a model and the shape of one input, runs no step, and
adds a share for what it does not know. MemTracker is PyTorch's own
(``torch.distributed._tools.mem_tracker``); it watches a loop into which its calls have been written, here
on the CPU, where it counts bytes as they are: its second column compares it with a count without blocks,
counters included.

``pip install --no-deps torch-kitsune==0.7.0 torchvision``, then ``python benchmarks/plan_peers.py``.
"""

from __future__ import annotations

import statistics
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kitsune.predict import predict_memory
from torch import Tensor
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gpulesson
from measuring import Result, about, options
from practice_gpu.device.allocator import rounded

sys.path.append(str(Path(__file__).parents[1] / "tests" / "planning"))
import tasks

STEPS = 3
MODELS = {
    "MLP": tasks.mlp,
    "CNN with BatchNorm": tasks.cnn,
    "LSTM": tasks.lstm,
    "Transformer encoder": tasks.transformer,
    "ResNet-50": tasks.resnet50,
    "small GPT": tasks.gpt,
}


class Alive(TorchDispatchMode):
    """Counts the bytes of all storages while it is open, in blocks of 512 or not; `peak` is the most."""

    def __init__(self, tensors: list[Tensor], blocks: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.blocks = blocks
        self.known: set[int] = set()
        self.now = self.peak = 0
        self.count(tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count(tree_leaves(result))
        return result

    def count(self, values: list[Any]) -> None:
        """Count those that are new, until they die."""
        for value in values:
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                key = storage._cdata
                if key not in self.known:
                    self.known.add(key)
                    size = rounded(storage.nbytes()) if self.blocks else storage.nbytes()
                    self.now += size
                    weakref.finalize(storage, self.forget, key, size)
        self.peak = max(self.peak, self.now)

    def forget(self, key: int, size: int) -> None:
        """Take a storage that has died out of the count."""
        self.known.discard(key)
        self.now -= size


def steps(
    task: Any, optimizer: torch.optim.Optimizer, device: str, after: Callable[[], None] = lambda: None
) -> None:
    """Train for some steps, and call `after` at the end of each."""
    model, batch, loss_of = task
    for _ in range(STEPS):
        inputs = batch(device)
        optimizer.zero_grad()
        loss_of(model, *inputs).backward()
        optimizer.step()
        after()


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer; ``foreach`` is what is chosen on CUDA."""
    return torch.optim.Adam(model.parameters(), foreach=True)


def counted(make: Any, *, blocks: bool) -> int:
    """Return the peak by the independent count; in blocks, without Adam's counters."""
    task = make()
    parameters = list(task[0].parameters())
    with Alive([*parameters, *task[0].buffers()], blocks) as alive:
        steps(task, adam(task[0]), "cpu")
    return alive.peak - (512 * len(parameters) if blocks else 0)


def tracked(make: Any) -> int:
    """Return the peak by MemTracker."""
    task = make()
    optimizer = adam(task[0])
    tracker = MemTracker()
    tracker.track_external(task[0], optimizer)
    with tracker:
        steps(task, optimizer, "cpu", after=tracker.reset_mod_stats)
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


def planned(make: Any) -> int:
    """Return the peak by the planner."""

    def train() -> None:
        task = make()
        task[0].to("cuda")
        steps(task, adam(task[0]), "cuda")

    return gpulesson.plan(train, gpu="T4", steps=STEPS).peak.nbytes


def guessed(make: Any) -> int | None:
    """Return the peak by torch-kitsune; None if it has no answer."""
    model, batch, _ = make()
    inputs = batch("cpu")[0]
    try:
        return int(predict_memory(model, tuple(inputs.shape[1:]), len(inputs)).total_bytes)
    except (RuntimeError, TypeError, ValueError) as error:
        print(f"torch-kitsune: {error}", file=sys.stderr)
        return None


TOOLS = {"plan": planned, "MemTracker": tracked, "torch-kitsune": guessed}


def main() -> None:
    """Compare the peaks of six models."""
    wanted = options(__doc__, "plan_peers")
    columns = [("model", "model", ""), ("counted", "counted, MiB", ",.3f")]
    for tool in TOOLS:
        columns += [(tool, f"{tool}, MiB", ",.3f"), (f"{tool} off", "off", "+.2%")]
    columns.insert(6, ("unrounded off", "without blocks", "+.2%"))
    facts = about(None, "torch-kitsune", "torchvision")
    result = Result("plan_peers", "The peak of three training steps, by three tools", facts, columns)
    for name, make in MODELS.items():
        torch.manual_seed(0)
        truth, unrounded = counted(make, blocks=True), counted(make, blocks=False)
        row: dict[str, Any] = {"model": name, "counted": truth / 2**20}
        for tool, ask in TOOLS.items():
            found = ask(make)
            if found is not None:
                row[tool], row[f"{tool} off"] = found / 2**20, found / truth - 1
        row["unrounded off"] = row["MemTracker"] * 2**20 / unrounded - 1
        result.rows.append(row)
        print(result.cells(row), flush=True)
    off = {key: [abs(row[key]) for row in result.rows if key in row] for key, *_ in columns if "off" in key}
    what = "peak of a training step, six models"
    result.claim(f"{what}: plan is off by at most", max(off["plan off"]), ".2%", "<=", 0.0)
    result.claim(f"{what}: PyTorch's MemTracker, without blocks", max(off["unrounded off"]), ".2%")
    result.claim(f"{what}: torch-kitsune, median", statistics.median(off["torch-kitsune off"]), ".0%")
    result.finish(wanted.json)


if __name__ == "__main__":
    main()
