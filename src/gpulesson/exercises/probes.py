"""What the checker finds out by itself at the end of an exercise: true labels, true answers, equal bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpulesson.exercises.observe import Observer
from gpulesson.exercises.trace import Trace
from gpulesson.practice.events import TO_DEVICE


def _samples(trace: Trace, observer: Observer, parts: dict[str, tuple[Any, Any]]) -> None:
    """Judge the model's answers by labels that the checker has loaded itself."""
    truth: dict[bytes, tuple[str, int]] = {}
    with observer.looker.unnoticed():
        for part, (inputs, targets) in parts.items():
            for row, label in zip(inputs, targets, strict=True):
                truth[row.astype("float32").tobytes()] = (part, int(label))
    trace.judged = observer.judge(truth, classes=len({label for _, label in truth.values()}))
    trace.facts["test_samples"] = len(parts["test"][1])


def iris(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Exercise 3: the split of the published example."""
    from sklearn.model_selection import train_test_split

    from gpulesson.data import load_iris

    with observer.looker.unnoticed():
        data = load_iris(widely_copied=True)
        features, targets = data.features.numpy(), data.targets.numpy()
    parts = train_test_split(features, targets, test_size=0.2, random_state=33)
    _samples(trace, observer, {"train": (parts[0], parts[2]), "test": (parts[1], parts[3])})


def digits(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Exercise 4: the split of the starter."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    parts = train_test_split(data.data / 16, data.target, test_size=0.2, random_state=0)
    _samples(trace, observer, {"train": (parts[0], parts[2]), "test": (parts[1], parts[3])})


def places(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Exercise 2: the predictions, and where the tensors really are."""
    answers = space.get("ANSWERS")
    trace.facts["answers"] = dict(answers) if isinstance(answers, dict) else {}
    tensors = {name: space.get(name) for name in "abcdefgh"}
    trace.facts["places"] = {
        name: str(tensor.device) for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)
    }


def kinds(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Exercise 5: the confusion matrix, and what the kinds are called."""
    returned = observer.values.returned
    result, data = returned.get("evaluate"), returned.get("load_fashion_mnist")
    if result is not None and result.confusion is not None and data is not None:
        trace.facts["confusion"] = result.confusion.tolist()
        trace.facts["class_names"] = list(data.class_names)


def resuming(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Exercise 6: whether the first model and the last have the same bits."""
    values = observer.values
    stepped = [module for module, seen in observer.training.models.models if seen.stepped]
    states = [module.state_dict() for module in (stepped[:1] + stepped[-1:])]
    with observer.looker.unnoticed():
        trace.facts["same"] = (
            len(stepped) > 1
            and states[0].keys() == states[1].keys()
            and all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        )
    trace.facts["loads"] = values.loads
    trace.facts["unsafe_loads"] = values.unsafe_loads
    trace.facts["rng_restored"] = values.rng_restored


class _Clockwork:
    """A device and a clock like the starter's of exercise 8, with one difficulty at a time."""

    def __init__(self, cold: bool = False, shared: bool = False, busy: float = 0.0) -> None:
        self.now, self.free_at, self.calls = 0.0, busy, 0
        self._cold, self._shared = cold, shared

    def run(self, work: float) -> None:
        self.calls += 1
        work += 30_000 * (self._cold and self.calls <= 12) + 2_000 * (self._shared and self.calls % 4 == 0)
        self.now += 10
        self.free_at = max(self.free_at, self.now) + work

    def synchronize(self) -> None:
        self.now = max(self.now, self.free_at)


def stopwatch(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Exercise 8: which difficulty the stopwatch does not overcome."""
    function = space.get("stopwatch")
    difficulties = {
        "not-waited-for": _Clockwork(),
        "older-work-measured": _Clockwork(busy=5_000.0),
        "not-warmed-up": _Clockwork(cold=True),
        "neighbour-measured": _Clockwork(shared=True),
    }
    if callable(function):
        trace.facts["stopwatch"] = function.__code__.co_firstlineno
        measured = {kind: float(function(clockwork, 400)) for kind, clockwork in difficulties.items()}
        trace.facts["measured"] = {kind: value for kind, value in measured.items() if value != 410}


def feeding(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Exercise 9: calls of the dataset, and the largest copy."""
    pictures, arrived = space.get("pictures"), space.get("arrived")
    gpu: Any = space.get("gpu")
    if getattr(gpu, "simulated", False):  # by force, also where a real one is present
        trace.device, trace.simulated = gpu.name, True
    trace.facts["calls"] = int(getattr(pictures, "calls", 0))
    trace.facts["batches"] = len(arrived) if isinstance(arrived, list) else 0
    copies = [event for event in getattr(gpu, "events", ()) if event.kind == TO_DEVICE]
    trace.facts["bytes"] = sum(event.nbytes for event in copies)
    trace.facts["largest_copy"] = max(copies, key=lambda event: event.nbytes).line if copies else 0


def lean(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Exercise 11: what the starter has counted."""
    mine, now, before = space.get("mine"), space.get("now"), space.get("before")
    if callable(mine) and now is not None and before is not None:
        trace.facts["mine"] = mine.__code__.co_firstlineno
        trace.facts["reads"] = int(now.reads)
        trace.facts["bytes"] = now.nbytes / before.nbytes
        trace.facts["operators"] = now.operators / before.operators


def larger_batch(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Exercise 12: the rate, and the epochs that it took."""
    rate, needed = space.get("RATE"), space.get("needed")
    if isinstance(rate, int | float) and isinstance(needed, list) and needed:
        trace.facts["rate"] = float(rate)
        trace.facts["needed"] = [[int(small), int(large)] for small, large in needed]


PROBES: dict[str, Callable[[Trace, Observer, dict[str, Any]], None]] = {
    "02": places,
    "03": iris,
    "04": digits,
    "05": kinds,
    "06": resuming,
    "08": stopwatch,
    "09": feeding,
    "11": lean,
    "12": larger_batch,
}
