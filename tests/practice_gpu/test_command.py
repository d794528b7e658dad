"""``python -m practice_gpu``: what is run, and what it says to a command line that cannot be."""

import json
import os
import subprocess
import sys

import pytest
from sampling import some

from practice_gpu import command
from practice_gpu.command import main
from practice_gpu.processes import environment


@pytest.fixture
def run(monkeypatch):
    """Run the command; return the words and the settings that another Python would get."""
    found = []
    monkeypatch.setattr(os, "execve", lambda path, words, surroundings: found.append((words, surroundings)))
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda words, env: found.append((words, env)) or subprocess.CompletedProcess(words, 0),
    )

    def run(*words):
        main(words)
        (python, *others), surroundings = found[0]
        assert python == sys.executable
        return others, json.loads(surroundings[environment.VARIABLE])

    monkeypatch.setattr(sys, "orig_argv", ["python"])
    return run


DEFAULTS = {"memory": "8 GiB", "count": 1, "force": False, "report": False}


@pytest.mark.parametrize(
    ("words", "program", "settings"),
    [
        ([__file__], [__file__], {}),
        ([__file__, "--count", "3", "--", "-m", "--report"], None, {}),
        (["--count", "2", "--memory", "64 MiB", "-m", "pytest", "--count"], ["-m", "pytest", "--count"],
         {"count": 2, "memory": "64 MiB"}),
        (["--report", "--force", "--count=3", "-c", "pass"], ["-c", "pass"],
         {"report": True, "force": True, "count": 3}),
        (["-", "-x"], ["-", "-x"], {}),
    ],
)  # fmt: skip
def test_what_is_run(run, words, program, settings):
    assert run(*words) == (program or words, {**DEFAULTS, **settings})


def test_torchrun_brings_as_many_gpus_as_processes(run, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert run(__file__)[1] == {**DEFAULTS, "count": 3}


@pytest.mark.parametrize(("words", "count"), [(["--nproc", "4"], 4), (["--nproc=4", "--count", "2"], 2)])
def test_several_processes_are_launched_with_the_program_and_its_gpus(monkeypatch, words, count):
    found = []
    monkeypatch.setattr(command, "launch", lambda *given: found.append(given) or 7)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-O", "-m", "practice_gpu"])
    assert main([*words, "-m", "pack", "--nproc"]) == 7
    ((number, program, surroundings),) = found
    assert (number, program) == (4, [sys.executable, "-O", "-m", "pack", "--nproc"])
    assert json.loads(surroundings[environment.VARIABLE]) == {**DEFAULTS, "count": count}


@pytest.mark.parametrize(
    ("python", "kept"),
    [
        (["-O", "-u", "-W", "error", "-X", "dev", "-Xutf8", "-m", "practice_gpu"],
         ["-O", "-u", "-W", "error", "-X", "dev", "-Xutf8"]),
        (["-mpractice_gpu"], []),
        (["-B", "program.py", "-O"], ["-B"]),
    ],
)  # fmt: skip
def test_options_of_python_are_kept(run, monkeypatch, python, kept):
    monkeypatch.setattr(sys, "orig_argv", ["python", *python])
    assert run(__file__)[0] == [*kept, __file__]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is nothing to run; expected a script, -m module or -c code after the options"),
        (["--report"], "there is nothing to run"),
        (["-m"], "there is nothing after -m"),
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (
            ["-O", "x.py"],
            "unrecognized arguments: -O (options of Python itself come first: python -O -m practice_gpu)",
        ),
        (["--gpus=2", "x.py"], "unrecognized arguments: --gpus=2"),
        (["--count", "17", "x.py"], "'17' is not a number of devices from 1 to 16"),
        (["--count", "two", "x.py"], "'two' is not a number of devices from 1 to 16"),
        (["--memory", "8 QiB", "x.py"], "memory is '8 QiB'; expected"),
    ],
)
def test_what_cannot_be_run(run, capsys, words, message):
    with pytest.raises(SystemExit) as stopped:
        run(*words)
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_python_that_ignores_the_environment(run, capsys, monkeypatch):
    class Flags:
        ignore_environment = 1

    monkeypatch.setattr(sys, "flags", Flags)
    with pytest.raises(SystemExit):
        run(__file__)
    assert "-E or -I" in capsys.readouterr().err


@pytest.mark.slow
def test_a_module_with_a_report(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text(
        "import atexit\n"
        "atexit.register(lambda: print('in the end', x.device))\n"
        "import sys, torch\n"
        "from . import helper\n"
        "x = torch.ones(2, device='cuda')\n"
        "print(__package__, sys.argv[1:], helper.where)\n"
        "x.tolist()\n"
        "sys.exit(3)\n",
        encoding="utf-8",
    )
    (tmp_path / "pack" / "helper.py").write_text(
        "import torch\nwhere = torch.ones(1).cuda().device\n", encoding="utf-8"
    )
    words = ["-m", "practice_gpu", "--report", "-m", "pack", "--report"]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["pack ['--report'] cuda:0", "in the end cuda:0"], done.stderr
    assert done.returncode == 3
    assert done.stderr.startswith("Practice GPU: 2 copies") and ".tolist()" in done.stderr


UNUSED = {
    "import torch\nprint(torch.ones(2).sum())": True,
    "import torch\nprint(torch.ones(2).cuda().sum())": False,
    "import torch\nprint(torch.cuda.is_available())": True,
    "import torch\nraise ValueError": False,
    "import torch, multiprocessing\ndef work(): torch.ones(2).cuda()\n"
    "if __name__ == '__main__':\n"
    "    child = multiprocessing.get_context('spawn').Process(target=work)\n"
    "    child.start(), child.join()": False,
    "print('no PyTorch')": False,
}
"""Programs, and whether no tensor was on the GPU."""


@pytest.mark.slow
@pytest.mark.parametrize(("program", "said"), some(UNUSED.items(), every=len(UNUSED)))
def test_it_says_so_if_no_tensor_was_on_the_gpu(tmp_path, program, said):
    (tmp_path / "cpu.py").write_text(program, encoding="utf-8")
    words = ["-m", "practice_gpu", "--force", "cpu.py"]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    line = "Practice GPU: no tensor was ever on it. A script has to move its model and its batches, "
    line += '.to("cuda")'
    assert done.stderr.splitlines().count(line) == said, done.stderr
