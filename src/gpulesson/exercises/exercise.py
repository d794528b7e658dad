"""What an exercise is, and where they all are: the files ``e01_….py`` to ``e14_….py`` beside this one."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpulesson.exercises.findings import Finding, Source
from gpulesson.exercises.rules import accuracy, causes, devices, evidence, memory, models, steps
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

Rule = Callable[[Trace, Source], Iterator[Finding]]
"""Reads the trace of a run, and the learner's file; yields what is wrong."""
Probe = Callable[[Trace, "Observer", dict[str, Any]], None]
"""Called at the end of the program, in its process, with its variables; adds to ``trace.facts``."""

COMMON: tuple[Rule, ...] = (models.modes, memory.losses_kept, memory.item_every_step)
"""What is asked of every program."""
TRAINING_LOOP: tuple[Rule, ...] = (
    devices.trained_on,
    models.modes_always,
    memory.losses_kept,
    memory.item_every_step,
    memory.gradients_while_evaluating,
    causes.own_work,
    causes.leaves_the_loop,
    steps.one_optimizer,
    evidence.training_rows,
    accuracy.of_the_test_set,
    devices.written_down,
)
"""What is asked where a whole training is to be written, with its test."""
IF_NOTHING_ELSE: tuple[Rule, ...] = (steps.taken, evidence.enough, steps.loss_falls, evidence.learned)
"""What is asked of a training in which nothing else is wrong."""


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Attributes
    ----------
    name : str
        A short name, which begins with the two digits of its lesson.
    lesson : str
        The lesson's title.
    title : str
    difficulty : str
        ``"easy"``, ``"medium"`` or ``"hard"``.
    hints : tuple of str
        Each says a little more than the one before.
    rules : tuple of callable
        Asked when the program was not stopped by an error.
    last : tuple of callable
        Rules that are asked only when nothing else is wrong.
    probe : callable, optional
        Finds out what the rules need beside the trace of the run.
    function : str
        The learner's function that the probe calls, with inputs of the check's own. What is found out so
        counts before an error outside of it, of the file's own test for instance.
    demand : str
        What its own rule asks for, as a line of the checklist.
    demand_for : dict
        Of its own rule: a line of the checklist for some kinds of fault alone.
    ends_rule : set of str
        Kinds of fault after which its own rule looks no further: those lines are not checked yet.
    asked_for : set of str
        Kinds of advice that a numbered step asks for: here they keep the exercise from being passed.
    hint_for : dict
        The first hint that helps with a kind of fault, from 1; the first of all where none is named.
    without_gpu : bool
        The program is run a second time, on a machine without a GPU.
    processes : int
        The program is run in so many at once, as torchrun does. Its own rule is asked also after an error:
        it knows what processes say to one another.
    starts_empty : bool
        Files next to the program are not shown to it: it has to make them anew.
    """

    name: str
    lesson: str
    title: str
    difficulty: str
    hints: tuple[str, ...]
    rules: tuple[Rule, ...]
    last: tuple[Rule, ...] = ()
    probe: Probe | None = None
    function: str = ""
    demand: str = ""
    demand_for: Mapping[str, str] = field(default_factory=dict)
    ends_rule: frozenset[str] = frozenset()
    asked_for: frozenset[str] = frozenset()
    hint_for: Mapping[str, int] = field(default_factory=dict)
    without_gpu: bool = False
    processes: int = 1
    starts_empty: bool = False

    @property
    def number(self) -> str:
        """Two digits, those of its lesson."""
        return self.name[:2]

    @property
    def starter(self) -> str:
        """Name of the file that it begins with; no lesson and no solution has it."""
        return f"exercise_{self.number}.py"

    @property
    def solution(self) -> str:
        """Name of the file that solves it."""
        return f"solution_{self.number}.py"


@cache
def exercises() -> tuple[Exercise, ...]:
    """Return all exercises, in the order of the lessons."""
    found = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    names = sorted(name for name in found if re.match(r"e\d\d_", name))
    return tuple(import_module(f"gpulesson.exercises.{name}").EXERCISE for name in names)


def find(number: str | int) -> Exercise:
    """Return an exercise by its number.

    Parameters
    ----------
    number : str or int
        ``4``, ``"4"`` or ``"04"``.

    Raises
    ------
    ValueError
        There is no such exercise; the message says which there are.

    Examples
    --------
    >>> find(4).title
    'Bring this loop to a device'
    """
    wanted = str(number).strip().zfill(2)
    for exercise in exercises():
        if exercise.number == wanted:
            return exercise
    numbers = ", ".join(exercise.number for exercise in exercises())
    raise ValueError(f"there is no exercise {number}: the numbers are {numbers}")
