"""Files of learners, checked as the command does it: in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from sampling import some

from gpulesson_tools.exercises import UsageError, exercises, find
from gpulesson_tools.exercises.checker import begin

pytestmark = pytest.mark.slow  # each starts a process
ROOT = Path(__file__).parents[2]
SOLUTION = (ROOT / "examples/solutions/solution_04.py").read_text(encoding="utf-8")
STARTER = (ROOT / "examples/exercises/exercise_04.py").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULESSON_PROGRESS", str(tmp_path / "progress.json"))


@pytest.fixture
def checked(tmp_path):
    """Checks a text as a file of exercise 4; returns the report."""

    def checked(text: str, name: str = "exercise_04.py", **options):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return begin(path, **options).report()

    return checked


def states(report) -> dict[str, str]:
    return {answer.name: answer.state for answer in report.answers}


@pytest.mark.parametrize("number", some((exercise.number for exercise in exercises()), every=4))
def test_the_solution_passes_and_the_starter_says_where_to_begin(number):
    solution = begin(ROOT / f"examples/solutions/solution_{number}.py").report()
    assert solution.passed and not solution.notes, solution
    starter = begin(ROOT / f"examples/exercises/exercise_{number}.py").report()
    assert not starter.passed and not starter.stopped and starter.kinds


def test_answers_that_were_not_looked_for_are_not_another_mistake(checked):
    """Both stop with a size that does not match; only the dimension tells them apart."""
    text = SOLUTION.replace(".argmax(dim=1)", "")
    assert text != SOLUTION
    report = checked(text)
    assert states(report)["accuracy"] == "wrong" and "accuracy dim=0" not in report.kinds


def test_an_empty_function_is_told_where_to_begin(checked):
    report = checked(STARTER)
    assert set(states(report).values()) == {"empty"}
    assert "train_step does nothing yet. That is next.\n- Bring inputs and targets" in report.text()
    assert "This is the starter as it came." in report.text()
    content = json.loads(json.dumps(report.to_dict()))
    assert content["exercise"] == "04" and not content["passed"] and len(content["answers"]) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "The file is empty. Has your editor saved it?"),
        ("print('accuracy 0.95: done')\n", "There is no train_step or accuracy or run in it"),
        ("train_step = accuracy = run = 3\n", "line 1: train_step is 3, not a function."),
        ("def train_step(:\n", "line 1: The file stops: SyntaxError"),
        ("import nothing_of_this_name\n", "line 1: The file stops: ModuleNotFoundError"),
        (
            "import sys\nsys.exit()\n",
            "line 2: The file stops: SystemExit Seen: `sys.exit()`. The program ends itself",
        ),
        ("import os\nos._exit(0)\n", "The file stops: the process ended: by os._exit"),
        ("\nx = bytearray(2**45)\n", "line 2: The file stops: MemoryError"),
    ],
)
def test_a_file_without_functions_is_answered_kindly(checked, text, says):
    report = checked(text)
    assert not report.passed and says in " ".join(report.text().split())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("while True: pass", "line 3: It did not come to an end: it was stopped after 2 seconds of work."),
        ("import os; os._exit(0)", "It stops: the process ended: by os._exit"),
        ("return torch.ones(10**12)", "DefaultCPUAllocator: can't allocate memory"),
        ("for _ in range(10**5): print('x' * 100)", "It returns nothing, and changes nothing"),
        ("model.train(); return 0.0", "The rest will be checked once this is right."),
        ("return model(inputs)", "mat1 is on cpu, different from other tensors on cuda:0"),
    ],
)
def test_what_goes_wrong_in_a_function_is_that_functions(checked, body, says):
    text = f"import torch\ndef train_step(model, inputs, targets, loss_fn, optimizer, device):\n    {body}\n"
    begun = time.monotonic()
    report = checked(text, seconds=2.0)
    assert time.monotonic() - begun < 60
    assert not report.passed and states(report)["train_step"] in ("wrong", "empty")
    assert says in " ".join(report.text().split())


def test_a_sleeping_function_is_stopped_too(checked):
    begun = time.monotonic()
    report = checked("import time\ndef train_step(*_):\n    time.sleep(1000)\n", seconds=1.0)
    assert "line 3: It did not come to an end: it was stopped after 3 seconds on the clock" in " ".join(
        report.text().split()
    )
    assert time.monotonic() - begun < 60


OVERWRITES = """
import builtins, json, math
import gpulesson_tools.exercises.checker as checker, gpulesson_tools.exercises.contract as contract
import gpulesson_tools.exercises.report as report, gpulesson_tools.exercises.watch as watch

contract.differ = lambda *_: []
contract.same = lambda *_: True
contract.Referee.explain = lambda *_: contract.Diagnosis(contract.seen())
contract.seen = contract.alone = lambda *_: {}
report.Report.passed = True
report.answers = lambda *_: iter(())
watch.ModelWatch.training = lambda self: []
for exercise in contract.Task.__subclasses__():
    exercise.observe = lambda *_: None
math.isclose = lambda *_, **__: True


def per_class(*_): return [0.5]
def hardest(*_): return ["bag"]
def class_accuracies(*_): return [0.5]
"""


def test_a_file_that_overwrites_the_checks_own_functions_is_not_passed(checked):
    report = checked(OVERWRITES, "exercise_05.py")
    assert not report.passed and "done" not in states(report).values(), report


def test_right_functions_are_called_in_the_place_of_wrong_ones_before(checked):
    text = SOLUTION.replace("        optimizer.zero_grad()\n", "").replace("    optimizer.zero_grad()\n", "")
    report = checked(text)
    assert states(report) == {"train_step": "wrong", "accuracy": "done", "run": "later"}
    assert report.kinds == ("train_step zero=never",)


def test_a_function_that_fails_otherwise_with_right_ones_is_told_its_own_error(tmp_path):
    path, text = tmp_path / "exercise_06.py", (ROOT / "examples/solutions/solution_06.py").read_text("utf-8")
    text = text.replace("model.state_dict()", "model").replace(
        'checkpoint["model"]', "checkpoint['model'].state_dict()"
    )
    path.write_text(text, encoding="utf-8")
    save, run = begin(path).report().answers
    assert [each.kind for each in save.findings] == ["opens=no"]
    assert "UnpicklingError" in run.findings[0].says and "AttributeError" not in run.findings[0].says


def test_several_mistakes_in_several_functions_are_named_at_once(checked):
    text = SOLUTION.replace("    optimizer.zero_grad()\n", "").replace("    model.eval()\n", "")
    text = text.replace("right / rows", "100 * right / rows").replace("shuffle=True", "shuffle=False")
    assert checked(text).kinds == (
        "train_step zero=never",
        "accuracy test_mode=as it is",
        "accuracy scale=percent",
        "run shuffle=no",
    )


def test_a_notebook_is_a_file_too(tmp_path):
    broken = SOLUTION.replace("right / rows", "1 / 0")
    cells = ["%matplotlib inline\n!pip list", broken, "import gpulesson\ngpulesson.check(4, run=run)"]
    path = tmp_path / "exercise_04.ipynb"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    path.write_text(nbformat.writes(notebook), encoding="utf-8")
    report = begin(path).report()
    line = broken.splitlines().index("    return 1 / 0") + 1
    (finding,) = report.answers[1].findings
    assert finding.says.startswith(f"cell 2, line {line}: It stops: ZeroDivisionError")


def test_what_a_program_started_ends_with_it(checked, tmp_path):
    mark = tmp_path / "alive"
    program = f"import time\nwhile True:\n    time.sleep(0.1); open({str(mark)!r}, 'a').write('x')\n"
    text = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {program!r}])\n"
    checked(f"{text}while not __import__('os').path.exists({str(mark)!r}): time.sleep(0.05)\n")
    size = mark.stat().st_size
    time.sleep(0.5)
    assert mark.stat().st_size == size


def test_it_ends_when_the_check_is_killed(tmp_path):
    mark = tmp_path / "alive"
    path = tmp_path / "exercise_04.py"
    path.write_text(f"import time\nwhile True:\n    time.sleep(0.1); open({str(mark)!r}, 'a').write('x')\n")
    command = [sys.executable, "-m", "gpulesson", "check", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not mark.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    for _ in range(600):
        size = mark.stat().st_size
        time.sleep(0.5)
        if mark.stat().st_size == size:
            break
    else:
        pytest.fail("it goes on")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("gone.py", None, "there is no file"),
        ("loop.py", b"x = 1\n", "names no exercise; give its number"),
        ("exercise_04.py", b"\xff\xfe\x00", "is not a text in UTF-8, from line 1 on: save it again"),
        ("exercise_04.py", "x = 1\n".encode("utf-16-le"), "is not a text in UTF-8, from line 1 on"),
        ("exercise_04.py", "x = 1\n# für\n".encode("cp1252"), "is not a text in UTF-8, from line 2 on"),
        (
            "exercise_04.py",
            b'{"cells": []}',
            "holds a notebook, and not a program: name it exercise_04.ipynb",
        ),
        ("exercise_04.ipynb", b"x = 1\n", "is not a notebook.*name it exercise_04.py"),
        ("exercise_04.ipynb", b"[]", "is not a notebook"),
        ("exercise_77.py", b"", "there is no exercise 77: the numbers are 01, 02"),
        ("04_training_loop.py", b"# .. overview::\n", "is a lesson, not an exercise"),
        ("exercise_04.py", b"#" * 2**21, "more than the 1048576"),
    ],
)
def test_what_is_no_learners_file_is_said(tmp_path, name, content, says):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=says):
        begin(path)


def test_a_text_in_another_encoding_that_it_names_is_read(tmp_path):
    path = tmp_path / "exercise_04.py"
    path.write_bytes(f"# -*- coding: cp1252 -*-\n# für\n{SOLUTION}".encode("cp1252"))
    assert begin(path).report().passed


def test_files_beside_the_exercise_are_no_modules_of_the_check(tmp_path):
    """Neither in the process that checks, nor in those that it starts."""
    path = tmp_path / "exercise_08.py"
    solution = (ROOT / "examples/solutions/solution_08.py").read_text(encoding="utf-8")
    path.write_text(solution.replace("import statistics", "import statistics\n\nfrom mine import warm_up"))
    (tmp_path / "mine.py").write_text("warm_up = 20\n")
    for name in ("copy", "json", "numpy", "queue", "random", "socket", "statistics", "torch", "traceback"):
        (tmp_path / f"{name}.py").write_text("raise ValueError('mine')\n")
    command = [sys.executable, "-m", "gpulesson", "check", path.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "Rename copy.py, which is beside it: a module has that name." in said and "mine.py" not in said
    assert "The check takes the module, and python exercise_08.py takes the file." in said


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "exercise_04.py")
    with pytest.raises(UsageError, match="is a pipe, not a file"):
        begin(tmp_path / "exercise_04.py")


def test_the_number_may_stand_in_the_text(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text('"""My exercise 4."""\n')
    check = begin(path)
    check.end()
    assert check.exercise == find(4)
