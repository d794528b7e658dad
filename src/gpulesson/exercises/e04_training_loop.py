"""Exercise 4: a training loop, brought to a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulesson.exercises.exercise import IF_NOTHING_ELSE, TRAINING_LOOP, Exercise
from gpulesson.exercises.rules import evidence, memory
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Compare with the split of the starter."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    parts = train_test_split(data.data / 16, data.target, test_size=0.2, random_state=0)
    samples = {"train": (parts[0], parts[2]), "test": (parts[1], parts[3])}
    observer.compare_samples(trace, samples, passes=40, accuracy=0.8)


EXERCISE = Exercise(
    name="04_training_loop",
    lesson="The training loop on a device",
    title="Bring this loop to a device",
    difficulty="medium",
    hints=(
        "Two changes bring a loop to a device: one before the loop, one inside it.",
        "model.to(device) once, before the optimizer; inputs and targets .to(device), in both loops.",
        "Before you evaluate: model.eval(). While you evaluate: with torch.inference_mode().",
        "correct += (model(inputs).argmax(dim=1) == targets).sum(), and at the end correct.item() / "
        "len(test_set).",
    ),
    rules=(*TRAINING_LOOP, evidence.shuffled, memory.fetched_once),
    last=IF_NOTHING_ELSE,
    asked_for=frozenset({"gradients-while-evaluating", "optimizer-before-move"}),
    probe=probe,
)
