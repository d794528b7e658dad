"""The pytest fixture, in a project of somebody else's."""

import subprocess
import sys

import pytest

TESTS = """
import pytest
import torch
from torch import zeros  # imported before the fixture is there

def test_sees_a_gpu(practice_gpu):
    assert torch.cuda.is_available()
    assert zeros(2, device="cuda").is_cuda
    assert practice_gpu.memory().allocated >= 0

@pytest.mark.practice_gpu(memory="1 MiB", count=2)
def test_options(practice_gpu):
    assert torch.cuda.device_count() == 2
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(2**20, device="cuda:1")

def test_without_it_there_is_none():
    assert not hasattr(torch.cuda.is_available, "__wrapped__")
    assert torch.cuda.get_device_name.__module__ == "torch.cuda"

def test_fails_as_on_cuda(practice_gpu):
    torch.ones(2, device="cuda") + torch.ones(2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("registered", [True, False], ids=["entry point", "-p"])
def test_the_fixture(tmp_path, registered):
    from importlib.metadata import entry_points

    found = [
        entry for entry in entry_points(group="pytest11") if entry.value == "gpulesson.practice.pytest_plugin"
    ]
    if registered and not found:
        pytest.skip("gpulesson is not installed with its entry points here")
    (tmp_path / "test_theirs.py").write_text(TESTS, encoding="utf-8")
    plugin = [] if found else ["-p", "gpulesson.practice.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", *plugin]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "test_fails_as_on_cuda" in done.stdout
    assert 'torch.ones(2, device="cuda") + torch.ones(2)' in done.stdout
    assert "rules.py" not in done.stdout
    assert "operators.py" not in done.stdout


def test_the_plugin_alone_imports_no_torch():
    code = "import sys, gpulesson.practice.pytest_plugin; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
