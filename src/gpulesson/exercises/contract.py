"""Contracts: what a learner's function has to do, and how the check finds out what it does instead.

A `Task` is one function to write. The check calls it with inputs of its own and notes what can be seen of the
call: its *facts*. They are compared with the facts of a reference. The reference has *switches*: keyword
arguments, each of which makes one known mistake. Where the facts differ, the check looks for the smallest set
of switches with which the reference has the learner's facts: these are the mistakes, however the function is
written. Nothing here reads a learner's code.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import math
import os
import re
import textwrap
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gpulesson.exercises import reading

Facts = dict[str, Any]
"""What was seen of a call, by name: plain values, as JSON has them."""


@dataclass(frozen=True)
class Mistake:
    """One known mistake.

    Attributes
    ----------
    switch : str
        Keyword argument of the reference.
    value : str
        Its value for this mistake. Mistakes with one switch exclude each other.
    says : str
        What is wrong, and why it matters: one or two sentences.
    fix : str
        What to do about it, without the code.
    line : str
        The code to write.
    hides : set of str
        Other switches, or mistakes ("zero=late"), that cannot be seen while this one is made: they are named
        when it is gone. What raises an exception hides all that comes after it, and need not say so.
    """

    switch: str
    value: str
    says: str
    fix: str
    line: str
    hides: frozenset[str] = frozenset()

    @property
    def kind(self) -> str:
        """Its name, for programs and tables: ``"zero=late"``."""
        return f"{self.switch}={self.value}"


def mistakes(text: str, common: Iterable[Mistake] = ()) -> tuple[Mistake, ...]:
    """Read mistakes from a text, one a paragraph.

    The first line is the switch and its value, and may say what the mistake hides. Then comes what is wrong,
    after "Fix:" what to do, and indented the code to write; without it, the code is that of the paragraph
    before. A paragraph of first lines alone takes the rest from `common`; there a line may have several, such
    as all of a switch, with "; " between them.

    Examples
    --------
    >>> mistakes('''
    ... zero=late (hides step, mode=eval)
    ... The gradients were set back too late.
    ... Fix: Set them back before backward().
    ...     optimizer.zero_grad()
    ... ''')[0].line
    'optimizer.zero_grad()'
    """
    known, found, line = {mistake.kind: mistake for mistake in common}, [], ""
    for paragraph in text.strip("\n").split("\n\n"):
        heads = re.split("; |\n", paragraph) if "\nFix: " not in paragraph else paragraph.split("\n")[:1]
        body = re.fullmatch(r".+\n((?:.+\n)+?)Fix: ((?:\S.*\n)+)((?: {4}.*\n)*)", f"{paragraph}\n")
        if body is not None:
            line = textwrap.dedent(body[3]).rstrip() or line
        for head in heads:
            parts = re.fullmatch(r"(\w+)=(.+?)(?: \(hides (.+)\))?", head)
            if parts is None or (not line if body else head.partition(" (")[0] not in known):
                raise ValueError(
                    f"not a mistake: switch=value, what is wrong, Fix: …, code; found:\n{paragraph}"
                )
            switch, value, hides = parts.groups()
            if body is None:
                mistake = known[f"{switch}={value}"]
                line = mistake.line
            else:
                says, fix = (" ".join(part.split()) for part in body.groups()[:2])
                mistake = Mistake(switch, value, says, fix, line)
            found.append(replace(mistake, hides=frozenset(hides.split(", ") if hides else ())))
    return tuple(found)


@dataclass(frozen=True)
class Task:
    """One function to write, or one value to fill in.

    Attributes
    ----------
    does : str
        What it has to do, in a few words, for the list of what is done.
    reference : callable
        Has the name of the learner's function, takes what that takes, and the switches as keywords. Of a
        value: it takes only the switches, and returns the value.
    observe : callable
        ``observe(function, facts)`` calls the learner's function, and puts what it sees into the dictionary,
        the first causes first. What is in there when an exception comes stays.
    mistakes : tuple of Mistake
        In the order in which they are named.
    begin : str
        Where to begin, for those who have an empty function before them.
    words : mapping
        Of a fact: how a message names it ("the mean loss"), a whole sentence, or a function of what was found
        and what was expected that returns a sentence.
    derived : set of str
        Facts that nearly every mistake changes, by default the result and the weights. Where no set of
        mistakes has all of the facts, one with all the others is named.
    value : str
        The name of a value, such as a number or a table, that is to be filled in; empty for a function.
    gpu : bool
        The practice GPU is there. False: `observe` says itself what there is.
    apart : bool
        `observe` calls the function in processes of their own (`runner.apart`).
    """

    does: str
    reference: Callable[..., Any]
    observe: Callable[[Any, Facts], None]
    mistakes: tuple[Mistake, ...]
    begin: str
    words: Mapping[str, str | Callable[[Any, Any], str]] = field(default_factory=dict)
    derived: frozenset[str] = frozenset({"value", "weights"})
    value: str = ""
    gpu: bool = True
    apart: bool = False

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


class Elsewhere(Exception):
    """An exception in a process that the learner's function was called in, as facts."""


_file = ""
"""The learner's file, while its functions are called."""


def on_gpu(task: Task) -> contextlib.AbstractContextManager[Any]:
    """Return the practice GPU, if the task has one; inside an open one it costs nothing."""
    from gpulesson.practice import practice_gpu

    return practice_gpu(force=True) if task.gpu else contextlib.nullcontext()


def seen(task: Task, written: Any, file: str = "") -> Facts:
    """Return the facts of what is written in a file; an exception is one of them, with its line."""
    import torch

    global _file
    _file = file
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
    return json_of(facts)


def facts_of(task: Task, written: Any, earlier: Iterable[Task], file: str = "") -> tuple[Facts, Facts | None]:
    """Return the facts of what a learner has written, and a second time with right functions before it.

    The second are those of the function when it calls the references in the place of the learner's own
    earlier functions; None if it does not call them by their names.
    """
    if written is None or not (task.value or callable(written)):
        return {"missing": True}, None
    own, inner = seen(task, written, file), inspect.unwrap(written) if callable(written) else written
    code = getattr(inner, "__code__", None)
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
    if isinstance(error, Elsewhere):
        return dict(error.args[0])
    file, message, line, stands = file or _file, str(error), 0, ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == file:
            line, stands = number, reading.stands_in(frame, number)
    if isinstance(error, SyntaxError) and error.filename == file:
        message, line, stands = error.msg, error.lineno or 0, reading.marked(error)
    said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    said = re.sub(r":\s*\n\s*", ": ", said.strip()).partition("\n")[0]
    return {"error": said[:500], "line": line, "stands": stands}


def json_of(facts: Facts) -> Facts:
    """Return facts as JSON keeps them, so that those of two processes can be compared."""
    found: Facts = json.loads(json.dumps(facts, default=str))
    return found


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
    """Return the names of the facts that are not the same; the line of an exception is no matter."""
    return [name for name in {**b, **a} if name not in ("line", "stands") and not _equal(a, b, name)]


def _equal(a: Facts, b: Facts, name: str) -> bool:
    if name == "error":  # sizes in a message depend on what else is wrong; which dimension does not
        sizes = r"(?<!dimension )(?<!\d)\d+"
        return re.sub(sizes, "", str(a.get(name))) == re.sub(sizes, "", str(b.get(name)))
    return name in a and name in b and same(a[name], b[name])


@dataclass(frozen=True)
class Found:
    """What was found out about one function.

    Attributes
    ----------
    mistakes : tuple of Mistake
    unexplained : tuple of str
        The facts that are wrong, and that these mistakes do not explain.
    empty : bool
        It does what a function without a body does.
    """

    mistakes: tuple[Mistake, ...] = ()
    unexplained: tuple[str, ...] = ()
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

    def explain(self, facts: Facts, seconds: float = 2.0) -> Found:
        """Find the smallest set of mistakes that leads to these facts.

        Sets of one and two are tried; then all mistakes whose every sign is there, together, alone and with
        one more; other sets for so many seconds of processor time.
        """
        wrong = differ(facts, self.facts())
        if not wrong:
            return Found()
        if not self.task.value and not differ(facts, self._of_nothing):
            return Found(empty=True)
        until = time.process_time() + seconds
        derived = frozenset() if "error" in facts else self.task.derived.intersection(wrong)
        direct = set(wrong) - derived
        for ignored in [frozenset(), derived] if derived and direct else [frozenset()]:
            if found := self._set(facts, set(wrong), ignored, until):
                return Found(found, tuple(name for name in wrong if name in ignored))
        if "error" in facts:
            return Found(unexplained=("error",))
        found = self._compatible(facts, set(wrong))
        explained = {name for mistake in found for name in self._changes(mistake)}
        return Found(found, tuple(name for name in wrong if name not in explained))

    @cached_property
    def _of_nothing(self) -> Facts:
        """The facts of a function without a body."""
        return seen(self.task, lambda *args, **kwargs: None)

    def _changes(self, mistake: Mistake) -> set[str]:
        """Return the facts that a mistake changes, alone."""
        return set(differ(self.facts((mistake,)), self.facts()))

    def _set(
        self, facts: Facts, wrong: set[str], ignored: frozenset[str], until: float
    ) -> tuple[Mistake, ...]:
        """Return the smallest set of mistakes with these facts, those that are ignored left out.

        A mistake that was made changes, alone, nothing but what is wrong; so few are to be tried.
        """
        changes = {mistake: self._changes(mistake) for mistake in self.task.mistakes}
        tried = [mistake for mistake, names in changes.items() if names <= wrong and not names <= ignored]
        if "error" in wrong and not any(_equal(self.facts((each,)), facts, "error") for each in tried):
            return ()
        certain = self._compatible(facts, wrong)
        others = [mistake for mistake in tried if mistake not in certain]

        def certain_and(size: int) -> Iterable[tuple[Mistake, ...]]:
            for extra in itertools.combinations(others, size):
                yield tuple(each for each in tried if each in {*certain, *extra})

        of = itertools.combinations
        at_once = itertools.chain(of(tried, 1), of(tried, 2), certain_and(0), certain_and(1))
        others_in_time = itertools.takewhile(
            lambda _: time.process_time() < until,
            itertools.chain(certain_and(2), of(tried, 3), of(tried, 4)),
        )
        for chosen in itertools.chain(at_once, others_in_time):
            if not chosen or len({mistake.switch for mistake in chosen}) < len(chosen) or _hidden(chosen):
                continue
            if not set(differ(facts, self.facts(chosen))) - ignored:
                return chosen
        return ()

    def _compatible(self, facts: Facts, wrong: set[str]) -> tuple[Mistake, ...]:
        """Return the mistakes whose every sign is there, where one alone of its switch is such."""

        def shows(mistake: Mistake) -> bool:
            alone, changes = self.facts((mistake,)), self._changes(mistake)
            direct = changes - self.task.derived
            return bool(direct) and changes <= wrong and all(_equal(facts, alone, n) for n in direct)

        found = [mistake for mistake in self.task.mistakes if shows(mistake)]
        count = Counter(mistake.switch for mistake in found)
        return tuple(mistake for mistake in found if count[mistake.switch] == 1)


def _hidden(chosen: tuple[Mistake, ...]) -> bool:
    return any({a.switch, a.kind} & b.hides for a, b in itertools.permutations(chosen, 2))


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
