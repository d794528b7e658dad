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
_LINES: dict[Rule, dict[str, str]] = {
    devices.trained_on: {"optimizer-before-move": "the optimizer made after the move"}
}
"""Of some rules: a line of the checklist for some kinds of fault alone."""
_ALSO: dict[str, Rule] = {"logits-compared": models.answers}
"""Kinds of fault that speak of another rule's demand as well."""
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
    advised : bool
        It is met, but there is advice about it.
    """

    text: str
    met: bool | None
    advised: bool = False


def checklist(
    asked: Iterable[Rule],
    found: dict[Rule, list[Finding]],
    task: Exercise | None,
    *,
    trained: bool,
    shown: Iterable[Finding] | None = None,
    to_the_end: bool = True,
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
    to_the_end : bool
        Whether no error ended it; without a GPU, too, where the exercise asks for that.
    """
    shown = None if shown is None else list(shown)
    calls_failed = bool(task and task.function and any(_fails(found.get(rule, [])) for rule in _CALLED_FIRST))
    trains = task is None or steps.taken in task.last
    if task is not None and task.function:
        trains = memory.losses_kept in task.rules
    lines: dict[str, bool | None] = {}
    hidden: set[str] = set()
    advised: set[str] = set()

    def note(text: str, met: bool | None) -> None:
        before = lines.get(text, met)
        lines[text] = False if False in (before, met) else met if before is None else before

    for rule in asked:
        parts = _parts(rule, found.get(rule, []), task)
        ended = _looks_no_further(rule, found.get(rule, []), task)
        for place, (text, some) in enumerate(parts.items()):
            met = None if rule not in found else not _fails(some)
            if met and ended and place and not some:
                met = None
            if met and ((not trained and rule in _OF_TRAINING) or (rule not in DEMANDS and calls_failed)):
                met = None
            if met is False and shown is not None and not any(finding in shown for finding in some):
                met = None
                hidden.add(text)
            if met is None and rule in _OF_TRAINING and not trains:
                continue
            note(text, met)
            if met and some:
                advised.add(text)
                if shown is not None and not any(finding in shown for finding in some):
                    hidden.add(text)
    for some in found.values():
        for finding in some:
            if finding.is_failure and finding.kind in _ALSO and (shown is None or finding in shown):
                note(DEMANDS[_ALSO[finding.kind]], False)
    text = DEMANDS[endings.raised]
    if text in lines and not to_the_end:  # also where another rule knows why
        note(text, False)
    if task is not None and task.without_gpu and text in lines:
        note(text, to_the_end)
        lines = {f"{key}, with and without a GPU" if key == text else key: met for key, met in lines.items()}
    return tuple(
        Demand(text, None if met and text in hidden else met, bool(met) and text in advised - hidden)
        for text, met in lines.items()
    )


def _fails(findings: Iterable[Finding]) -> bool:
    return any(finding.is_failure for finding in findings)


def _parts(rule: Rule, findings: list[Finding], task: Exercise | None) -> dict[str, list[Finding]]:
    """Return the lines that a rule answers for, each with the findings that are about it."""
    main, lines = DEMANDS.get(rule, ""), _LINES.get(rule, {})
    if not main and task is not None:
        main, lines = task.demand, dict(task.demand_for)
    if not main:
        return {}
    parts: dict[str, list[Finding]] = {text: [] for text in (main, *lines.values())}
    for finding in findings:
        parts[lines.get(finding.kind, main)].append(finding)
    return parts


def _looks_no_further(rule: Rule, findings: list[Finding], task: Exercise | None) -> bool:
    """Tell whether a fault has kept a rule from looking at what its further lines ask for."""
    if rule in DEMANDS:
        return bool(findings)
    return task is not None and any(finding.kind in task.ends_rule for finding in findings)
