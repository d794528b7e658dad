"""A finding: one thing that is wrong, or could be better, where, and why."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpulesson.exercises.trace import Site


class Diagnosis(NamedTuple):
    """A kind of fault: the part of a finding that does not depend on the run.

    Attributes
    ----------
    kind : str
        Its name, for programs: ``"labels-on-cpu"``, …
    why : str
        Why it is a fault.
    remedy : str
        The next step.
    """

    kind: str
    why: str
    remedy: str


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: ``"1 step"``, ``"20 steps"``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def times(number: int) -> str:
    """Return how often: ``"once"``, ``"20 times"``."""
    return "once" if number == 1 else f"{number} times"


@dataclass(frozen=True)
class Finding:
    """One thing that the check found.

    Attributes
    ----------
    kind : str
        Its name, for programs: ``"labels-on-cpu"``, …
    severity : str
        ``"failure"``, or ``"advice"``, which does not keep an exercise from being passed.
    line : int
        Number of the line in the learner's file, from 1; 0 if there is none.
    text : str
        The line.
    what : str
        What happened.
    why : str
        Why it is a fault.
    remedy : str
        The next step.
    """

    kind: str
    severity: Literal["failure", "advice"]
    line: int
    text: str
    what: str
    why: str
    remedy: str

    @property
    def is_failure(self) -> bool:
        """Whether it keeps the exercise from being passed."""
        return self.severity == "failure"


@dataclass(frozen=True)
class Source:
    """The learner's file: its name, its lines and its folder."""

    name: str
    lines: Sequence[str]
    beside: str = ""
    """The folder whose modules it may import."""

    def line(self, number: int) -> str:
        """Return a line without its indentation, or an empty text."""
        return self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""

    def failure(self, diagnosis: Diagnosis, site: Site | int, what: str) -> Finding:
        """Make a finding that keeps the exercise from being passed."""
        return self._finding(diagnosis, "failure", site, what)

    def advice(self, diagnosis: Diagnosis, site: Site | int, what: str) -> Finding:
        """Make a finding that does not."""
        return self._finding(diagnosis, "advice", site, what)

    def _finding(
        self, diagnosis: Diagnosis, severity: Literal["failure", "advice"], site: Site | int, what: str
    ) -> Finding:
        number = site if isinstance(site, int) else site.line
        text = self.line(number)
        if isinstance(site, Site) and site.file and not site.file.endswith(self.name):
            text = f"{site.file}: {linecache.getline(site.file, number).strip()}"  # a module next to it
        return Finding(diagnosis.kind, severity, number, text, what, diagnosis.why, diagnosis.remedy)
