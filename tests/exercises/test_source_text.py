"""What is read in a learner's text."""

from __future__ import annotations

import pytest

from gpulesson.exercises.findings import Source
from gpulesson.exercises.rules import causes, source_text
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
