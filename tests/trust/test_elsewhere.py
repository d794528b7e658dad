"""What one device or one PyTorch saved, another resumes: with equal content."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

RUN = "import sys, runs; getattr(runs, sys.argv[1])(*sys.argv[2:])"

pytestmark = pytest.mark.slow


def test_cpu_to_practice(tally, warm, tmp_path):
    def forked(function, folder, device):
        child = warm.start(f"runs:{function}", str(folder), device, folder=folder, environment=NO_GPU)
        return child.communicate()[0]

    there_and_back(tally, tmp_path, (forked, "cpu"), (forked, "cuda"))


NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}


def test_cpu_to_gpu(tally, surroundings, tmp_path):
    if not torch.cuda.is_available() or "simulated" in torch.cuda.get_device_name():
        pytest.skip("no GPU")
    tally.notes.append(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__.partition('+')[0]}")
    there_and_back(tally, tmp_path, (python(surroundings), "cpu"), (python(surroundings), "cuda"))


def test_other_pytorch(tally, request, surroundings, tmp_path):
    if not (other := request.config.getoption("--other-python", None)):
        pytest.skip("no other PyTorch")
    found = subprocess.run(
        [other, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True
    )
    tally.notes.append(f"PyTorch {found.stdout.strip().partition('+')[0]}")
    there_and_back(tally, tmp_path, (python(surroundings, other), "cpu"), (python(surroundings), "cpu"))


def python(surroundings, executable=sys.executable):
    """Run a function of runs.py with an interpreter."""

    def call(function, folder, device):
        done = subprocess.run(
            [executable, "-c", RUN, function, str(folder), device],
            env=surroundings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout

    return call


def there_and_back(tally, tmp_path, here, there):
    for number, ((save, first), (resume, second)) in enumerate([(here, there), (there, here)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        problems = save("save_some", folder, first)
        assert (folder / "digests.json").exists(), problems
        output = resume("resume_some", folder, second)
        told = [line.removeprefix("told ") for line in output.splitlines() if line.startswith("told ")]
        assert told, output
        for line in told:
            tally.count("" if line.endswith(": equal") else line)
        if len(told) < 20:
            tally.count(output[-500:])
