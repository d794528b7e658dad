"""Programs with one slip each: the check says what it is, in its line, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from sampling import some

from gpulesson_tools.exercises.checker import begin

pytestmark = pytest.mark.slow  # each starts a process
ROOT = Path(__file__).parents[2]
FUNCTION = "A function itself stands there, and not its answer."
CALLED = "is only named here: without its brackets () it is not called."
SYSTEM_EXIT = "The program ends itself in this line"

# the exercise, what is written in the place of what, and what is said
BROKEN = [
    ("04", "loss.item()", "loss.item", "is item itself, without its brackets (), expected a number"),
    ("03", "loss.item()", "loss.item", "each is item itself, without its brackets ()"),
    ("05", ".tolist()", ".tolist", "is tolist itself, without its brackets ()"),
    ("04", "== targets).sum()", "== targets).sum", FUNCTION),
    ("04", "len(targets)", "len[targets]", FUNCTION),
    ("04", "model.parameters()", "model.parameters", FUNCTION),
    ("04", "torch.no_grad()", "torch.no_grad", "as in torch.no_grad()?"),
    ("05", "torch.inference_mode()", "torch.inference_mode", "as in torch.no_grad()?"),
    ("04", "loss.backward()", "loss.backward", f"line 14: loss.backward {CALLED}"),
    ("03", "loss.backward()", "loss.backward", f"line 13: loss.backward {CALLED}"),
    ("04", "optimizer.step()", "optimizer.step", f"line 15: optimizer.step {CALLED}"),
    ("04", "optimizer.zero_grad()", "optimizer.zero_grad", f"line 13: optimizer.zero_grad {CALLED}"),
    ("05", "model.eval()", "model.eval", f"line 18: model.eval {CALLED}"),
    ("08", "machine.synchronize()  # done", "machine.synchronize  # done", f"machine.synchronize {CALLED}"),
    ("05", "argmax(dim=1)", "argmax(dim=0)", "Expected: class_accuracies counts over all batches"),
    ("04", "argmax(dim=1)", "argmax(dim=2)", "inputs is a tensor [16, 6] of float32 on cuda:0"),
    ("04", "outputs = model(inputs)", "outputs = model(inputs.double())", "The inputs are float64"),
    ("04", "(outputs, targets)", "(outputs, targets.double())", "wants the number of the right class"),
    ("04", "model.to(device)\n", "model.to(device)\n    int(input())\n", "input() waits for the keyboard"),
    ("04", "model.to(device)\n", "model.to(device)\n    quit()\n", SYSTEM_EXIT),
    ("01", "\ndef scores", "pick_device = 3\n\ndef scores", "line 9: pick_device is 3, not a function."),
    (
        "04",
        "\ndef run",
        "def accuracy(*_):\n    pass\n\ndef run",
        "in the lines 19 and 30, and only the last one",
    ),
    ("04", "def accuracy", "def acuracy", "line 19: This line defines acuracy."),
    ("04", "def train_step", "def step", "line 8: This line defines step."),
    ("04", "device):\n    model.train()", "device)\n    model.train()", "expected ':'"),
    ("04", "loss = loss_fn", "loss = = loss_fn", "invalid syntax loss = = loss_fn(outputs, targets)"),
    ("01", '"cuda"', "“cuda”", "Type it again"),
    ("04", "    loss.backward()", "   loss.backward()", "It begins between two blocks."),
    ("04", "    loss.backward()", "      loss.backward()", "further to the right than the line before"),
    ("04", "    loss.backward()", "\tloss.backward()", "turn all tabs into four spaces"),
    ("04", "return right / rows", "return right / row", "No line that ran before has given row a value."),
    ("04", "right = rows = 0", "rows = 0", "Give it a value at the function's beginning."),
    ("04", "rows += len(targets)", "pass", "`return right / rows`, where right is 18; rows is 0. Expected:"),
    ("04", "import torch\n", "import torhc\n", "nor is torhc.py beside this file"),
    (
        "04",
        "import torch\n",
        "from torch import *\nimport torch\n",
        "range is not Python's own, but a function of",
    ),
    ("04", "import torch\n", "%matplotlib inline\nimport torch\n", "belong into a notebook"),
    ("04", "import torch\n", ">>> import torch\n", "The >>> is the prompt of Python's console."),
    ("04", "return right / rows", "return [right / rows][3]", "IndexError: list index out of range Seen:"),
    ("05", "[truth, answer]", "[truth, answer + 5]", "IndexError: index 5 is out of bounds for dimension 1"),
    ("04", "(outputs, targets)", "(outputs, targets),", "AttributeError: 'tuple' object has no attribute"),
    ("04", "nn.CrossEntropyLoss()", "nn.CrossEntropyLoss", "it was to be made first, nn.CrossEntropyLoss()"),
    ("03", "make_model()", "make_model", FUNCTION),
    ("04", "Adam(model.parameters(), lr=1e-2)", "Adam", "That is the class itself"),
    ("04", "batches, device):", "batches):", "Expected: the check calls accuracy(model, batches, device)."),
    ("04", "return right / rows", "return open('x.csv')", "Path(__file__).parent / 'x.csv'"),
    ("01", 'torch.device("cuda"', 'pick_device() or torch.device("cuda"', "calls itself again and again"),
    ("12", "RATE = 5e-2", 'RATE = "5e-2"', "RATE is a str, expected a number."),
    ("06", 'checkpoint["epoch"]', 'checkpoint["epochs"]', "where done is 0; checkpoint is a dict of 4"),
]
WRONG = "The model has three outputs", "a label names a class", "retain_graph", "when step() was called"


@pytest.mark.parametrize(("number", "right", "wrong", "says"), some(BROKEN, every=6))
def test_a_slip_is_said_in_its_line(number, right, wrong, says, tmp_path):
    solution = (ROOT / f"examples/solutions/solution_{number}.py").read_text(encoding="utf-8")
    assert right in solution
    path = tmp_path / f"exercise_{number}.py"
    path.write_text(solution.replace(right, wrong, 1), encoding="utf-8")
    report = begin(path).report()
    said = " ".join(report.text().split())
    assert not report.passed and says in said, said
    assert not [cause for cause in WRONG if cause.lower() in said.lower()], said
