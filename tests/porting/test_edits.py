"""Changes keep the author's form: encoding, line ends, tabs, comments."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("libcst")

import libcst as cst

from gpulesson_tools.porting.edits import DEVICE_LINE, Source
from gpulesson_tools.porting.facts import Spot


def spot(text: str, part: str, function: str = "<module>") -> Spot:
    """Return where an expression stands, as Python counts."""
    node = next(
        each
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.expr) and ast.get_source_segment(text, each) == part
    )
    return Spot("train.py", function, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfmodel = Net()  # \xc3\xa4\r\nif model:\r\n\tpass\r\n",
        b"# -*- coding: latin-1 -*-\nname = '\xe9'; model = Net()\n",
        b"model = Net()",
        b"model = Net()\n\x0c\n# the end",
        b"x = 1\rmodel = Net()\rx = 2",
    ],
)
def test_bytes_outside_the_change_stay(text):
    source = Source(text)
    (call,) = source.within(source.module, cst.Call)
    assert source.append(call, "to", "device") == text.replace(b"Net()", b"Net().to(device)")


@pytest.mark.parametrize(
    "line, chosen",
    [('device = "cpu"', True), ("DEVICE = torch.device('cpu')", True), ('place = "cpu"', False)],
)
def test_a_device_has_a_name_that_says_so(line, chosen):
    assert bool(Source(line.encode()).device_assignments("cpu")) == chosen


def test_columns_are_pythons():
    text = "Ä, x = 'ö', f(1).g(\n    2)\n"
    source = Source(text.encode())
    assert source.code(source.expression(spot(text, "f(1)"))) == "f(1)"
    assert source.code(source.expression(spot(text, "f(1).g(\n    2)"))) == "f(1).g(\n    2)"
    assert Source(b"x = 1\ry = f(2)\r").expression(Spot("train.py", "<module>", 2, 4, 2, 8)) is not None


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_move_takes_the_indentation_and_the_line_end_of_its_neighbours(end):
    text = end.join(["for x in y:", "\tprint(x)", ""])
    source = Source(text.encode())
    loop = source.module.body[0]
    assert source.move(["x"], "device", first_in=loop).decode() == end.join(
        ["for x in y:", "\tx = x.to(device)", "\tprint(x)", ""]
    )


def test_a_move_behind_a_statement_of_several():
    source = Source(b"if 1:\n    x, y = f(); g(x)\n")
    (after,) = source.within(source.module, cst.Assign)
    assert source.move(["x"], "device", after=after) == b"if 1:\n    x, y = f(); x = x.to(device); g(x)\n"


@pytest.mark.parametrize(
    "call, expected",
    [
        ("f()", "f(device=d)"),
        ("f(1, 2)", "f(1, 2, device=d)"),
        ("f(1,\n  2,\n)", "f(1,\n  2,\n  device=d,\n)"),
        ("f( 1 )", "f( 1, device=d )"),
    ],
)
def test_a_keyword_in_the_form_of_the_others(call, expected):
    source = Source(call.encode())
    (node,) = source.within(source.module, cst.Call)
    assert source.keyword(node, "device", "d").decode() == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("import torch\nimport os\n\nx = 1\n", "import torch\nimport os\n\nDEVICE\n\nx = 1\n"),
        ('"""Doc."""\nimport torch as th\nx = 1\n', '"""Doc."""\nimport torch as th\n\nTH\nx = 1\n'),
        ("from torch import nn\nx = 1\n", "from torch import nn\nimport torch\n\nDEVICE\nx = 1\n"),
        ("import os\nx = 1\nimport torch\ny = 2\n", "import os\nx = 1\nimport torch\n\nDEVICE\ny = 2\n"),
        (
            "import torch.nn as nn\nimport torch\nf()\nimport os\n",
            "import torch.nn as nn\nimport torch\nf()\nimport os\n\nDEVICE\n",
        ),
    ],
)
def test_the_line_that_chooses_the_device(text, expected):
    expected = expected.replace("DEVICE", DEVICE_LINE).replace("TH", DEVICE_LINE.replace("torch.", "th."))
    assert Source(text.encode()).with_device_line("device").decode() == expected


def test_a_name_has_its_value_from_the_loop_around_it():
    text = "x = 1\nfor x in a:\n    f(x)\ng(x)\n\ndef h():\n    x = 2\n    f(x)\n"
    source = Source(text.encode())
    assert source.binding("x", Spot("", "<module>", 3, 4, 3, 8)).kind == "for"
    assert source.binding("x", Spot("", "h", 8, 4, 8, 8)).line == 7
    assert source.binding("z", Spot("", "h", 8, 4, 8, 8)) is None
    source = Source(b"x = a\nx.data = data\ny.z = x.y\nf(x)")
    assert source.code(source.binding("x", Spot("", "<module>", 4, 0, 4, 4)).node) == "data"
    assert source.binding("y", Spot("", "<module>", 4, 0, 4, 4)) is None
