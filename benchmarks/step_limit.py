"""What a training step takes beyond its own operators: the step, and each of its operators alone.

    python benchmarks/step_limit.py [--rounds 24]

A step picks its rows of the images, trains the 784-128-64-10 network on them, and updates it with fused
Adam, as `fit` does. One step is run under a mode that keeps every operator with its arguments, in the form
in which autograd and autocast hand it to the device. Then each of them is called alone, on tensors of the
same shapes and types (the rows of the images are others in each call, as in training), in turns with whole
steps. The sum is the limit for these shapes: no loop gets below it without other operators. A second mode
times each operator inside the step. So what is left has a name: operators that are slower there (their data
are not in the cache, as they are when one is called over and over), and what happens between them: Python,
autograd, the optimizer's bookkeeping.

One thread, on the CPU, whose own time counts. Views and empty tensors compute nothing, and are left out.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from gpulesson.models import MLP
from measuring import Result, about, fashion, options
from plain_loops import loss_fn

CASES = [(512, "float32", 1.3), (1024, "float32", 1.3), (512, "bfloat16", 1.7), (1024, "bfloat16", 1.7)]
CALLS = 4  # of a function in its turn, after one that warms up
GROUPS = {  # operators by what their name contains; the others are elementwise
    "products": ("mm",),
    "rows picked": ("index",),
    "loss": ("softmax", "nll"),
    "Adam": ("adam",),
}

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


class Operators(TorchDispatchMode):
    """Keeps the operators that run below, with copies of their arguments, and the seconds of each."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.seconds: dict[str, float] = defaultdict(float)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not computes(func):
            return func(*args, **kwargs)
        self.calls.append((func, *tree_map_only(Tensor, torch.clone, (args, kwargs))))
        return func(*args, **kwargs)


class Clocked(Operators):
    """Only adds up the seconds of each group of operators."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        start = time.thread_time()
        result = func(*args, **(kwargs or {}))
        if computes(func):
            self.seconds[group(func)] += time.thread_time() - start
        return result


def computes(func: Any) -> bool:
    """Return whether an operator computes: a view only names memory, an empty tensor only takes it."""
    name, results = func.name(), func._schema.returns
    is_view = any(result.alias_info is not None and not result.alias_info.is_write for result in results)
    return not is_view and name.startswith("aten::") and not any(word in name for word in ("empty", "detach"))


def group(func: Any) -> str:
    """Name the group of an operator.

    Examples
    --------
    >>> group(torch.ops.aten.addmm.default), group(torch.ops.aten.relu.default)
    ('products', 'elementwise, sums, casts')
    """
    name = func.name().lower()
    return next((key for key, parts in GROUPS.items() if any(part in name for part in parts)), ELEMENTWISE)


ELEMENTWISE = "elementwise, sums, casts"


class Step:
    """Trains on the next rows at each call, as `fit` does."""

    def __init__(self, images: Tensor, targets: Tensor, batch_size: int, dtype: str) -> None:
        torch.manual_seed(0)
        self.images, self.targets = images, targets
        self.model = MLP(784, 128, 64, 10)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True)
        batches = torch.randperm(len(images)).split(batch_size)[: len(images) // batch_size]
        self.rows, self.other_rows = cycle(batches), cycle(batches)
        self.bf16 = dtype == "bfloat16"

    def __call__(self) -> Tensor:
        rows = next(self.rows)
        inputs, labels = self.images.index_select(0, rows), self.targets.index_select(0, rows)
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = loss_fn(self.model(inputs), labels)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def alone(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], object]:
        """Return an operator of the step as a function. One that picks rows picks others at each call."""
        if group(func) == "rows picked":
            return lambda: func(args[0], 0, next(self.other_rows))
        return lambda: func(*args, **kwargs)


def seconds_of(fn: Callable[[], object]) -> float:
    """Return the seconds of a call, after one that does not count."""
    fn()
    start = time.thread_time()
    for _ in range(CALLS):
        fn()
    return (time.thread_time() - start) / CALLS


def measure(step: Step, rounds: int) -> dict[str, Any]:
    """Return the seconds of a step, of its operators alone and inside it, by group, and the ratios."""
    for _ in range(3):
        step()
    with Operators() as operators:
        step()
    calls = [step.alone(*call) for call in operators.calls]
    names = [group(func) for func, *_ in operators.calls]
    steps: list[float] = []
    alone: list[list[float]] = [[] for _ in calls]
    inside: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        order = [*range(len(calls)), -1]
        random.shuffle(order)
        for number in order:
            if number >= 0:
                alone[number].append(seconds_of(calls[number]))
                continue
            steps.append(seconds_of(step))
            with Clocked() as clocked:
                for _ in range(CALLS):
                    step()
            for name, seconds in clocked.seconds.items():
                inside[name].append(seconds / CALLS)
    sums: dict[str, float] = defaultdict(float)
    for name, values in zip(names, alone, strict=True):
        sums[name] += statistics.median(values)
    ratios = [one / sum(round_) for one, round_ in zip(steps, zip(*alone, strict=True), strict=True)]
    return {
        "step": statistics.median(steps),
        "alone": dict(sums),
        "inside": {name: statistics.median(values) for name, values in inside.items()},
        "ratios": ratios,
        "count": len(calls),
    }


def rows_of(case: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the table's rows: the groups, then what is left."""
    alone, inside = found["alone"], found["inside"]
    rows = [
        {"case": case, "what": name, "alone": alone[name] * 1e6, "inside": inside[name] * 1e6}
        for name in (*GROUPS, ELEMENTWISE)
        if name in alone
    ]
    sums = {"alone": sum(alone.values()) * 1e6, "inside": sum(inside.values()) * 1e6}
    between = found["step"] * 1e6 - sums["inside"]
    whole = {"what": "the step", "inside": found["step"] * 1e6, "ratio": found["step"] * 1e6 / sums["alone"]}
    return [
        *rows,
        {"case": case, "what": f"all {found['count']} operators", **sums},
        {"case": case, "what": "between them: Python, autograd, optimizer", "inside": between},
        {"case": case, **whole},
    ]


def main() -> None:
    """Measure, print, write."""
    chosen = options(__doc__, "step_limit", rounds=24)
    torch.set_num_threads(1)
    random.seed(0)
    data = fashion()
    images, targets = data.train_images.flatten(1).float() / 255, data.train_targets
    rows, medians = [], {}
    for batch_size, dtype, most in CASES:
        case = f"batch {batch_size:,}, {dtype}"
        found = measure(Step(images, targets, batch_size, dtype), chosen.rounds)
        rows += rows_of(case, found)
        medians[case] = (statistics.median(found["ratios"]), most)
    result = Result(
        "step_limit",
        "A training step, and its own operators alone",
        about(torch.device("cpu"), data=data.source, rounds=chosen.rounds),
        [
            ("case", "step", ""),
            ("what", "what", ""),
            ("alone", "µs alone", ".0f"),
            ("inside", "µs in the step", ".0f"),
            ("ratio", "step / operators alone", ".2f"),
        ],
        rows,
        notes=[
            "Alone: called over and over, so that its data are in the cache. In the step they often are not.",
        ],
    )
    for case, (ratio, most) in medians.items():
        result.claim(f"step / its operators alone, {case}", ratio, ".2f", "<=", most)
    result.finish(chosen.json)


if __name__ == "__main__":
    main()
