from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gpulesson.__main__ import main


def test_without_a_command_it_prints_the_report(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert torch.__version__ in printed and "NVIDIA driver" in printed
    assert "the practice GPU: python -m gpulesson practice script.py\n" in printed
    assert main(["report"]) == 0
    assert capsys.readouterr().out == printed


def test_it_says_which_device_the_lessons_choose(capsys, monkeypatch):
    monkeypatch.setenv("GPULESSON_DEVICE", "cpu")
    assert main([]) == 0
    assert "run on: cpu" in capsys.readouterr().out


def test_a_device_that_is_not_there_is_an_error_after_the_report(capsys, monkeypatch):
    monkeypatch.setenv("GPULESSON_DEVICE", "cuda:77")
    assert main([]) == 1
    printed = capsys.readouterr()
    assert torch.__version__ in printed.out  # the report helps most when something is wrong
    assert "'cuda:77' (from the environment variable GPULESSON_DEVICE)" in printed.err


def test_practice_really_runs_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\nprint(sys.argv[1:], torch.ones(3, device='cuda').device)\nsys.exit(5)\n"
    )
    command = [sys.executable, "-m", "gpulesson", "practice", str(script), "--epochs", "3"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert run.stdout.split("\n")[0] == "['--epochs', '3'] cuda:0", run.stderr
    assert run.returncode == 5


def test_an_unknown_command_shows_the_known_ones(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["reprot"])
    assert stopped.value.code == 2
    assert "report" in capsys.readouterr().err


@pytest.mark.slow
def test_as_a_program():
    run = subprocess.run([sys.executable, "-m", "gpulesson"], capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stderr
    assert torch.__version__ in run.stdout
    assert run.stderr == ""
