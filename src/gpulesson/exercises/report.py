"""The answer of a check: as text, for a notebook, and for programs."""

from __future__ import annotations

import html
import re
import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from gpulesson.exercises.demands import Demand
from gpulesson.exercises.exercise import Exercise, exercises
from gpulesson.exercises.findings import Finding, plural

_WIDTH = 80
_MARKS = {True: ("\N{CHECK MARK}", "green"), False: ("\N{BALLOT X}", "red"), None: ("\N{MIDDLE DOT}", "grey")}
_ADVISED = "!", "yellow"
_COLOURS = {"green": "32", "red": "31", "grey": "90", "yellow": "33"}
_OUTPUT_LINES = 12
_LONGEST = 600
"""So much of a line of output is shown."""


@dataclass(frozen=True, repr=False)
class Report:
    """What a check found.

    Attributes
    ----------
    exercise : Exercise or None
        None: the program was checked as a training loop of the learner's own.
    file : str
        The file's name.
    findings : tuple of Finding
        Failures first, then advice.
    demands : tuple of Demand
        The checklist; empty if the program did not run.
    device : str
        What the program computed on; empty if it did not run.
    simulated : bool
        Whether that was the practice GPU.
    facts : tuple of str
        What it did, right or wrong.
    trained : bool
        Whether an optimizer took a step.
    output : str
        What it printed, the middle left out if there was much.
    """

    exercise: Exercise | None
    file: str
    findings: tuple[Finding, ...]
    demands: tuple[Demand, ...] = ()
    device: str = ""
    simulated: bool = True
    facts: tuple[str, ...] = ()
    trained: bool = False
    output: str = ""

    @property
    def failures(self) -> tuple[Finding, ...]:
        """What has to be fixed."""
        return tuple(finding for finding in self.findings if finding.is_failure)

    @property
    def passed(self) -> bool:
        """Whether nothing but advice was found."""
        return not self.failures

    @property
    def verdict(self) -> str:
        """One sentence."""
        about = self.file
        if self.exercise is not None:
            about = f"Exercise {self.exercise.number}, {self.exercise.title.rstrip('?.')}"
        failures = len(self.failures)
        if not failures:
            if self.exercise is not None:
                return f"{about}: passed."
            return f"{about}: nothing to fix{'' if self.trained else ', but no training step was seen'}."
        return f"{about}: not yet. {plural(failures, 'thing')} to fix."

    def __str__(self) -> str:
        return self.text()

    def text(self, *, colour: bool = False) -> str:
        """Return the answer as text, for a terminal that shows colours with them."""
        paint = _painted if colour else _plain
        parts = [paint(_filled(self.verdict), "green" if self.passed else "red")]
        if self.demands:
            lines = [f"  {paint(*_mark(line))} {line.text}" for line in self._looked_at()]
            lines += [paint(f"  {text}", "grey") for text in self._legend()]
            parts.append("\n".join(lines))
        parts += [self._text(finding) for finding in self.findings]
        if self.facts:
            seen = [f"What it did on the device “{self.device}”:", *(f"  - {fact}" for fact in self.facts)]
            parts.append("\n".join(map(_filled, seen)))
        if not self.passed and (tail := self._tail()):
            parts.append("\n".join(["The end of its output:", *(f"  | {line}" for line in tail)]))
        if self.exercise is not None:
            parts.append(self._next(self.exercise))
        return "\n\n".join(parts)

    def _looked_at(self) -> list[Demand]:
        """Return the checklist; of an exercise that is passed without what this program had no use for."""
        return [line for line in self.demands if line.met is not None or not self.passed]

    def _legend(self) -> list[str]:
        """Explain the marks that do not explain themselves."""
        lines = self._looked_at()
        said = [(_ADVISED, "see the advice", any(line.advised for line in lines))]
        said.append((_MARKS[None], "not checked yet", any(line.met is None for line in lines)))
        return [f"({mark[0]} {words})" for mark, words, used in said if used]

    def _next(self, exercise: Exercise) -> str:
        """Say what to do after this."""
        if not self.passed:
            return f"For a hint: python -m gpulesson check {exercise.number} {self.file} --hint"
        later = [other for other in exercises() if other.number > exercise.number]
        if not later:
            return "That was the last exercise. Well done!"
        return f"Next: {later[0].title} (python -m gpulesson start {later[0].number})"

    __repr__ = __str__

    def _text(self, finding: Finding) -> str:
        place = f":{finding.line}" if finding.line and not finding.cell else f", {finding.place}".rstrip(", ")
        head = f"{self.file}{place}  {'advice' if finding.severity == 'advice' else 'to fix'}: {finding.kind}"
        lines = [head, f"    {finding.text}"] if finding.text else [head]
        for label, text in (("", finding.what), ("Why: ", finding.why), ("Next: ", finding.remedy)):
            lines.append(_filled(label + text, "  "))
        return "\n".join(lines)

    def _tail(self) -> list[str]:
        """Return the end of the output: its lines as they are, what is longer than the page on several."""
        lines = []
        for line in self.output.rstrip().splitlines()[-_OUTPUT_LINES:]:
            if len(line) <= _WIDTH - 4:
                lines.append(line)
            elif not line.strip(" ~^"):  # marks below a line of code
                lines.append(line[: _WIDTH - 4])
            elif path := re.match(r'( *File ")(.+)(".*)', line):  # its end says more
                room = max(10, _WIDTH - 5 - len(path[1]) - len(path[3]))
                lines.append(f"{path[1]}…{path[2][-room:]}{path[3]}")
            else:
                begin = re.match(r"\s*", line)[0][:20]  # type: ignore[index]
                lines += textwrap.wrap(line[:_LONGEST], _WIDTH - 4, subsequent_indent=begin)
        return lines[-_OUTPUT_LINES - 6 :]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON.

        Returns
        -------
        dict
            ``exercise`` (number or None), ``file``, ``passed``, ``verdict``, ``demands``, ``findings``,
            ``device``, ``simulated``, ``facts``, ``output``.
        """
        return {
            "exercise": None if self.exercise is None else self.exercise.number,
            "file": self.file,
            "passed": self.passed,
            "verdict": self.verdict,
            "demands": [asdict(demand) for demand in self.demands],
            "findings": [asdict(finding) for finding in self.findings],
            "device": self.device,
            "simulated": self.simulated,
            "facts": list(self.facts),
            "output": self.output,
        }

    def _repr_html_(self) -> str:
        parts = [f"<p><strong>{_escape(self.verdict)}</strong></p>"]
        if self.demands:
            lines = [f"{_mark(line)[0]} {_escape(line.text)}" for line in self._looked_at()]
            lines += self._legend()
            parts.append(f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>")
        if self.findings:
            parts.append(f"<ol>{''.join(map(self._item, self.findings))}</ol>")
        if self.facts:
            facts = "".join(f"<li>{_escape(fact)}</li>" for fact in self.facts)
            parts.append(f"<p>What it did on the device “{_escape(self.device)}”:</p><ul>{facts}</ul>")
        if self.output.strip():
            printed = _escape("\n".join(self.output.rstrip().splitlines()[-_OUTPUT_LINES:]))
            parts.append(f"<details><summary>The end of its output</summary><pre>{printed}</pre></details>")
        return f'<section aria-label="Check of {_escape(self.file)}">{"".join(parts)}</section>'

    def _item(self, finding: Finding) -> str:
        place = f"{self.file}, {finding.place}".rstrip(", ")
        mark = "Advice" if finding.severity == "advice" else "To fix"
        code = f"<pre><code>{_escape(finding.text)}</code></pre>" if finding.text else ""
        return (
            f"<li><p><strong>{mark}: {_escape(finding.kind)}</strong> ({_escape(place)})</p>{code}"
            f"<p>{_escape(finding.what)} {_escape(finding.why)}</p>"
            f"<p><strong>Next:</strong> {_escape(finding.remedy)}</p></li>"
        )


def _mark(line: Demand) -> tuple[str, str]:
    return _ADVISED if line.advised else _MARKS[line.met]


def _escape(text: str) -> str:
    return html.escape(text)


def _painted(text: str, colour: str) -> str:
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def _plain(text: str, colour: str) -> str:
    return text


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
