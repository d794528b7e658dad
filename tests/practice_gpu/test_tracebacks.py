"""Tracebacks end where they would with CUDA: in the learner's line, or in PyTorch's, never in ours."""

import logging
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch

import practice_gpu as practice
from practice_gpu import practice_gpu

OURS = str(Path(practice.__file__).parent)


def frames(error):
    return [entry.filename for entry in traceback.extract_tb(error.__traceback__)]


def mistake():
    return torch.ones(2, device="cuda") + torch.ones(2)


MISTAKES = [
    mistake,
    lambda: torch.ones(2, device="cuda").numpy(),
    lambda: torch.ones(2).to("cuda:5"),
    lambda: torch.zeros(2**50, device="cuda"),
    lambda: torch.ones(2, device="cuda").pin_memory(),
    lambda: torch.rand(2, device="cuda", generator=torch.Generator()),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_outside_the_context_it_ends_in_the_learners_line(number):
    with pytest.raises(Exception) as caught, practice_gpu(force=True):
        MISTAKES[number]()
    found = frames(caught.value)
    assert found[-1] == __file__
    assert not any(name.startswith(OURS) for name in found)


def test_in_a_module_it_ends_in_pytorchs_line_as_with_cuda():
    with pytest.raises(RuntimeError) as caught, practice_gpu(force=True):
        torch.nn.Linear(2, 2).cuda()(torch.ones(1, 2))
    found = frames(caught.value)
    assert Path(found[-1]).name == "linear.py"
    assert not any(name.startswith(OURS) for name in found)


def test_in_backward():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient + torch.ones(2)

    with pytest.raises(RuntimeError) as caught, practice_gpu(force=True):
        Wrong.apply(torch.ones(2, device="cuda", requires_grad=True)).sum().backward()
    assert frames(caught.value)[-1] == __file__
    assert not any(name.startswith(OURS) for name in frames(caught.value))


def test_inside_the_context_python_shows_it_trimmed(caplog):
    with practice_gpu(force=True):
        try:
            mistake()
        except RuntimeError as error:
            extracted = traceback.extract_tb(error.__traceback__)
            assert extracted[-1].filename == __file__
            shown = traceback.format_exc()
            assert frames(error)[-1] == __file__
            logging.getLogger("lesson").exception("oops")
    for text in (shown, caplog.text):
        assert "return torch.ones(2, device=" in text
        assert OURS not in text
        assert "at least two devices" in text


def test_an_error_that_came_from_another_is_trimmed_too():
    with pytest.raises(ValueError) as caught, practice_gpu(force=True):
        try:
            mistake()
        except RuntimeError as error:
            raise ValueError("wrapped") from error
    assert not any(name.startswith(OURS) for name in frames(caught.value.__cause__))


def test_an_error_of_the_learners_own_keeps_its_frames():
    def inner():
        return {}["missing"]

    with pytest.raises(KeyError) as caught, practice_gpu(force=True):
        torch.ones(2, device="cuda")
        inner()
    assert [entry.name for entry in traceback.extract_tb(caught.value.__traceback__)][-1] == "inner"


def test_a_decorated_function():
    @practice_gpu(force=True)
    def work():
        mistake()

    with pytest.raises(RuntimeError) as caught:
        work()
    assert not any(name.startswith(OURS) for name in frames(caught.value))
    assert frames(caught.value)[-1] == __file__


UNCAUGHT = """
import threading, torch
import practice_gpu
practice_gpu.start(force=True)
thread = threading.Thread(target=lambda: torch.ones(2, device="cuda").numpy())
thread.start(), thread.join()
torch.nn.Linear(2, 2).cuda()(torch.ones(1, 2))
"""


@pytest.mark.slow
def test_uncaught_after_start_it_is_shown_trimmed():
    done = subprocess.run([sys.executable, "-c", UNCAUGHT], capture_output=True, text=True)
    for text in ("can't convert cuda:0 device type tensor to numpy", "wrapper_CUDA_addmm", "linear.py"):
        assert text in done.stderr
    assert OURS not in done.stderr


@pytest.mark.slow
def test_in_ipython_ours_are_hidden():
    pytest.importorskip("IPython")
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell(); shell.colors = 'NoColor'\n"
        "shell.run_cell('import torch; import practice_gpu as practice; gpu = practice.start(force=True)')\n"
        "shell.run_cell('torch.ones(2, device=\"cuda\") + torch.ones(2)')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    shown = result.stdout + result.stderr
    assert "at least two devices, cuda:0 and cpu!" in shown
    assert "__torch_dispatch__" not in shown
    assert OURS not in shown
