"""The search for mistakes, with a task that is only numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from gpulesson_tools.exercises.contract import (
    Referee,
    Task,
    kind_of,
    number_of,
    same,
    seen,
)

LETTERS = "abcdef"


def reference(*, x="", a="no", b="no", c="no", d="no", e="no", f="no"):
    return dict(zip(LETTERS, (a, b, c, d, e, f), strict=True))


def observe(function, facts):
    found = function()
    facts["kind"] = kind_of(found)
    if found is None:
        return
    for letter in LETTERS[:4]:
        facts[letter] = found[letter] != "no"
    if found["e"] == "stops":
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)")
    facts["sum"] = sum(
        10**place for place, letter in enumerate(LETTERS) if found[letter] != "no"
    ) + found.get("more", 0)


def table(*kinds: str) -> dict[str, str]:
    return {kind: f"{kind} is wrong. Fix: Mend it." for kind in kinds}


TASK = Task(
    does="",
    reference=reference,
    observe=observe,
    table=table("a=yes", "b=yes", "c=yes", "d=yes", "e=stops", "f=yes"),
    begin="",
    derived=frozenset({"sum"}),
    gpu=False,
)


def found(**switches) -> tuple[list[str], tuple[str, ...]]:
    """What is found of a function that does this."""
    more = switches.pop("more", 0)
    result = Referee(TASK).explain(seen(TASK, lambda: {**reference(**switches), "more": more}))
    return [each.switch for each in result.mistakes], result.unexplained


@pytest.mark.parametrize("letters", ["a", "ab", "bd", "abc", "abcd", "f", "af"])
def test_all_mistakes_are_found(letters):
    assert found(**dict.fromkeys(letters, "yes")) == (list(letters), ())


def test_what_is_right_and_what_is_empty():
    referee = Referee(TASK)
    assert referee.explain(seen(TASK, reference)).right
    assert referee.explain(seen(TASK, lambda: None)).empty


def test_a_known_exception_is_named_and_hides_what_is_after_it():
    assert found(e="stops", f="yes") == (["e"], ())
    assert found(e="stops", a="yes") == (["a", "e"], ())


def test_an_unknown_exception_is_itself():
    def fails():
        return 1 / 0

    facts = seen(TASK, fails, __file__)
    assert facts["error"] == "ZeroDivisionError: division by zero"
    assert facts["line"] == fails.__code__.co_firstlineno + 1
    assert Referee(TASK).explain(facts).unexplained == ("error",)


def test_mistakes_beside_an_unknown_result_are_named_and_the_rest_is_found_next():
    assert found(a="yes", c="yes", more=7) == (["a", "c"], ())
    assert found(more=7) == ([], ("sum",))


@pytest.mark.parametrize(("unknown", "named"), [("first", []), ("last", ["b"])])
def test_nothing_is_named_that_may_come_from_something_unknown_before_it(unknown, named):
    """Facts come in the order of causes: those after one that nothing explains may be its consequences."""

    def odd():
        return reference(b="yes")

    def observe_more(function, facts):
        facts["first"] = unknown == "first" and function is odd
        observe(function, facts)
        facts["last"] = unknown == "last" and function is odd

    task = Task("", reference, observe_more, TASK.table, "", derived=TASK.derived)
    result = Referee(task).explain(seen(task, odd))
    assert [each.switch for each in result.mistakes] == named and result.unexplained == (unknown,)


def test_a_fact_that_two_mistakes_explain_is_said_as_it_is():
    def either(*, a="no", b="no"):
        return {**reference(), "a": a if b == "no" else b}

    task = Task("", either, observe, table("a=yes", "b=too"), "", derived=TASK.derived)
    found = Referee(task).explain(seen(task, lambda: {**reference(a="yes"), "more": 5}))
    assert not found.mistakes and found.unexplained == ("a",)


def test_of_two_that_exclude_each_other_neither_is_named():
    """A condition that is the wrong way round is not the sum of "always" and "never"."""

    def looks(*, a="right"):
        return {**reference(), "a": "no" if a == "never" else a, "b": "no" if a == "always" else a}

    def observe_both(function, facts):
        found = function()
        facts["a"], facts["b"] = found["a"] == "always", found["b"] == "never"
        facts["c"] = found["c"] != "no"

    task = Task("", looks, observe_both, table("a=always", "a=never"), "", gpu=False)
    odd = seen(task, lambda: {**reference(c="yes"), "a": "always", "b": "never"})
    found = Referee(task).explain(odd)
    assert not found.mistakes and found.unexplained == ("a",)


def test_two_are_not_named_for_a_result_alone():
    task = replace(TASK, derived=frozenset({*"ab", "sum"}))
    found = Referee(task).explain(seen(task, lambda: reference(a="yes", b="yes")))
    assert not found.mistakes and found.unexplained == ("a",)


def test_colours_are_taken_out_of_a_message():
    def fails():
        raise ValueError("\x1b[1mread\x1b[0m")

    assert seen(TASK, fails)["error"] == "ValueError: read"


def test_gradients_that_are_left_switched_off_are_seen_and_switched_on_again():
    def function():
        torch.set_grad_enabled(False)
        return reference()

    facts = seen(TASK, function)
    assert Referee(TASK).explain(facts).unexplained == ("gradient mode",)
    assert torch.is_grad_enabled()


def test_mistakes_are_read_from_a_table():
    common = {"zero=late, never": "Too\n    late. Fix: Earlier."}
    both = common | {"mean=last": "It is last. Fix: Count.", "zero=late": "It is late. Fix: Soon."}

    def mistakes(only: str = ""):
        return replace(TASK, table=both, only=only).mistakes

    never, last = mistakes("zero=never; mean")
    assert (never.kind, never.says, never.fix) == ("zero=never", "Too late.", "Earlier.")
    assert (last.switch, last.value, last.fix) == ("mean", "last", "Count.")
    assert [each.says for each in mistakes("zero")] == ["It is late.", "Too late."]
    assert [each.kind for each in mistakes()] == ["zero=late", "zero=never", "mean=last"]


def test_facts_are_compared_as_numbers_and_by_type():
    assert same(0.1 + 0.2, 0.3) and same(math.nan, math.nan) and same([1, [2.0]], [1, [2.0 + 1e-7]])
    assert (
        not same(1, True) and not same(1.0, 1.001) and not same([1], [1, 2]) and not same({"a": 1}, {"b": 1})
    )
    assert number_of("x") is None and number_of(True) == 1.0 and kind_of([]) == "a list"
