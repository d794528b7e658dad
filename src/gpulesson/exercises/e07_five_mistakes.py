"""Exercise 7: five mistakes in one script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpulesson.exercises.exercise import IF_NOTHING_ELSE, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import accuracy, causes, devices, evidence, memory, models, source_text
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

LOSSES_DROPPED = Diagnosis(
    "losses-dropped",
    "The script measures how much memory the list of losses holds, so the list must stay.",
    "Append every held-out loss, without its history: losses.append(held_out.detach()).",
)
EVALUATED_ONCE = Diagnosis(
    "evaluated-once",
    "Two equal accuracies show that dropout is off and nothing is random any more.",
    "Put the loop back: for _ in range(2):",
)


def as_given(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say which part of the script has not run: the losses that are kept, or the two evaluations."""
    samples = trace.facts["test_samples"]
    after = sum(batch.test for batch in trace.evaluated if batch.step == trace.steps)
    before = sum(batch.test for batch in trace.evaluated if batch.step < trace.steps)
    if trace.steps >= trace.facts["passes"] and before < 30 * samples:
        line = source_text.first_line(source.lines, "losses")
        what = (
            f"The held-out points were evaluated in {before // samples} of 40 epochs; expected all of them."
        )
        yield source.failure(LOSSES_DROPPED, line, what)
    elif 0 < after < 3 * samples:  # the loop's last evaluation comes after the last step, too
        line = source_text.first_line(source.lines, r"print\(.*accuracy")
        what = (
            "After the loop the model was "
            f"{'evaluated once' if after >= 2 * samples else 'not evaluated'}; expected twice."
        )
        yield source.failure(EVALUATED_ONCE, line, what)


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Compare with the points that the starter draws."""
    import torch

    with observer.reader.unnoticed():
        generator = torch.Generator().manual_seed(0)  # draws what torch.manual_seed(0) would
        centres = 3 * torch.randn(3, 20, generator=generator)
        labels = torch.randint(3, (900,), generator=generator)
        points = centres[labels] + 3 * torch.randn(900, 20, generator=generator)
    parts = {"train": (points[:600], labels[:600]), "test": (points[600:], labels[600:])}
    observer.compare_samples(trace, parts, passes=100, accuracy=0.8)


EXERCISE = Exercise(
    name="07_five_mistakes",
    lesson="The common mistakes",
    title="Five mistakes in one script",
    demand="the losses kept, and two evaluations, as given",
    difficulty="hard",
    hints=(
        "Three stop it: look at the loss's weights, at the labels, and at NumPy.",
        "The two silent ones: what is appended to losses, and in which mode the model is evaluated.",
        "nn.CrossEntropyLoss(…).to(device); targets.to(device); held_out.detach(); model.eval(); "
        "predictions.cpu().numpy().",
    ),
    rules=(
        devices.trained_on,
        models.modes_always,
        memory.losses_kept,
        memory.item_every_step,
        causes.own_work,
        causes.leaves_the_loop,
        evidence.training_rows,
        accuracy.of_the_test_set,
        as_given,
    ),
    last=IF_NOTHING_ELSE,
    probe=probe,
)
