"""The pytest fixture, in a project of somebody else's."""

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from processes import run
from sampling import some

from practice_gpu import command

FOUND = any(entry.value == "practice_gpu.pytest_plugin" for entry in entry_points(group="pytest11"))
PLUGIN = [] if FOUND else ["-p", "practice_gpu.pytest_plugin"]
"""Where the package is installed, pytest finds it."""


def test_the_plugin_alone_imports_no_torch():
    code = "import sys, practice_gpu.pytest_plugin; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run_pytest(warm, folder, *words):
    """Run pytest in a folder, in a fork that has PyTorch already."""
    words = [*PLUGIN, "-q", "-rs", "--strict-markers", "-p", "no:cacheprovider", *words]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    instead = ["-m", "pytest", *words]
    return run(warm, "pytest:main", words, instead=instead, folder=folder, environment=environment)


SUITE = """
import pytest
import torch
from torch import ones

HERE = torch.cuda.is_available()
KEPT = ones(512, device="cuda") if HERE else None

@pytest.mark.skipif(not HERE, reason="needs a GPU")
def test_one():
    assert (KEPT + ones(512, device="cuda").requires_grad_()).is_cuda
    assert torch.cuda.max_memory_allocated() > 2048

def test_two(practice_gpu):
    assert practice_gpu.events == ()
    assert torch.cuda.max_memory_allocated() == (2048 if HERE else 0)
    assert torch.cuda.device_count() == (2 if HERE else 1)

@pytest.mark.practice_gpu(memory="64 KiB", count=2)
def test_three(practice_gpu):
    assert torch.cuda.mem_get_info(1)[1] == 2**16
    with pytest.raises(torch.OutOfMemoryError):
        ones(2**20, device="cuda:1")

def test_four(practice_gpu):
    ones(2, device="cuda") + ones(2)

def test_without_it_there_is_what_there_was():
    assert torch.cuda.is_available() is HERE
"""


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True], ids=["the fixture alone", "--practice-gpu"])
def test_a_whole_run(warm, tmp_path, whole):
    (tmp_path / "conftest.py").write_text(
        "import torch\nHERE = torch.cuda.is_available()\n", encoding="utf-8"
    )
    (tmp_path / "test_theirs.py").write_text(SUITE, encoding="utf-8")
    words = ["--practice-gpu", "--practice-gpu-count", "2", "--practice-gpu-memory", "1 MiB"] if whole else []
    done = run_pytest(warm, tmp_path, *words)
    assert "1 failed, 3 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert re.search(r"^test_theirs\.py:\d+: RuntimeError$", done.stdout, re.MULTILINE), done.stdout
    assert "dispatch.py" not in done.stdout
    reason = "its marker asks for practice_gpu(memory='64 KiB', count=2" if whole else "needs a GPU"
    assert reason in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--practice-gpu-count", "17"], "--practice-gpu: count is 17; expected a number of devices from 1"),
        (["--practice-gpu-memory", "8 QiB"], "--practice-gpu: memory is '8 QiB'; expected"),
    ],
)
def test_options_that_are_not_understood(warm, tmp_path, words, message):
    done = run_pytest(warm, tmp_path, "--practice-gpu", *words)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert message in done.stdout + done.stderr


@pytest.mark.slow
def test_a_whole_run_by_two_workers(tmp_path):
    (tmp_path / "test_theirs.py").write_text(SUITE, encoding="utf-8")
    words = ["-q", "-n", "2", *PLUGIN, "--practice-gpu", "--practice-gpu-count", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert "1 failed, 3 passed, 1 skipped" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("place", some(["conftest.py", "test_project.py"], every=2))
def test_a_project_may_name_the_plugin_itself(tmp_path, place):
    """Where the package is only on the path, and no entry point names it."""
    plugin = 'pytest_plugins = ["practice_gpu.pytest_plugin"]\n'
    (tmp_path / "test_project.py").write_text("def test_gpu(practice_gpu):\n    assert practice_gpu.name\n")
    text = (tmp_path / place).read_text() if (tmp_path / place).exists() else ""
    (tmp_path / place).write_text(plugin + text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:practice_gpu"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


PAGE = Path(__file__).parents[2] / "docs" / "testing.rst"


def blocks(language):
    """Return the page's code, block by block."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(rf"^\.\. code-block:: {language}\n\n((?:   .*\n|\n)+)", text, re.MULTILINE)
    return [re.sub("^   ", "", block, flags=re.MULTILINE) for block in found]


@pytest.mark.slow
def test_the_tests_on_the_page_pass(warm, tmp_path):
    text = "\n".join(blocks("python"))
    (tmp_path / "test_page.py").write_text(text, encoding="utf-8")
    assert text.count("def test_") == 4
    done = run_pytest(warm, tmp_path)
    assert "3 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    _, option, _ = blocks("bash")
    assert option.startswith("python -m pytest ")
    done = run_pytest(warm, tmp_path, *option.split()[3:])
    assert "4 passed, 1 skipped" in done.stdout, done.stdout + done.stderr  # one asks for other GPUs


def test_the_commands_on_the_page_are_understood(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(command, "_program", lambda options, _: found.append(options) or ["-V"])
    monkeypatch.setattr(command, "launch", lambda *_: 0)
    monkeypatch.setattr(os, "execve", lambda *_: None)
    *_, commands = blocks("bash")
    for line in commands.splitlines()[:2]:
        assert line.startswith("python -m practice_gpu ")
        command.main(line.split()[3:])
    assert [(options.count, options.nproc, options.program) for options in found] == [
        (2, None, ["train.py", "--epochs", "1"]),
        (None, 2, ["train_ddp.py"]),
    ]


def test_the_workflow_on_the_page_runs_what_the_page_says():
    (workflow,) = blocks("yaml")
    *installs, project, last = re.findall(r"- run: (.*)", workflow)
    assert project.startswith("pip install . ")  # what the page cannot know
    assert last in blocks("bash")[1]
    page = PAGE.read_text(encoding="utf-8").replace("\\", "")
    for words in installs:
        assert f"   {words.partition(' ./')[0]}" in page.partition("On GitHub")[0]
