"""Exercise 3: a first model, taken to a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulesson.exercises.exercise import IF_NOTHING_ELSE, TRAINING_LOOP, Exercise
from gpulesson.exercises.rules import evidence
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Compare with the split of the published example."""
    import torch
    from sklearn.model_selection import train_test_split

    from gpulesson.data import load_iris

    with observer.reader.unnoticed(), torch.device("cpu"):  # whatever the program's default is
        data = load_iris(widely_copied=True)
        features, targets = data.features.numpy(), data.targets.numpy()
    parts = train_test_split(features, targets, test_size=0.2, random_state=33)
    samples = {"train": (parts[0], parts[2]), "test": (parts[1], parts[3])}
    observer.compare_samples(trace, samples, passes=50, accuracy=0.8)


EXERCISE = Exercise(
    name="03_train_iris",
    lesson="A first model on the GPU",
    title="Train and test on a device",
    difficulty="medium",
    hints=(
        "Everything in model(X_train) and in loss_fn(outputs, y_train) must be on one device.",
        "Five things move: the model, and inputs and targets of both parts. The loop stays as it is.",
        "After training: model.eval(), with torch.inference_mode(), argmax(dim=1), == y_test, sum(), and "
        "divide by len(y_test).",
    ),
    rules=(*TRAINING_LOOP, evidence.seeded),
    last=IF_NOTHING_ELSE,
    asked_for=frozenset({"gradients-while-evaluating", "optimizer-before-move"}),
    probe=probe,
)
