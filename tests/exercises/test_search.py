"""The search for mistakes, with a task that is only numbers."""

from __future__ import annotations

import math

import pytest
import torch

from gpulesson.exercises.contract import Mistake, Referee, Task, kind_of, mistakes, number_of, same, seen

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


def mistake(letter: str, value: str = "yes", hides: str = "") -> Mistake:
    return Mistake(letter, value, f"{letter} is wrong.", "Mend it.", letter, frozenset(hides.split()))


TASK = Task(
    does="",
    reference=reference,
    observe=observe,
    mistakes=(*map(mistake, "abcd"), mistake("e", "stops"), mistake("f")),
    begin="",
    derived=frozenset({"sum"}),
    gpu=False,
)


def found(**switches) -> tuple[list[str], tuple[str, ...]]:
    """What is found of a function that does this."""
    more = switches.pop("more", 0)
    result = Referee(TASK).explain(seen(TASK, lambda: {**reference(**switches), "more": more}))
    return [each.switch for each in result.mistakes], result.unexplained


@pytest.mark.parametrize("letters", ["a", "ab", "bd", "abc", "abcd", "f", "af", "abcdf"])
def test_the_smallest_set_is_found(letters):
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


def test_mistakes_beside_something_unknown_are_named_and_the_rest_is_said():
    assert found(a="yes", c="yes", more=7) == (["a", "c"], ("sum",))


def test_a_set_with_an_unknown_direct_fact_keeps_what_is_certain():
    def odd():
        return {**reference(b="yes"), "a": "no"}

    def observe_more(function, facts):
        observe(function, facts)
        facts["unknown"] = function is odd

    task = Task("", reference, observe_more, TASK.mistakes, "", derived=TASK.derived)
    result = Referee(task).explain(seen(task, odd))
    assert [each.switch for each in result.mistakes] == ["b"] and result.unexplained == ("unknown",)


def test_gradients_that_are_left_switched_off_are_seen_and_switched_on_again():
    def function():
        torch.set_grad_enabled(False)
        return reference()

    facts = seen(TASK, function)
    assert Referee(TASK).explain(facts).unexplained == ("gradient mode",)
    assert torch.is_grad_enabled()


def test_what_a_mistake_hides_is_not_named_with_it():
    def hiding(*, a="no", b="no"):
        return {**reference(), "a": a, "b": "no" if a == "yes" else b}

    task = Task("", hiding, observe, (mistake("a", hides="b"), mistake("b")), "")
    referee = Referee(task)
    both = seen(task, lambda: hiding(a="yes", b="yes"))
    assert [each.switch for each in referee.explain(both).mistakes] == ["a"]


def test_mistakes_are_read_from_a_text():
    common = mistakes("zero=late\nToo late.\nFix: Earlier.\n    optimizer.zero_grad()\n")
    first, same_code, second, third, fourth = mistakes(
        "mean=batches (hides scale, zero=late)\nThe last batch\nis shorter.\nFix: Count.\n    if x:\n"
        "        y()\n\n"
        "mean=last\nIt is last.\nFix: Count all.\n\n"
        "zero=late\nzero=late (hides mean, scale); zero=late",
        common,
    )
    assert (first.kind, first.says, first.fix) == ("mean=batches", "The last batch is shorter.", "Count.")
    assert first.line == "if x:\n    y()" and first.hides == {"scale", "zero=late"}
    assert (same_code.fix, same_code.line) == ("Count all.", first.line)
    assert second.says == third.says == fourth.says == "Too late."
    assert third.hides == {"mean", "scale"} and not fourth.hides
    for wrong in ("zero=never", "no switch\nIt is.\nFix: So.\n    x", "a=b\nIt is.\nFix: So."):
        with pytest.raises(ValueError, match="not a mistake"):
            mistakes(wrong, common)


def test_facts_are_compared_as_numbers_and_by_type():
    assert same(0.1 + 0.2, 0.3) and same(math.nan, math.nan) and same([1, [2.0]], [1, [2.0 + 1e-7]])
    assert (
        not same(1, True) and not same(1.0, 1.001) and not same([1], [1, 2]) and not same({"a": 1}, {"b": 1})
    )
    assert number_of("x") is None and number_of(True) == 1.0 and kind_of([]) == "a list"
