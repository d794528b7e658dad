"""What is promised, row by row, and the file of the figures, ``docs/trust.json``."""

from __future__ import annotations

import json
import platform
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock

FIGURES = Path(__file__).parents[2] / "docs" / "trust.json"


@dataclass(frozen=True)
class Row:
    """One promise: how many tries it takes at least to call it tested, and what one of them is."""

    least: int
    what: str
    elsewhere: bool = False
    """It needs what not every machine has; the page may say that it was not run."""


ROWS = {
    "killed_each_epoch": Row(200, "runs that save after each epoch, killed at a random moment and resumed"),
    "killed_each_step": Row(200, "runs that save after each step, killed at a random moment and resumed"),
    "stopped_each_step": Row(
        100, "runs that a cluster's signal stops at a random moment, and that are resumed"
    ),
    "signals_in_a_save": Row(120, "SIGINT and SIGTERM at each system call of a save"),
    "faults_in_a_save": Row(150, "errors of the system at each system call of a save"),
    "faults_in_latest": Row(50, "errors of the system at each system call of a search for the latest"),
    "faults_in_a_resume": Row(50, "errors of the system at each system call of a resume"),
    "flipped_bits": Row(5000, "checkpoints with one bit flipped"),
    "truncated_files": Row(800, "checkpoints cut short, at each two-hundredth of their length"),
    "newest_damaged": Row(200, "folders of three checkpoints whose newest is cut short"),
    "clock_steps": Row(200, "runs during which the clock was set, forwards and backwards"),
    "two_writers": Row(200, "reads of a file that two processes write at once"),
    "full_disk": Row(100, "saves onto a disk that has too little room, or just enough"),
    "hostile_checkpoints": Row(
        150, "checkpoints made to run code or to exhaust the machine, with a right digest"
    ),
    "mutated_files": Row(
        1000, "files of each kind, with a right digest, that have one value, key or container of another kind"
    ),
    "fuzzed_checkpoints": Row(2500, "checkpoints, with a right digest, changed at random"),
    "fuzzed_recordings": Row(1500, "recordings of lessons, changed at random"),
    "fuzzed_progress": Row(1500, "files of a learner's progress, changed at random"),
    "wrong_calls": Row(90, "wrong calls that a learner makes"),
    "cpu_to_practice": Row(40, "checkpoints of the CPU, resumed on the practice GPU, and the other way"),
    "cpu_to_gpu": Row(40, "checkpoints of the CPU, resumed on a real GPU, and the other way", elsewhere=True),
    "other_pytorch": Row(
        40, "checkpoints of the oldest supported PyTorch, resumed by this one, and back", True
    ),
    "lessons_again": Row(48, "further runs of a lesson, compared with its first"),
}
"""By the name of the test, without its ``test_``."""


@dataclass
class Tally:
    """Counts the tries of one row.

    Attributes
    ----------
    scale : float
        The share of the tries to make: 1 for the promise, less for a quick look.
    """

    row: Row
    scale: float
    done: int = 0
    of: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_run: str = ""

    def some(self, number: int) -> int:
        """Scale a number of tries; one remains."""
        return max(1, round(number * self.scale))

    def pick(self, cases: list[Any]) -> list[Any]:
        """Scale a list of cases: some of them, spread evenly."""
        number = self.some(len(cases))
        return [cases[index * len(cases) // number] for index in range(number)]

    def count(self, problem: object) -> None:
        """Count a try: what went wrong, or nothing."""
        self.of += 1
        if problem:
            self.problems.append(str(problem))
        else:
            self.done += 1

    @property
    def least(self) -> int:
        return max(1, int(self.row.least * self.scale)) if self.scale < 1 else self.row.least

    @property
    def kept(self) -> bool:
        return self.of >= self.least and self.done == self.of and not self.not_run

    def __str__(self) -> str:
        if self.not_run:
            return f"not run: {self.not_run}"
        lines = [f"{self.done} of {self.of} (at least {self.least}): {self.row.what}", *self.notes]
        return "\n  ".join([*lines, *self.problems[:8]])


def write_row(file: Path, name: str, tally: Tally, about: dict[str, Any] | None = None) -> None:
    """Put one row into the file, beside those of the same PyTorch; a row of no test leaves it.

    What was kept on another machine stays where it cannot be run: its notes name that machine.
    """
    about = about or {
        "torch": version("torch"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    row = {
        "what": tally.row.what,
        "done": tally.done,
        "of": tally.of,
        "least": tally.least if tally.scale >= 1 else f"{tally.scale:g} of {tally.row.least}",
        "kept": tally.kept,
        "notes": tally.notes,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    } | ({"not run": tally.not_run} if tally.not_run else {})
    with FileLock(Path(tempfile.gettempdir(), "gpulesson-trust.lock")):  # rows may be tested side by side
        found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        here = found.get("about") == about
        rows = {
            other: old
            for other, old in found.get("rows", {}).items()
            if here or (other in ROWS and ROWS[other].elsewhere and old["kept"])
        }
        if not (tally.not_run and rows.get(name, {}).get("kept")):
            rows[name] = row
        ordered = {name: rows[name] for name in ROWS if name in rows}
        text = json.dumps({"about": about, "rows": ordered}, indent=1, ensure_ascii=False)
        part = file.with_suffix(".part")
        part.write_text(f"{text}\n", encoding="utf-8")
        part.replace(file)
