"""What each rule asks for, in a few words: the checklist above a check's answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpulesson.exercises.exercise import TRAINING_LOOP, Exercise, Rule
from gpulesson.exercises.findings import Finding
from gpulesson.exercises.rules import (
    accuracy,
    called,
    causes,
    devices,
    endings,
    evidence,
    memory,
    models,
    steps,
)

DEMANDS: dict[Rule, str] = {
    endings.raised: "it runs to its end",
    endings.exited: "it runs to its end",
    causes.not_called: "methods are called, with parentheses",
    causes.value_not_called: "methods are called, with parentheses",
    causes.missing_return: "functions return what they compute",
    causes.split_order: "it runs to its end",
    models.answers: "the model's scores are used correctly",
    called.calls: "the check can call your function",
    steps.order: "zero_grad, backward and step in order",
    devices.trained_on: "model, batches and loss on the device",
    devices.written_down: "the device is chosen, not written down",
    models.modes: "train() and eval() where they belong",
    models.modes_always: "train() and eval() where they belong",
    memory.losses_kept: "losses kept without their history",
    memory.item_every_step: "no value fetched from the GPU in every step",
    memory.gradients_while_evaluating: "no gradients while evaluating",
    accuracy.of_the_test_set: "the accuracy is the model's, on the test part",
    causes.own_work: "the file does its own work",
    causes.leaves_the_loop: "the loops run to their end",
    evidence.training_rows: "trained on the right rows, with their labels",
    evidence.enough: "enough steps, and weights that change",
    evidence.learned: "an accuracy far above guessing",
    evidence.shuffled: "rows shuffled in every epoch",
    memory.fetched_once: "the number of right answers fetched once",
    evidence.seeded: "a seed set before the model is made",
    steps.one_optimizer: "one optimizer for all epochs",
    steps.taken: "the optimizer takes steps",
    steps.loss_falls: "the loss falls",
}
"""A rule of one exercise alone asks for what the exercise's ``demand`` says."""


_OF_TRAINING = (
    steps.order,
    steps.loss_falls,
    models.answers,
    models.modes,
    evidence.enough,
    evidence.learned,
    *TRAINING_LOOP,
)
_CALLED_FIRST = (called.calls, steps.order)
"""What an exercise's own rule needs, where it calls the learner's function."""


@dataclass(frozen=True)
class Demand:
    """One line of the checklist.

    Attributes
    ----------
    text : str
        What is asked for.
    met : bool or None
        None: it was not looked at, because something else has to be fixed first.
    """

    text: str
    met: bool | None


def checklist(
    asked: Iterable[Rule],
    found: dict[Rule, list[Finding]],
    task: Exercise | None,
    *,
    trained: bool,
    shown: Iterable[Finding] | None = None,
) -> tuple[Demand, ...]:
    """Say for each demand whether it is met.

    Parameters
    ----------
    asked : iterable of callable
        All rules, in order.
    found : dict of callable to list of Finding
        What those rules found that were applied.
    task : Exercise, optional
        None: a training loop of the learner's own.
    trained : bool
        Whether an optimizer took a step: without one, nothing is said of how.
    shown : iterable of Finding, optional
        Those that the report has, by default all. A demand whose findings only follow from others counts as
        not looked at.
    """
    shown = None if shown is None else list(shown)
    failed = {rule for rule, some in found.items() if any(finding.is_failure for finding in some)}
    calls_failed = bool(task and task.function and failed & set(_CALLED_FIRST))
    lines: dict[str, bool | None] = {}
    hidden: set[str] = set()
    for rule in asked:
        text = DEMANDS.get(rule) or (task.demand if task else "")
        if not text:
            continue
        met = None if rule not in found else rule not in failed
        if met and ((not trained and rule in _OF_TRAINING) or (rule not in DEMANDS and calls_failed)):
            met = None
        if met is False and shown is not None and not any(finding in shown for finding in found[rule]):
            met = None
            hidden.add(text)
        before = lines.get(text, met)
        lines[text] = False if False in (before, met) else met if before is None else before
    return tuple(Demand(text, None if met and text in hidden else met) for text, met in lines.items())
