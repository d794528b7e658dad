"""A finding: one thing that is wrong, or could be better, where, and why."""

from __future__ import annotations

import bisect
import linecache
import re
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
        Number of the line in the learner's file, or in the notebook's cell, from 1; 0 if there is none.
    text : str
        The line.
    what : str
        What happened.
    why : str
        Why it is a fault.
    remedy : str
        The next step.
    cell : int
        Of a notebook: number of the cell among those with code, from 1; 0 in a file.
    """

    kind: str
    severity: Literal["failure", "advice"]
    line: int
    text: str
    what: str
    why: str
    remedy: str
    cell: int = 0

    @property
    def is_failure(self) -> bool:
        """Whether it keeps the exercise from being passed."""
        return self.severity == "failure"

    @property
    def place(self) -> str:
        """The line in words, with its cell; an empty text if there is none."""
        return _in_words(self.cell, self.line) if self.line else ""


@dataclass(frozen=True)
class Source:
    """The learner's file: its name, its lines and its folder.

    Of a notebook the name and the lines are those of the program that its cells make.
    """

    name: str
    lines: Sequence[str]
    beside: str = ""
    """The folder whose modules it may import."""
    cells: Sequence[int] = ()
    """Of a notebook: the number of the line before each cell's first."""

    def line(self, number: int) -> str:
        """Return a line without its indentation, or an empty text."""
        return self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""

    def place(self, number: int) -> tuple[int, int]:
        """Return the cell that a line stands in, 0 in a file, and the line's number there."""
        cell = bisect.bisect_left(self.cells, number)
        return cell, number - self.cells[cell - 1] if cell else number

    def where(self, number: int) -> str:
        """Return a line's number in words: "line 12", or "cell 4, line 3"."""
        return _in_words(*self.place(number))

    def renumbered(self, text: str) -> str:
        """Replace each "line 12" in a message of Python's."""
        return re.sub(r"\bline (\d+)", lambda found: self.where(int(found[1])), text)

    def in_cells(self, text: str) -> str:
        """Replace the places in Python's tracebacks and warnings by those in the notebook."""
        if not self.cells:
            return text
        text = re.sub(
            r"(?m)^(Syntax|Indentation|Tab)Error: .*", lambda found: self.renumbered(found[0]), text
        )
        shown = self.name.removesuffix(".py") + ".ipynb"
        place = re.compile(rf'\b{re.escape(self.name)}(?:(", )line |:)(\d+)')
        return place.sub(lambda found: f"{shown}{found[1] or ', '}{self.where(int(found[2]))}", text)

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
        cell, line = self.place(number)
        if isinstance(site, Site) and site.file and not site.file.endswith(self.name):
            text = f"{site.file}: {linecache.getline(site.file, number).strip()}"  # a module next to it
            cell, line = 0, number
        return Finding(diagnosis.kind, severity, line, text, what, diagnosis.why, diagnosis.remedy, cell)


def _in_words(cell: int, line: int) -> str:
    return f"cell {cell}, line {line}" if cell else f"line {line}"
