"""What is read in a learner's text."""

from __future__ import annotations

import ast

import pytest

from gpulesson.exercises.findings import Source
from gpulesson.exercises.rules import accuracy, causes, source_text
from gpulesson.exercises.trace import Trace

LOOP = """
losses, total, by_epoch = [], 0.0, {{}}
for epoch in range(3):
    loss = loss_fn(model(inputs), targets)
    epochs.append(epoch)
    {line}
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("losses.append(loss)", 6),
        ("total += loss", 6),
        ("total = total + loss * 2", 6),
        ("by_epoch[epoch] = loss", 6),
        ("losses.append((epoch, loss))", 6),
        ("losses.append(loss.detach())", 4),
        ("total += float(loss)", 4),
        ("losses.append(loss.item())", 4),
    ],
)
def test_the_line_that_keeps_a_loss(line, found):
    assert source_text.keeping_line(LOOP.format(line=line).split("\n"), 4) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('device = torch.device("cuda")', 1),
        ('x = x.to("cuda:1")', 1),
        ("model.cuda()", 1),
        ('device = "cuda" if torch.cuda.is_available() else "cpu"', 0),
        ('if torch.cuda.is_available(): device = "cuda"', 0),
        ('pin = device.type == "cuda"', 0),
        ("x = x.cpu()", 0),
        ('print("cuda is nice")', 0),
        ("def broken(:", 0),
    ],
)
def test_a_device_that_is_written_down(line, found):
    assert source_text.literal_device([line], "cuda") == found


def test_the_line_of_an_answer():
    lines = ['OTHER = {"a": 1}', "ANSWERS = {", '    "a": "cpu",', '    "b": "?",', "}"]
    assert source_text.key_line(lines, "b") == 4
    assert source_text.key_line(lines, "z") == 2
    assert source_text.key_line(["x = 1"], "a") == 0


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('state = {"a": optimizer.state_dict}', True),
        ("state = dict(a=optimizer.state_dict)", True),
        ("torch.save(model.state_dict, path)", True),
        ("states = [3, model.state_dict()] + [torch.get_rng_state]", True),
        ("total += loss.item", True),
        ("print(f'{loss.item}')", True),
        ("optimizer = torch.optim.Adam(model.parameters)", True),
        ("return predictions.cpu", True),
        ("model.load_state_dict", True),
        ("rows = x.to(torch.float)", False),
        ("timed(machine.synchronize)", False),
        ("sorted(rows, key=torch.Tensor.item)", False),
        ("wait = device.synchronize\nwait()", False),
        ("torch.cuda.manual_seed(0)", False),
        ("state = optimizer.state_dict()", False),
    ],
)
def test_a_method_that_became_a_value(line, found):
    lines = ["import torch", *(f"{part}" for part in line.split("\n"))]
    lines = ["def f():", *(f"    {part}" for part in lines)]
    findings = list(causes.value_not_called(Trace(), Source("a.py", lines)))
    assert bool(findings) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("device = torch.accelerator.current_accelerator()", 1),
        ("device = current_accelerator(False) or 'cpu'", 1),
        ("device = torch.accelerator.current_accelerator(check_available=False).type", 1),
        ("device = torch.accelerator.current_accelerator(check_available=True)", 0),
        ("device = torch.accelerator.current_accelerator(True)", 0),
    ],
)
def test_an_accelerator_that_may_not_be_there(line, found):
    assert source_text.unasked_accelerator([line]) == found


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("device = choose_device()", "device"),
        ('place = "cuda" if torch.cuda.is_available() else "cpu"', "place"),
        ("has_gpu = torch.cuda.is_available()", ""),
        ('device = torch.device("cuda")', ""),
    ],
)
def test_the_name_of_the_chosen_device(line, name):
    assert source_text.chosen_device([line]) == name


def test_a_name_that_stands_twice_in_a_dictionary():
    lines = ["ANSWERS = {", "    'a': 1,", "    'b': 2,", "    'a': 3,", "}", "other = {'c': 1, **ANSWERS}"]
    assert source_text.keys_twice(lines) == source_text.keys_twice(lines, "ANSWERS") == {"a": 4}
    assert source_text.keys_twice(lines, "other") == {}


@pytest.mark.parametrize(
    ("lines", "asked"),
    [
        (["a = {'x': 1}", "for n in 'xy':", "    print(a[n])"], ("a", False, 1)),
        (["a = {'x': 1}", "", "print(a['y'])"], ("a", True, 1)),
        (["a = {'x': 1}", "a['z'] = 2", "print(a[n])"], ("a", False, 0)),
        (["a = torch.load(p)", "", "m.load(a['y'], b[n])"], ("a", True, 0)),
        (["", "", "print(a[n], b[n])"], None),
        (["", "", "a.pop('y')"], None),
    ],
)
def test_which_dictionary_was_asked(lines, asked):
    assert source_text.asked_for(lines, 3, "y") == asked


@pytest.mark.parametrize(
    ("line", "cut"),
    [
        ("a = right // n", True),
        ("a = int(right / n)", True),
        ("a = (right / n).long()", True),
        ("a = torch.div(right, n, rounding_mode='floor')", True),
        ("a = right / n", False),
        ("a = int(right.sum())", False),
        ("a = torch.zeros((), dtype=torch.int64)", False),
    ],
)
def test_a_division_that_keeps_whole_numbers_only(line, cut):
    assert accuracy.cuts(ast.parse(line).body[0]) == cut
