"""Contracts: what a learner's function has to do, and how the check finds out what it does instead.

A `Task` is one function to write. The check calls it with its own inputs and notes what can be seen of the
call: its *facts*. They are compared with the facts of a reference. The reference has *switches*: keyword
arguments, each of which makes one known mistake. Where the facts differ, the check looks for the switches
with which the reference has the learner's facts: these are the mistakes, however the function is written.
Nothing here reads a learner's code.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import math
import os
import re
import traceback
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gpulesson_tools.exercises import reading
from gpulesson_tools.exercises.words import Words

Facts = dict[str, Any]
"""What was seen of a call, by name: plain values, as JSON has them."""


@dataclass(frozen=True)
class Mistake:
    """One known mistake: a keyword of the reference, and its value; what is wrong, and what to do about it.

    Mistakes with one switch exclude each other. The advice does not show the code.
    """

    switch: str
    value: str
    says: str
    fix: str

    @property
    def kind(self) -> str:
        """Its name, for programs and tables: ``"zero=late"``."""
        return f"{self.switch}={self.value}"


@dataclass(frozen=True)
class Task:
    """One function to write, or one value to fill in; then `value` is its name.

    `does` is for the list of what is done, and `begin` for those who have an empty function before them. The
    reference has the name of the learner's function, takes what that takes, and the switches as keywords; of
    a value, it takes only those, and returns it. ``observe(function, facts)`` calls the learner's function,
    and puts what it sees into the dictionary, the first causes first; what is in there when an exception
    comes stays.

    The table has for a switch and its values what is wrong, and after "Fix:" what to do: ``{"zero=late,
    never": "The gradients are old. Fix: Reset them before backward()."}``; of two texts of one value the
    second counts. `only` are the mistakes of it that count here, in the order in which they are named:
    ``"zero=late; mean"``, where a switch stands for all of its values.

    `words` are those of the facts (see `words.Words`). Nearly every mistake changes the derived facts: they
    come last, and are not signs of one. Without `gpu`, `observe` says itself what there is; `apart`, it calls
    the function in separate processes (`runner.in_processes`).
    """

    does: str
    reference: Callable[..., Any]
    observe: Callable[[Any, Facts], None]
    table: Mapping[str, str]
    begin: str
    only: str = ""
    words: Mapping[str, Words] = field(default_factory=dict)
    derived: frozenset[str] = frozenset({"value", "weights"})
    value: str = ""
    gpu: bool = True
    apart: bool = False

    @cached_property
    def mistakes(self) -> tuple[Mistake, ...]:
        """Those of the table, in the order of `only`."""
        known: dict[tuple[str, str], Mistake] = {}
        for kinds, text in self.table.items():
            switch, _, values = kinds.partition("=")
            says, _, fix = " ".join(text.split()).partition(" Fix: ")
            known |= {(switch, value): Mistake(switch, value, says, fix) for value in values.split(", ")}
        found = tuple(known.values())
        names = self.only.split("; ") if self.only else []
        return tuple(e for name in names for e in found if name in (e.switch, e.kind)) if names else found

    @property
    def name(self) -> str:
        """What it is called in the learner's file."""
        return self.value or self.reference.__name__

    def with_mistakes(self, mistakes: Iterable[Mistake] = ()) -> Any:
        """Return the reference, as a learner would have written it who makes these mistakes."""
        switches = {mistake.switch: mistake.value for mistake in mistakes}
        if self.value:
            return self.reference(**switches)
        return lambda *args, **kwargs: self.reference(*args, **kwargs, **switches)


class Stopped(BaseException):
    """A limit of the check has stopped the learner's function; no ``except Exception`` keeps it."""


def was_stopped(facts: Facts) -> bool:
    """Return whether a limit of the check has ended what these facts are of."""
    return str(facts.get("error", "")).startswith(Stopped.__name__)


def on_gpu(task: Task) -> contextlib.AbstractContextManager[Any]:
    """Return the practice GPU, if the task has one; inside an open one it costs nothing."""
    from practice_gpu import practice_gpu

    return practice_gpu(force=True) if task.gpu else contextlib.nullcontext()


def seen(task: Task, written: Any, file: str = "") -> Facts:
    """Return the facts of what is written in a file; an exception is one of them, with its line."""
    import torch

    facts: Facts = {}
    state, drawn = torch.is_grad_enabled(), torch.random.get_rng_state()
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), on_gpu(task):  # noqa: PTH123
            try:
                task.observe(written, facts)
            except Exception as error:
                facts |= exception(error, file)  # while the practice GPU knows where each tensor is
            finally:
                facts["gradient mode"] = "as before" if torch.is_grad_enabled() == state else "changed"
                torch.set_grad_enabled(state)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        facts |= exception(error, file)
    finally:
        torch.random.set_rng_state(drawn)
    found: Facts = json.loads(json.dumps(facts, default=str))  # what another process would get
    return found


def facts_of(task: Task, written: Any, earlier: Iterable[Task], file: str = "") -> tuple[Facts, Facts | None]:
    """Return the facts of what a learner has written, and a second time with right functions before it.

    The second are those of the function when it calls the references instead of the learner's own
    earlier functions; None if it does not call them by their names.
    """
    if written is None or not (task.value or callable(written)):
        return {"missing": True}, None
    own, inner = seen(task, written, file), inspect.unwrap(written) if callable(written) else written
    code = getattr(inner, "__code__", None)
    own["begun"] = bool(code and called(code))
    right = {each.name: each.with_mistakes() for each in earlier if code and each.name in called(code)}
    if not right or was_stopped(own):
        return own, None
    space = inner.__globals__
    before = {name: space[name] for name in right if name in space}
    space.update(right)
    try:
        return own, seen(task, written, file)
    finally:
        space.update(before)


def called(code: types.CodeType) -> set[str]:
    """Return the global names that a function uses, also in its comprehensions and in functions inside it."""
    inner = [called(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*inner)


def exception(error: BaseException, file: str = "") -> Facts:
    """Return an exception as facts: type, first line of the message, what stands in the learner's line."""
    message, line, stands = re.sub(r"\x1b\[\d*m", "", str(error)), 0, ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == file:
            line, stands = number, reading.stands_in(frame, number)
    if isinstance(error, SyntaxError) and error.filename == file:
        message, line, stands = error.msg, error.lineno or 0, reading.marked(error)
    said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    said = re.sub(r":\s*\n\s*", ": ", said.strip()).partition("\n")[0]
    return {"error": said[:500], "line": line, "stands": stands}


def same(a: Any, b: Any) -> bool:
    """Return whether two facts are equal; floats may differ by rounding."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


def differ(a: Facts, b: Facts) -> list[str]:
    """Return the names of the facts that are not the same; its line, and whether a body is there, do
    not matter.
    """
    apart = "line", "stands", "begun"
    return [name for name in {**b, **a} if name not in apart and not _equal(a, b, name)]


def _equal(a: Facts, b: Facts, name: str) -> bool:
    if name == "error":  # sizes in a message depend on what else is wrong; which dimension does not
        sizes = r"(?<!dimension )(?<!\d)\d+"
        return re.sub(sizes, "", str(a.get(name))) == re.sub(sizes, "", str(b.get(name)))
    return name in a and name in b and same(a[name], b[name])


@dataclass(frozen=True)
class Diagnosis:
    """What was found out about one function.

    Each mistake stands with the names of the facts in which it shows. `unexplained` is what else is wrong:
    the first fact that no mistake explains; of a table, all of them. With `more`, other facts are wrong, too,
    or were not looked at. An `empty` function does what one without a body does. `expected` are the facts of
    a right one.
    """

    expected: Facts
    mistakes: Mapping[Mistake, list[str]] = field(default_factory=dict)
    unexplained: tuple[str, ...] = ()
    more: bool = False
    empty: bool = False

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.mistakes or self.unexplained or self.empty)


class Referee:
    """Knows the facts of the reference with any set of switches, and finds a set for a learner's facts."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._known: dict[tuple[Mistake, ...], Facts] = {}

    def facts(self, mistakes: tuple[Mistake, ...] = ()) -> Facts:
        """Return the facts of the reference with these mistakes."""
        if mistakes not in self._known:
            self._known[mistakes] = seen(self.task, self.task.with_mistakes(mistakes))
        return self._known[mistakes]

    def explain(self, facts: Facts) -> Diagnosis:
        """Find the mistakes that lead to these facts.

        One or two that lead to all of them. If there are none, the facts are taken in their order, which is
        that of causes, or the error alone: each is put down to the only mistake whose every sign is there, up
        to the first that has none. That is reported as it was seen, and the rest may be its consequence.
        """
        with on_gpu(self.task):  # once, and not for each of its facts
            return self._explain(facts)

    def _explain(self, facts: Facts) -> Diagnosis:
        expected, derived = self.facts(), self.task.derived
        wrong = differ(facts, expected)
        if not wrong:
            return Diagnosis(expected)
        if not self.task.value and not differ(facts, self._of_nothing):
            return Diagnosis(expected, empty=True)
        rest = set() if "error" in facts else {*expected} - {*facts}  # what was not looked at
        for each in self.task.mistakes:
            if not differ(facts, self.facts((each,))):
                return Diagnosis(expected, {each: wrong}, more=bool(rest))
        changes = {each: differ(self.facts((each,)), expected) for each in self.task.mistakes}
        possible = {each: set(names) for each, names in changes.items() if {*names} <= {*wrong}}
        pairs = (
            (a, b)
            for a, b in itertools.combinations(possible, 2)  # a result alone fits some pair by chance
            if a.switch != b.switch and (possible[a] | possible[b]) - derived
            if "error" not in facts
            or "error" in possible[a] | possible[b]  # two that pass alone do not raise
        )
        for chosen in pairs:
            if not differ(facts, self.facts(chosen)):
                found = {each: changes[each] for each in chosen}
                return Diagnosis(expected, found, more=bool(rest))

        signs = {each: names - derived for each, names in possible.items()}
        shown = [e for e in possible if signs[e] and signs[e].isdisjoint(differ(facts, self.facts((e,))))]
        # of two that exclude each other, each with its own signs, neither is there
        certain = [a for a in shown if all(a.switch != b.switch or signs[a] & signs[b] for b in shown)]
        found, unexplained = dict[Mistake, list[str]](), list[str]()
        there = ["error"] if "error" in facts else [name for name in wrong if name in facts] or wrong[:1]
        there.sort(key=derived.__contains__)
        for place, name in enumerate(there, 1):
            if any(name in names for names in found.values()):
                continue
            causes = [each for each in certain if name in possible[each]]
            if len(causes) == 1:
                found[causes[0]] = changes[causes[0]]
                continue
            unexplained.append(name)
            if not self.task.value:  # of a table, each entry stands for itself
                rest |= {*there[place:]} - derived
                break
        return Diagnosis(expected, found, tuple(unexplained), bool(rest.difference(*found.values())))

    @cached_property
    def _of_nothing(self) -> Facts:
        return seen(self.task, lambda *args, **kwargs: None)


def kind_of(value: Any) -> str:
    """Say what a value is, for a fact: ``"a number"``, ``"a tensor on cuda:0"``, ``"None"``, ``"a list"``.

    Python's numbers and NumPy's are both ``"a number"``; a truth value is none.
    """
    import numbers

    import torch

    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        graph = " with its graph" if value.requires_grad else ""
        return f"a tensor on {value.device}{graph}"
    if type(value) is not bool and isinstance(value, numbers.Number):
        return "a number"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return f"{value.__name__} itself, without its brackets ()"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def number_of(value: Any) -> float | None:
    """Return a number or a tensor of one element as a float, and anything else as None."""
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        return None
