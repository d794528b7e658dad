"""What the checker finds out by itself at the end of an exercise: true labels, true answers, equal bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gpulesson.exercises.observe import Observer
from gpulesson.exercises.trace import Trace


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


PROBES: dict[str, Callable[[Trace, Observer, dict[str, Any]], None]] = {
    "02": places,
    "03": iris,
    "04": digits,
    "05": kinds,
    "06": resuming,
}
