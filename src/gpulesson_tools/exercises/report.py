"""The answer of a check, in words: as text, for a notebook, and for programs."""

from __future__ import annotations

import html
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpulesson_tools.exercises.catalogue import Exercise, exercises
from gpulesson_tools.exercises.contract import (
    Diagnosis,
    Facts,
    Mistake,
    Referee,
    Task,
    differ,
    was_stopped,
)
from gpulesson_tools.exercises.messages import explain, of_python
from gpulesson_tools.exercises.reading import Finding
from gpulesson_tools.exercises.words import ELSE, SEEN

_MARKS = {"done": ("\N{CHECK MARK}", "32"), "wrong": ("\N{BALLOT X}", "31")}
_LATER = "\N{MIDDLE DOT}", "90"


@dataclass(frozen=True)
class Answer:
    """What was found out about one function: ``state`` is done, wrong, empty, missing or later."""

    name: str
    does: str
    state: str
    findings: tuple[Finding, ...] = ()


def answers(tasks: Sequence[Task], facts: Mapping[str, Sequence[Any]], unseen: str = "") -> Iterator[Answer]:
    """Evaluate the facts of a learner's functions, and put the result into words.

    For each task `facts` has two: its facts, and those with right functions instead of the earlier ones,
    or None. A function that works with its own earlier ones alone, such as with their file, is evaluated with
    them; what was reported of these is then not reported again. `unseen` says why there are no facts of a
    task, if the process ended in it.
    """
    right, known = True, set[str]()
    for task in tasks:
        if task.name not in facts:
            found = (error({"error": unseen}),) if unseen else ()
            yield Answer(task.name, task.does, "wrong" if found else "later", found)
            unseen = ""
            continue
        own, alone = facts[task.name]
        referee = Referee(task)
        calls_wrong = alone is not None and not right and bool(differ(own, referee.facts()))
        apart = calls_wrong and alone.get("error") in (None, own.get("error"))  # else it needs its own
        answer = answer_to(task, referee, alone if apart else own)
        if calls_wrong:
            new = tuple(
                each
                for each in answer.findings
                if apart or each.kind == each.switch or each.switch not in known
            )
            if answer.state == "wrong" and new:
                answer = replace(answer, findings=new)
            elif answer.state in ("wrong", "done"):
                later = "right" if answer.state == "done" else "looked at again"
                answer = Answer(task.name, f"{task.does} ({later}, once what it calls is right)", "later")
        known |= {each.switch for each in answer.findings}
        right = right and answer.state == "done"
        yield answer


def answer_to(task: Task, referee: Referee, facts: Facts) -> Answer:
    """Put into words what a function does by itself."""
    if "missing" in facts:
        return Answer(task.name, task.does, "missing")
    found = referee.explain(facts)
    if found.empty and not facts.get("begun"):
        return Answer(task.name, task.does, "empty", (Finding("empty", task.begin),))
    if found.empty:
        says = f"It returns nothing, and changes nothing that the check sees. {task.begin}"
        return Answer(task.name, task.does, "wrong", (Finding("nothing", says),))
    findings = [_mistake(task, facts, found, *each) for each in found.mistakes.items()]
    for name in found.unexplained:
        if name == "error":
            findings.append(error(facts, expected=_expected(task, facts)))
            break
        if said := _seen(task, name, facts, found.expected):
            letter = said[0].upper() if said.partition(" ")[0].isalpha() else said[0]
            findings.append(Finding(name, letter + said[1:]))
    if found.unexplained and not findings:
        names = " and ".join(found.unexplained[:2])
        says = f"The check saw something else than it expected: {names}."
        findings.append(Finding(found.unexplained[0], says))
    if found.more:
        says = f"{findings[-1].says} The rest will be checked once this is right."
        findings[-1] = replace(findings[-1], says=says)
    return Answer(task.name, task.does, "wrong" if findings else "done", tuple(findings))


def _mistake(task: Task, facts: Facts, found: Diagnosis, mistake: Mistake, signs: Sequence[str]) -> Finding:
    """Say what is wrong, and after it the first of its signs, unless that says nearly the same."""
    raises = "error" in signs
    said = next((said for name in signs if (said := _seen(task, name, facts, found.expected))), "")
    if len({*said.split()} - {*mistake.says.split()}) < 0.5 * len(said.split()):
        said = ""
    if raises and len(found.mistakes) == 1:
        said = f"it stops with {facts['error']}"
    seen = f" Seen: {said}" if said else ""
    return Finding(mistake.kind, mistake.says + seen, mistake.fix, int(facts["line"]) if raises else 0)


def _seen(task: Task, name: str, facts: Facts, expected: Facts) -> str:
    """Say in words what a fact is, and what it should be; nothing where the task has no words for it."""
    words = {**SEEN, **task.words}.get(name)
    if words is None or name not in facts or name not in expected:
        return ""
    found, right = facts[name], expected[name]
    if isinstance(words, Mapping):
        words = words.get(found, words[ELSE]) if isinstance(found, str) else words[ELSE]
    if callable(words):
        return words(found, right)
    if words.endswith((".", "?")):
        return words.format(found=found, expected=right)
    return f"{words} is {_shown(found)}, expected {_shown(right)}."


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _expected(task: Task, facts: Facts) -> str:
    """Say what was expected instead of an exception."""
    called = re.match(r"TypeError: .*(takes|missing|got) .*argument", facts["error"]) and not facts["line"]
    if not called or task.value:
        return f"{task.name} {task.does}"
    names = inspect.signature(task.reference).parameters.values()
    given = ", ".join(each.name for each in names if each.kind == each.POSITIONAL_OR_KEYWORD)
    return f"the check calls {task.name}({given})"


def error(facts: Facts, stops: str = "It stops", expected: str = "") -> Finding:
    """Explain an exception; where nobody knows it, say what was seen and what was expected."""
    line, stands = int(facts.get("line", 0)), facts.get("stands", "")
    seen = f"\n{stands}" if "\n" in stands else f"\nSeen: {stands}." if stands else ""
    if was_stopped(facts):
        says = f"It did not come to an end: {facts['error'].partition(': ')[2]}.{seen}"
        return Finding("time", says, "Look for a loop that never ends, or for a wait.", line=line)
    says = f"{stops}: {facts['error']}{seen}"
    if found := explain(facts["error"]):
        fix = "The page “Error messages” shows a cause and a fix."
        return Finding("error", f"{says}\n{found.cause}", fix, line)
    cause = of_python(facts["error"], stands) or (f"Expected: {expected}." if expected else "")
    return Finding("error", f"{says}\n{cause}".rstrip(), line=line)


def with_slips(answer: Answer, slips: Sequence[Finding]) -> Answer:
    """Have an answer begin with the slips that were read in the file: what else was seen may come of them."""
    if not slips or answer.state in ("done", "later"):
        return answer
    stops = tuple(each for each in answer.findings if each.kind in ("error", "time"))
    return replace(answer, findings=(*stops, *slips))


@dataclass(frozen=True, repr=False)
class Report:
    """What a check found.

    Attributes
    ----------
    exercise : Exercise
    file : str
        The file's name; empty in a notebook.
    answers : tuple of Answer
        One for each function, in the order of the exercise.
    stopped : tuple of Finding
        Why no function could be called, where that is so.
    notes : tuple of str
        What else a learner should know.
    said : dict of str to int
        How often each finding has been shown, this time included; 1 where nothing is recorded.
    """

    exercise: Exercise
    file: str
    answers: tuple[Answer, ...]
    stopped: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    said: Mapping[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every function does what it has to do."""
        return not self.stopped and all(each.state == "done" for each in self.answers)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of what is wrong, such as ``"train zero=late"``."""
        if self.stopped:
            return tuple(finding.kind for finding in self.stopped)
        found = []
        for each in self.answers:
            kinds = ["missing"] if each.state == "missing" else [finding.kind for finding in each.findings]
            found += [f"{each.name} {kind}" for kind in kinds]
        return tuple(found)

    @property
    def verdict(self) -> str:
        """One sentence."""
        done = sum(each.state == "done" for each in self.answers)
        result = "passed" if self.passed else f"{done} of {len(self.answers)} done"
        return f"Exercise {self.exercise.number}, {self.exercise.title}: {result}."

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def text(self, *, colour: bool = False) -> str:
        """Return the answer as text, for a terminal that shows colours with them."""
        width = max(len(each.name) for each in self.answers)
        rows = []
        for each in self.answers:
            mark, code = _MARKS.get(each.state, _LATER)
            shown = f"\x1b[{code}m{mark}\x1b[0m" if colour else mark
            rows.append(f"  {shown} {each.name:<{width}}  {each.does}")
        parts = [self.verdict, "\n".join(rows)]
        for title, findings in self._sections():
            lines = [title]
            for finding in findings:
                first, *others = self._words(title, finding).split("\n")
                lines += [_filled(first, "- "), *(_filled(text, "  ") for text in others)]
            parts.append("\n".join(lines))
        return "\n\n".join([*parts, *(_filled(note, "") for note in self.notes), self._next()])

    def _repr_html_(self) -> str:
        def paragraph(text: str, tag: str = "") -> str:
            return f"<p><{tag}>{html.escape(text)}</{tag}></p>" if tag else f"<p>{html.escape(text)}</p>"

        rows = ""
        for each in self.answers:
            mark, _ = _MARKS.get(each.state, _LATER)
            does = f'<td style="text-align:left">{html.escape(each.does)}</td>'
            rows += f"<tr><td>{mark}</td><td><code>{html.escape(each.name)}</code></td>{does}</tr>"
        parts = paragraph(self.verdict, "strong") + f"<table>{rows}</table>"
        for title, findings in self._sections():
            items = (html.escape(self._words(title, each)).replace("\n", "<br>") for each in findings)
            parts += paragraph(title, "strong") + f"<ul>{''.join(f'<li>{each}</li>' for each in items)}</ul>"
        parts += "".join(map(paragraph, (*self.notes, self._next())))
        return f'<section aria-label="Check of exercise {self.exercise.number}">{parts}</section>'

    def _sections(self) -> list[tuple[str, tuple[Finding, ...]]]:
        """Return what to say: of all that is wrong; if nothing is, of the first that nobody has started."""
        here, number = self.file or "Your cell", self.exercise.number
        if self.stopped:
            return [(here, self.stopped)]
        if wrong := [(each.name, each.findings) for each in self.answers if each.state == "wrong"]:
            return wrong
        if all(each.state == "missing" and not each.findings for each in self.answers):
            says = (
                f"There is no {' or '.join(each.name for each in self.answers)} in it, and exercise {number} "
                "asks for that. If it is from an earlier form of the exercise, rename it, and start again: "
                f"python -m gpulesson start {number}"
            )
            return [(here, (Finding("missing", says),))]
        states = {"empty": "does nothing yet", "missing": "is not there yet"}
        todo = [each for each in self.answers if each.state in states]
        return [(f"{each.name} {states[each.state]}. That is next.", each.findings) for each in todo[:1]]

    def _says_fix(self, title: str, finding: Finding) -> bool:
        """Return whether to show the fix, if there is one: from the second time on."""
        return bool(finding.fix) and self.said.get(f"{title} {finding.kind}", 1) > 1

    def _words(self, title: str, finding: Finding) -> str:
        place = f"line {finding.line}: " if finding.line else ""
        fix = f"\nFix: {finding.fix}" if self._says_fix(title, finding) else ""
        return f"{place}{finding.says}{fix}"

    def _next(self) -> str:
        """Say what to do after this."""
        number = self.exercise.number
        if not self.passed:
            fixes = [(title, each) for title, findings in self._sections() for each in findings if each.fix]
            if not all(self._says_fix(*each) for each in fixes):
                return f"Check again, or with {'--hint' if self.file else 'hint=True'}, to be told more."
            return f"Then check again.{f' The solution is at the end of lesson {number}.' if fixes else ''}"
        later = [other for other in exercises() if other.number > number]
        if not later:
            return "That was the last exercise. Well done!"
        return f"Next: {later[0].title} (python -m gpulesson start {later[0].number})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "exercise": self.exercise.number,
            "file": self.file,
            "passed": self.passed,
            "verdict": self.verdict,
            "answers": [asdict(each) for each in self.answers],
            "stopped": [asdict(each) for each in self.stopped],
            "notes": list(self.notes),
        }


def _filled(text: str, begin: str) -> str:
    return textwrap.fill(text, 80, initial_indent=begin, subsequent_indent="  ", break_on_hyphens=False)
