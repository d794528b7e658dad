"""From a line back to the line that made its value."""

from __future__ import annotations

import pytest

from gpulesson.exercises.rules import slices

PROGRAMS = {
    "a variable": """
right, total = 3, 4
share = right / total  # here
print(share)
""",
    "a function": """
def share(right, total):
    return right / total  # here
part = share(3, 4)
print(part)
""",
    "an argument": """
def show(value):
    print(value)
half = 1 / total  # here
show(half)
""",
    "an attribute": """
class Count:
    def finish(self):
        self.share = self.right / self.total  # here
count = Count()
count.finish()
print(count.share)
""",
    "the head of a loop": """
for share in [right / total for right in counts]:  # here
    other = 1
    print(share)
""",
    "the nearest of two": """
share = 1 / total
share = right / total  # here
print(share)
""",
    "a sum": """
share = 0
for right in counts:
    share += right / total  # here
print(share)
""",
    "the image's scale": """
images = images / 255
share = evaluate(images) / total  # here
mean = share
print(mean)
""",
}


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_the_division_behind_a_print_is_found(text):
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines, 1) if "print(" in line)
    here = next(number for number, line in enumerate(lines, 1) if "# here" in line)
    assert slices.find(lines, start, slices.divides) == here


def test_a_name_that_is_given_anew_leads_no_further_back():
    lines = "x = 1 / y\nx = 2\nprint(x)".splitlines()
    assert slices.find(lines, 3, slices.divides) == 0


def test_of_a_long_statement_the_line_with_the_words_is_found():
    lines = "x = f(\n    a,\n    seed=3,\n)\nprint(x)".splitlines()
    assert slices.find(lines, 5, slices.matches(r"f\("), "seed") == 3


@pytest.mark.parametrize("lines", [[], ["def"], ["x = x"], ["def f(x):", "    return f(x)", "print(f(1))"]])
def test_nothing_is_found_in_a_strange_program(lines):
    assert slices.find(lines, 1, slices.divides) == slices.find(lines, 99, slices.divides) == 0


@pytest.mark.parametrize(
    ("name", "of_training"),
    [("X_train", True), ("train_set", True), ("self_train", True), ("trainer", False), ("X_test", False)],
)
def test_names_of_the_training_part(name, of_training):
    (statement,) = slices.back([f"model({name})"], 1)
    assert slices.names(slices.OF_TRAINING)(statement) == of_training
