"""Functions of a notebook, checked where they are."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

import gpulesson
from gpulesson_tools.exercises import UsageError
from gpulesson_tools.exercises.runner import MEMORY, bounded
from practice_gpu import practice_gpu
from practice_gpu.session import Session

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULESSON_PROGRESS", str(tmp_path / "progress.json"))


def solved(number: str) -> dict:
    path = ROOT / f"examples/solutions/solution_{number}.py"
    space: dict = {"__name__": "__main__"}
    exec(compile(path.read_text(encoding="utf-8"), f"<cell of {number}>", "exec"), space)
    return space


@pytest.mark.slow
def test_right_functions_pass_and_wrong_ones_are_told_the_same_as_in_a_file():
    space = solved("04")
    names = ("train_step", "accuracy", "run")
    assert gpulesson.check(4, **{name: space[name] for name in names}).passed
    right = space["accuracy"]
    space["accuracy"] = lambda *args: 100 * right(*args)
    report = gpulesson.check(4, **{name: space[name] for name in names})
    assert report.kinds == ("accuracy scale=percent",)
    assert space["accuracy"] is not right, "what the cell has defined stays"


def test_the_answer_is_a_table_in_a_notebook():
    space = solved("04")
    report = gpulesson.check(4, train_step=space["train_step"], accuracy=lambda *_: 1 / 0)
    shown = report._repr_html_()
    assert re.findall(r"<tr><td>(.)</td><td><code>(\w+)</code>", shown) == [
        ("✓", "train_step"),
        ("✗", "accuracy"),
        ("·", "run"),
    ]
    assert "It stops: ZeroDivisionError" in shown and "<li>" in shown
    assert repr(report) == str(report), "a terminal shows it as text"


def test_slips_are_read_in_the_cells_that_define_the_functions():
    shell = InteractiveShell.instance()
    code = (ROOT / "examples/solutions/solution_04.py").read_text(encoding="utf-8")
    try:
        for cell in ("%time", code.replace("loss.backward()", "loss.backward")):
            shell.run_cell(cell, store_history=True).raise_error()
        report = gpulesson.check(4, train_step=shell.user_ns["train_step"])
    finally:
        InteractiveShell.clear_instance()
    assert report.kinds[0] == "train_step not called"
    assert "line 14: loss.backward is only named here" in report._repr_html_()


def test_files_beside_a_notebook_are_no_modules_of_the_check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    for name in ("random", "queue", "statistics"):
        Path(f"{name}.py").write_text("raise ValueError('mine')\n")
    code = (ROOT / "examples/solutions/solution_08.py").read_text(encoding="utf-8")
    path = Path("exercise_08.py")
    path.write_text(code, encoding="utf-8")
    report = gpulesson.check(path)
    assert report.passed and "Rename queue.py" in report.text(), report


def test_nothing_of_the_notebook_changes():
    torch.manual_seed(7)
    drawn = torch.random.get_rng_state()

    def train_step(*_):
        torch.set_grad_enabled(False)
        torch.manual_seed(0)

    gpulesson.check(4, train_step=train_step)
    assert torch.is_grad_enabled() and torch.equal(torch.random.get_rng_state(), drawn)
    assert not torch.cuda.is_available() or "simulated" not in torch.cuda.get_device_name()


def test_it_works_inside_a_practice_gpu_that_is_open():
    space = solved("04")
    with practice_gpu(force=True):
        assert gpulesson.check(4, accuracy=space["accuracy"]).answers[1].state == "done"
        assert "simulated" in torch.cuda.get_device_name()


@pytest.mark.slow
def test_a_function_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setattr("gpulesson_tools.exercises.checker.SECONDS", 1.0)

    def accuracy(*_):
        while True:
            pass

    begun = time.monotonic()
    report = gpulesson.check(4, accuracy=accuracy)
    assert report.kinds == ("train_step missing", "accuracy time", "run missing")
    assert time.monotonic() - begun < 60


@pytest.mark.slow
def test_a_practice_gpu_is_opened_and_closed_as_a_whole(monkeypatch):
    """A limit that ends meanwhile would leave PyTorch with half of its names replaced."""

    def slowly(close):
        until = time.process_time() + 1.5
        while time.process_time() < until:
            pass
        close()

    close = Session.close
    monkeypatch.setattr(Session, "close", lambda session: slowly(lambda: close(session)))
    generator = torch.Generator
    with bounded(0.5, MEMORY), practice_gpu(force=True):
        assert torch.cuda.is_available()
    assert torch.Generator is generator


def test_memory_is_bounded():
    report = gpulesson.check(4, accuracy=lambda *_: bytearray(2**45))
    assert "MemoryError" in report.answers[1].findings[0].says
    bytearray(2**30)


def test_names_that_the_exercise_does_not_have():
    with pytest.raises(UsageError, match="exercise 04 has no trian: it asks for train_step, accuracy, run"):
        gpulesson.check(4, trian=print)
    with pytest.raises(UsageError, match="there is no exercise 99"):
        gpulesson.check(99)


@pytest.mark.parametrize("number", ["06", "14"])
def test_what_needs_processes_is_checked_by_the_cells_that_define_it(number):
    torch.ones(3, requires_grad=True).sum().backward()  # from now on a fork of this process could not
    shell = InteractiveShell.instance()
    try:
        code = (ROOT / f"examples/solutions/solution_{number}.py").read_text(encoding="utf-8")
        imports, _, rest = code.partition("\n\n\ndef ")
        for cell in (imports, f"def {rest}"):
            shell.run_cell(cell, store_history=True).raise_error()
        names = [answer.name for answer in gpulesson.check(number).answers]
        report = gpulesson.check(number, **{name: shell.user_ns[name] for name in names})
        assert report.passed, report
    finally:
        InteractiveShell.clear_instance()
