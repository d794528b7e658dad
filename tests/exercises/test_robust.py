"""Programs that go wrong in every way: each gets a clear answer in bounded time and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpulesson.exercises import UsageError, check

pytestmark = pytest.mark.slow

POSIX = pytest.mark.skipif(os.name != "posix", reason="process groups are POSIX")


def only(report):
    """The single finding of a report."""
    (finding,) = report.findings
    assert not report.passed and finding.severity == "failure"
    assert finding.what and finding.why and finding.remedy
    assert finding.kind in str(report) and finding.kind in report._repr_html_()
    return finding


def written(folder: Path, text: str | bytes, name: str = "my_loop.py") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_an_endless_loop_is_stopped_and_its_line_named(tmp_path):
    file = written(tmp_path, "n = 0\nwhile True:\n    n += 1\n")
    finding = only(check(file, time_limit=2))
    assert finding.kind == "time" and finding.line in (2, 3) and "2 seconds" in finding.what


def test_an_endless_loop_that_catches_everything_is_stopped(tmp_path):
    text = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n"
    text += "    try:\n        x = 1\n    except BaseException:\n        pass\n"
    assert only(check(written(tmp_path, text), time_limit=2)).kind == "time"


def test_a_program_that_sleeps_is_stopped(tmp_path):
    finding = only(check(written(tmp_path, "import time\ntime.sleep(10_000)\n"), time_limit=5))
    assert (finding.kind, finding.line) == ("idle", 2) and "waited for 5 seconds" in finding.what


def test_the_limit_is_of_processor_time_not_of_the_clock(tmp_path):
    """So a busy machine stops no program: this one is computing for a third of its time."""
    text = "import time\nfor _ in range(10):\n    end = time.process_time() + 0.2\n"
    text += "    while time.process_time() < end:\n        pass\n    time.sleep(0.4)\nprint('through')\n"
    report = check(written(tmp_path, text), time_limit=4)
    assert report.passed and report.output == "through\n", str(report)


@POSIX
def test_the_processor_time_of_children_counts(tmp_path):
    text = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])\n"
    finding = only(check(written(tmp_path, text), time_limit=3))
    assert (finding.kind, finding.line) == ("time", 2) and "stopped after 3 seconds" in finding.what


@pytest.mark.skipif(sys.platform != "linux", reason="the bound on single allocations is Linux's")
@pytest.mark.parametrize(
    "text",
    [
        "kept = []\nwhile True:\n    kept.append(bytearray(10**8))\n",
        "import torch\nkept = []\nwhile True:  # in the loop\n    kept.append(torch.ones(10**8))\n",
        "import torch\ntorch.ones(10**12)\n",
    ],
    ids=["python", "torch", "at once"],
)
def test_endless_memory_is_bounded_and_its_line_named(tmp_path, text):
    finding = only(check(written(tmp_path, text), memory_limit=3 * 2**30))
    assert finding.kind == "memory" and finding.line == text.count("\n")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_taken_by_child_processes_counts(tmp_path):
    text = (
        "import subprocess, sys, time\n"
        "hog = 'import time; kept = bytearray(b\"1\" * 900_000_000); time.sleep(1000)'\n"
        "for _ in range(3):\n"
        "    subprocess.Popen([sys.executable, '-c', hog])\n"
        "time.sleep(1000)\n"
    )
    finding = only(check(written(tmp_path, text), memory_limit=2 * 2**30, time_limit=100))
    assert finding.kind == "memory" and "2 GiB" in finding.what


@pytest.mark.parametrize(
    ("call", "status"),
    [("sys.exit(3)", 3), ("sys.exit('no')", 1), ("exit(2)", 2), ("sys.exit(True)", 1)],
)
def test_sys_exit_is_named_with_its_line(tmp_path, call, status):
    finding = only(check(written(tmp_path, f"import sys\n\n{call}\n")))
    assert (finding.kind, finding.line) == ("exited", 3) and f"status {status}" in finding.what


def test_a_program_that_ends_with_status_0_is_checked_as_usual(tmp_path):
    solution = Path(__file__).parents[2] / "examples/solutions/solution_03.py"
    file = written(tmp_path, solution.read_text() + "\nraise SystemExit\n", "03_mine.py")
    assert check(file).passed


@pytest.mark.parametrize("call", ["os._exit(0)", "os._exit(7)", "os.abort()"])
def test_a_program_that_vanishes_has_not_passed(tmp_path, call):
    finding = only(check(written(tmp_path, f"import os\n{call}\n")))
    assert finding.kind == "vanished"


def test_nothing_that_a_program_prints_or_writes_passes_for_a_result(tmp_path):
    text = 'import json, os\nprint(json.dumps({"status": "ran", "trace": {}}), flush=True)\nos._exit(0)\n'
    assert only(check(written(tmp_path, text))).kind == "vanished"


@pytest.mark.parametrize(
    ("text", "line"), [("x = 1\nif x:\nprint(x)\n", 3), ("print('a'\nx = 2\n", 1), ("\tx = (\n", 1)]
)
def test_a_syntax_error_is_named_with_its_line(tmp_path, text, line):
    finding = only(check(written(tmp_path, text)))
    assert (finding.kind, finding.line) == ("syntax-error", line)


def test_an_error_of_the_program_s_own_is_named_with_its_line(tmp_path):
    file = written(tmp_path, "def inner():\n    return {}['loss']\n\n\ninner()\n")
    report = check(file)
    finding = only(report)
    assert (finding.kind, finding.line) == ("no-such-key", 2) and "loss" in finding.what
    assert "KeyError: 'loss'" in report.output and "runpy" not in report.output
    assert "gpulesson" not in report.output


def test_a_missing_file_a_folder_and_a_wrong_number(tmp_path):
    with pytest.raises(UsageError, match=r"there is no file .*nowhere\.py"):
        check(tmp_path / "nowhere.py")
    with pytest.raises(UsageError, match="is a folder"):
        check(tmp_path)
    with pytest.raises(UsageError, match="there is no exercise 99: the numbers are 01, 02,"):
        check(written(tmp_path, "x = 1\n"), 99)
    with pytest.raises(UsageError, match="more than 0"):
        check(written(tmp_path, "x = 1\n"), time_limit=0)


def test_an_empty_file_has_not_trained(tmp_path):
    assert only(check(written(tmp_path, ""), 4)).kind == "no-backward"


@pytest.mark.parametrize(
    "message", ["No module named 'torch'", "libcudart.so.13: cannot open shared object file"]
)
def test_no_torch(tmp_path, monkeypatch, message):
    (tmp_path / "stub" / "torch").mkdir(parents=True)
    (tmp_path / "stub" / "torch" / "__init__.py").write_text(f"raise ImportError({message!r})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stub"))
    finding = only(check(written(tmp_path, "import torch\n"), 4))
    assert finding.kind == "no-torch" and message in finding.what


def test_the_command_line_itself_needs_no_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    file = written(tmp_path, "x = 1\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "gpulesson"]
    done = subprocess.run(
        [*command, "check", "04", str(file)], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 1 and "no torch here" in done.stdout, done.stderr
    done = subprocess.run([*command, "lessons"], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0 and "04  The training loop on a device" in done.stdout, done.stderr


def test_a_megabyte_of_output_is_cut_and_the_rest_is_checked(tmp_path):
    text = "for i in range(20_000):\n    print(i, 'x' * 60)\nprint('the end')\n"
    text += "print('y' * 1_000_000)\nprint('really')\n"
    report = check(written(tmp_path, text))
    assert report.passed and len(report.output) < 50_000
    assert report.output.startswith("0 xxx") and report.output.endswith("really\n")
    assert "bytes left out" in report.output


def test_a_file_that_is_not_utf_8(tmp_path):
    finding = only(check(written(tmp_path, b"x = 1\nname = 'M\xfcller'\n")))
    assert (finding.kind, finding.line) == ("not-text", 2)
    assert check(written(tmp_path, b"# coding: latin-1\nname = 'M\xfcller'\nprint(name)\n")).passed
    assert only(check(written(tmp_path, b"\x00\x01\x02"))).kind in ("syntax-error", "error")


def test_a_program_that_asks_for_input(tmp_path):
    finding = only(check(written(tmp_path, "print('hello')\nrate = float(input('learning rate? '))\n")))
    assert (finding.kind, finding.line) == ("asks-for-input", 2)


@POSIX
def test_processes_that_a_program_leaves_behind_are_ended(tmp_path):
    note = tmp_path / "pid"
    text = (
        "import os, subprocess, sys\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(note)!r}, 'w').write(str(other.pid))\n"
        "print('done')\n"
    )
    report = check(written(tmp_path, text))
    assert report.passed and "done" in report.output
    pid = int(note.read_text())
    for _ in range(6000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the process is still there")


@POSIX
def test_a_program_that_forks_is_checked_once(tmp_path):
    text = "import os, sys\npid = os.fork()\nsys.stdout.write('child\\n' if pid == 0 else 'parent\\n')\n"
    text += "if pid:\n    os.waitpid(pid, 0)\n"
    report = check(written(tmp_path, text))
    assert report.passed and sorted(report.output.split()) == ["child", "parent"]


def test_threads_that_go_on_do_not_hold_it_up(tmp_path):
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\nprint('done')\n"
    assert check(written(tmp_path, text), time_limit=30).passed


@pytest.mark.parametrize("start", ["real", "fork"])
def test_the_learners_folder_stays_as_it_was_and_modules_next_to_the_file_are_found(tmp_path, warm, start):
    (tmp_path / "mine.py").write_text("RATE = 0.5\n")
    text = "from pathlib import Path\nimport mine\nPath('scratch.txt').write_text('x')\nprint(mine.RATE)\n"
    text += "import tempfile\nprint(tempfile.gettempdir() == str(Path.cwd()))\n"
    report = check(written(tmp_path, text), warm=warm if start == "fork" else None)
    assert report.passed and report.output == "0.5\nTrue\n", str(report)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "data") == [
        "mine.py",
        "my_loop.py",
    ]


def test_a_file_named_like_a_module_of_python_does_not_break_the_check(tmp_path):
    for name in ("random", "json", "argparse", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')\n")
    file = written(tmp_path, "import random\nprint(random.Random(0).random() < 1)\n")
    command = [sys.executable, "-m", "gpulesson", "check", file.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "the wrong one" not in done.stdout + done.stderr, (
        done.stdout + done.stderr
    )


@pytest.mark.parametrize("home", [None, "/proc"])
def test_a_home_that_is_not_there_or_cannot_be_written(tmp_path, home):
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_DATA_HOME")}
    environment |= {} if home is None else {"HOME": home}
    environment.pop("GPULESSON_PROGRESS", None)
    solution = Path(__file__).parents[2] / "examples/solutions/solution_01.py"
    command = [sys.executable, "-m", "gpulesson", "check", str(solution)]
    if home is None:
        environment["GPULESSON_PROGRESS"] = str(tmp_path / "progress.json")  # else it is this user's own
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert ("could not be written" in done.stderr) == (home is not None)


def test_the_device_that_the_environment_names_does_not_decide(monkeypatch):
    monkeypatch.setenv("GPULESSON_DEVICE", "cpu")
    solution = Path(__file__).parents[2] / "examples/solutions/solution_03.py"
    assert check(solution).passed
