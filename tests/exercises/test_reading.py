"""Slips that can be read in a program, and what stands in the line that it stops in."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path

import pytest
import torch

from gpulesson_tools.exercises import find
from gpulesson_tools.exercises.contract import exception
from gpulesson_tools.exercises.reading import changed, described, hiding, slips

NAMES = ["train", "test"]
RIGHT = "def train(a):\n    a.step()\n\ndef test(a):\n    return a\n"


def told(text: str, *names: str) -> list[tuple[str, int]]:
    space: dict = {"__file__": "mine.py"}
    exec(compile(text, "mine.py", "exec"), space)
    found = slips(text, list(names) or NAMES, space)
    assert all(each.says.endswith(".") and each.fix.endswith(".") for one in found.values() for each in one)
    return [(each.kind, each.line) for one in found.values() for each in one]


def test_what_a_starter_defines_and_a_program_otherwise_is_named():
    starter = find(12).text()
    text = starter.replace("?", "3").replace(">= 0.9", ">= 0.6")
    assert changed(text, starter, ["main"]) == ["epochs_needed"]
    assert not changed(starter + "x = 1\n", starter, []) and not changed("", starter, [])
    assert not changed(text, starter, ["epochs_needed"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (RIGHT, []),
        (RIGHT.replace("step()", "step"), [("not called", 2)]),
        (
            "def one(a):\n    a.b.backward\n\ndef train(a):\n    one(a)\n\ndef test(a):\n    pass\n",
            [("not called", 2)],
        ),
        (RIGHT.replace("a.step()", "a.step = 3; a.shape; x = a.step; print(a.step)"), []),
        (RIGHT + "\ndef test(a):\n    pass\n", [("defined twice", 7)]),
        (RIGHT + "\ntest = 3\n", [("not a function", 7)]),
        (RIGHT + "\ntrain = None\n", [("not a function", 7)]),
        (RIGHT + "\nfor test in range(2):\n    pass\n", [("not a function", 7)]),
        (RIGHT + "\ntest = max\n", []),
        ("train = lambda a: a\ntest = train\n", []),
        (
            RIGHT.replace("def test(a):\n    return a", "    def test(a):\n        return a"),
            [("inside another", 4)],
        ),
        ("class Mine:\n    def train(a):\n        pass\n\ndef test(a):\n    pass\n", [("inside another", 2)]),
        (RIGHT.replace("def test", "def tset"), [("other name", 4)]),
        (RIGHT.replace("def test", "def Test"), [("other name", 4)]),
        (RIGHT.replace("def test", "def mine"), [("other name", 4)]),
        ("def train(a):\n    pass\n\ndef one(a):\n    pass\n\ndef two(a):\n    pass\n", []),
        (RIGHT + "\nfrom builtins import *\n", []),
    ],
)
def test_slips(text, expected):
    assert told(text) == expected


def test_an_import_of_all_names_over_a_function():
    def test(a):
        return a

    text = f"{RIGHT}from elsewhere import *\n"
    (slip,) = slips(text, NAMES, {"__file__": "mine.py", "train": None, "test": test})["test"]
    assert (slip.kind, slip.line) == ("imported over", 6)


def test_a_program_with_lines_of_ipython_has_none():
    assert slips("%%time\nx", ["x"], {}) == {"x": []}


def stopped(text: str) -> str:
    import linecache

    linecache.cache["mine.py"] = len(text), None, text.splitlines(keepends=True), "mine.py"
    try:
        exec(compile(text, "mine.py", "exec"), {"torch": torch, "builtins": builtins})
    except Exception as error:
        return exception(error, "mine.py")["stands"]
    raise AssertionError("it has not stopped")


def test_what_stands_in_the_line_and_the_values_of_its_variables():
    text = "def f(x, y, z):\n    return x / y + z\n\nf(torch.ones(2, 3), 'no', [1])\n"
    assert stopped(text) == (
        "`return x / y + z`, where x is a tensor [2, 3] of float32; y is 'no'; z is a list of 1"
    )
    assert stopped("sum = 0\ndef f(x):\n    return sum(x)\n\nf(2.5)\n") == (
        "`return sum(x)`, where sum is not Python's own, but 0; x is 2.5"
    )
    assert stopped("import math\n\nmath.sqrt(-1)\n") == "`math.sqrt(-1)`", "only a function's variables"


def test_a_mark_below_what_python_cannot_read():
    text, mark = stopped("def f():\n    x = = 3\n").split("\n")
    assert text == "x = = 3" and text[len(mark) - 1] == "="
    long = f"x = [{'1, ' * 200}\n    y = = 3]"
    assert all(len(line) <= 70 for line in stopped(long).split("\n"))


def test_values_are_described_without_their_own_code():
    class Odd(int):
        def __repr__(self):
            raise AssertionError

    assert described(Odd(3)) == "of the type Odd" and described(10**5000) == "of the type int"
    assert described("x" * 1000) == "of the type str"


def test_files_that_hide_modules(tmp_path):
    for name in ("random.py", "mine.py", "sys.py", "exercise_04.py", "notes.txt"):
        (tmp_path / name).touch()
    for name in ("torch", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "torch/__init__.py").touch()
    (tmp_path / "json").mkdir()
    assert hiding(tmp_path) == ["random.py", "torch"], "sys is in Python itself"
    assert hiding(tmp_path / "gone") == []
    assert hiding(Path(sys.modules["json"].__file__).parents[1]) == []
