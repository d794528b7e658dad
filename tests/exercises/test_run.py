"""How a learner's program is run, apart from running it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpulesson.exercises.process import run


@pytest.mark.parametrize("name", ["TMPDIR", "TEMP", "TMP"])
def test_temporary_files_go_into_the_programs_own_folder(tmp_path, name):
    environment = run._environment(tmp_path, gpu=True)
    only = {key: value for key, value in environment.items() if key not in {"TMPDIR", "TEMP", "TMP"} - {name}}
    program = "import tempfile; print(tempfile.gettempdir())"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=only, capture_output=True, text=True, timeout=1200, check=True)
    assert Path(done.stdout.strip()) == tmp_path != Path(tempfile.gettempdir())


def test_a_machine_without_a_gpu_hides_it_by_a_number_that_no_gpu_has(tmp_path):
    assert run._environment(tmp_path, gpu=False)["CUDA_VISIBLE_DEVICES"] == "-1"
    seen = run._environment(tmp_path, gpu=True).get("CUDA_VISIBLE_DEVICES")
    assert seen == os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("text", "seconds", "resident"),
    [
        ("  0:00.05   1024\n", 0.05, 2**20),
        ("1:02.50 7", 62.5, 7 * 1024),
        ("1:00:01.00 1", 3601, 1024),
        ("", 0, 0),
    ],
)
def test_what_ps_says_of_a_process_on_macos(text, seconds, resident):
    assert run.told_by_ps(text) == (seconds, resident)


def test_without_process_groups_the_whole_tree_is_ended(monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    commands = []
    with monkeypatch.context() as patched:
        patched.setattr(run.os, "name", "nt")
        patched.setattr(run.subprocess, "run", lambda command, **options: commands.append(command))
        run._end(process, "no run")
    assert commands == [["taskkill", "/T", "/F", "/PID", str(process.pid)]]
    assert process.returncode
