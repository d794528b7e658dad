"""The process that imports once and forks: what runs in a fork runs as in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpulesson.exercises import check
from gpulesson.exercises.process import warm as module
from gpulesson.exercises.process.warm import WarmProcess

pytestmark = pytest.mark.skipif(not module.POSSIBLE, reason="this system cannot fork safely")


@pytest.fixture(scope="module")
def light():
    """A warm process that has imported little, and finds this file."""
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with WarmProcess(["json", "no_such_module", "test_warm"], here) as process:
        yield process


def say() -> int:
    """Runs in a fork: prints where and what it is."""
    print(Path.cwd(), os.environ.get("COLOUR"), sys.argv, os.getpid() == os.getsid(0))
    print("“quoted”", file=sys.stderr)
    return 3


def linger() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    print("there", flush=True)
    time.sleep(1000)


def draw() -> None:
    import random

    print(random.random(), "json" in sys.modules)


def test_a_fork_has_its_own_folder_environment_and_streams(light, tmp_path):
    child = light.start("test_warm:say", folder=tmp_path, environment={"COLOUR": "red"}, stderr=True)
    out, error = child.communicate(1200)
    assert out.decode() == f"{tmp_path} red ['-c'] True\n" and error.decode() == "“quoted”\n"
    assert child.returncode == 3
    both = light.start("test_warm:say", folder=tmp_path)
    assert both.communicate(1200)[0].decode().endswith("“quoted”\n") and both.returncode == 3


def test_the_status_is_that_of_a_process(light, tmp_path):
    ends = {
        "sys:exit": [(0, 0), (7, 7), ("no", 1)],
        "os:_exit": [(5, 5)],
        "signal:raise_signal": [(int(signal.SIGTERM), -signal.SIGTERM)],
        "json:loads": [("{", 1)],
    }
    for function, cases in ends.items():
        for argument, status in cases:
            assert light.start(function, argument, folder=tmp_path).wait(1200) == status, function


def test_many_run_at_once_and_each_end_is_its_own(light, tmp_path):
    children = [light.start("sys:exit", number, folder=tmp_path) for number in range(20)]
    assert [child.wait(1200) for child in children] == list(range(20))
    assert len({child.pid for child in children}) == 20


def test_what_it_has_imported_is_there_and_its_random_numbers_are_not_shared(light, tmp_path):
    drawn = [light.start("test_warm:draw", folder=tmp_path).communicate(1200)[0].split() for _ in range(2)]
    assert drawn[0][0] != drawn[1][0] and drawn[0][1] == drawn[1][1] == b"True"


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def group_of(pid: int) -> int:
    """The process group, or 0 where the process has ended meanwhile."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_killed_is_gone_with_what_it_has_started(light, tmp_path):
    child = light.start("test_warm:linger", folder=tmp_path)
    assert child.stdout.readline() == b"there\n"
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    group = [pid for pid in numbers if not gone(pid) and group_of(pid) == child.pid]
    assert len(group) == 2
    child.kill()
    assert child.returncode == -signal.SIGKILL
    for _ in range(600):
        if all(map(gone, group)):
            return
        time.sleep(0.1)
    pytest.fail("a process is still there")


def test_what_is_killed_before_its_first_line_is_gone_too(light, tmp_path):
    for _ in range(20):
        child = light.start("time:sleep", 1000, folder=tmp_path)
        child.kill()
        assert child.returncode == -signal.SIGKILL


def test_closing_ends_what_still_runs(tmp_path):
    with WarmProcess(["json"]) as process:
        child = process.start("time:sleep", 1000, folder=tmp_path)
    assert child.returncode == -signal.SIGKILL
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir())) if descriptors.exists() else 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        process.start("time:sleep", 1, folder=tmp_path)
    if before:
        assert len(list(descriptors.iterdir())) == before, "descriptors are left open"


def test_closing_while_others_start_leaves_nothing_running(tmp_path):
    """As after Ctrl-C: each thread would go on with its next program."""
    statuses = []

    def work() -> None:
        while True:
            try:
                statuses.append(process.start("time:sleep", 1000, folder=tmp_path).wait(1200))
            except OSError:
                return

    with WarmProcess(["json"]) as process:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(process._started) < 3:
            time.sleep(0.01)
    for thread in threads:
        thread.join(1200)
    assert statuses == [-signal.SIGKILL] * 3


def test_a_warm_process_that_has_died_says_so(tmp_path):
    with WarmProcess(["json"]) as process:
        process._process.kill()
        process._process.wait()
        with pytest.raises(OSError):
            process.start("time:sleep", 1, folder=tmp_path)


def test_what_an_interpreter_reads_at_its_start_is_read_in_a_fork(warm, tmp_path):
    """Temporary files go where the environment says, though PyTorch's compiler has looked before."""
    (tmp_path / "mine.py").write_text("")
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    for bytecode, files in (("1", False), ("", True)):
        environment["PYTHONDONTWRITEBYTECODE"] = bytecode
        code = "import sys, tempfile; sys.path.insert(0, '.'); import mine; print(tempfile.gettempdir())"
        child = warm.start("builtins:exec", code, folder=tmp_path, environment=environment)
        assert child.communicate(1200)[0].decode().strip() == str(tmp_path)
        assert (tmp_path / "__pycache__").exists() == files


def test_one_thread_is_the_default(tmp_path):
    given = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    for environment, threads in ((given, "1"), (given | {"OMP_NUM_THREADS": "2"}, "2")):
        with WarmProcess(["os"], environment) as process:
            assert process.start("time:sleep", 0, folder=tmp_path).wait(1200) == 0  # it is there by now
            if sys.platform == "linux":
                variables = Path(f"/proc/{process._process.pid}/environ").read_bytes().split(b"\0")
                assert f"OMP_NUM_THREADS={threads}".encode() in variables


def test_where_no_fork_is_safe_it_says_so(monkeypatch):
    monkeypatch.setattr(module, "POSSIBLE", False)
    with pytest.raises(OSError, match=f"needs a system that forks safely; this is {sys.platform}"):
        WarmProcess()
    with module.warm_process() as process:
        assert process is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exercise_03", "exercise_04"])
def test_the_report_of_a_fork_is_that_of_a_real_start(warm, name):
    file = Path(__file__).parents[2] / "examples" / "exercises" / f"{name}.py"
    assert check(file, warm=warm).to_dict() == check(file).to_dict()
