"""Programs within limits: one that hangs, fails or is killed stops no other, and a second run goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import parts
import pytest
from parts import Day, Part, Refused, stop

FACTS = {"gpu": "Pretended GPU 9000", "torch": "9.8.7", "code": "0123", "rehearsal": False}
HANGS = "import time\nwhile True: time.sleep(1)"


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(parts, "GRACE", 0.3)


@pytest.fixture
def program(tmp_path) -> Callable[..., Part]:
    """Makes a part of a program, which first writes its name down."""

    def make(name: str, code: str = "", seconds: float = 10) -> Part:
        script = tmp_path / f"{name}.py"
        script.write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n{code}")
        return Part(name, [str(script)], seconds, f"results/{name}")

    return make


def ran(folder: Path) -> list[str]:
    """The names of what ran since the last call."""
    file = folder / "ran"
    names = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return names


def run(day: Day, *todo: Part, seconds: float = 600) -> dict[str, str]:
    """Run parts; return their states."""
    day.run(todo, time.monotonic() + seconds)
    return {part.name: day.state_of(part.name) for part in todo}


@pytest.mark.slow
def test_a_part_that_fails_or_is_killed_or_hangs_stops_no_other(program, tmp_path):
    day = Day(tmp_path / "out", FACTS)
    states = run(
        day,
        program("fails", "print('it was me')\nraise SystemExit(3)"),
        program("killed", "import os; os.kill(os.getpid(), 9)"),
        program("hangs", HANGS, seconds=1),
        program("last", "print('well')", seconds=400),
    )
    assert states == {"fails": "failed", "killed": "failed", "hangs": "stopped", "last": "done"}
    says = [day.done[name]["says"] for name in ("fails", "killed", "last")]
    assert says == ["it was me", "ended by signal 9", "well"]
    written = json.loads((tmp_path / "out" / "state.json").read_text())
    assert written["parts"] == day.done and written["gpu"] == FACTS["gpu"]
    table = [line.split()[:2] for line in day.summary([program("fails"), program("new")])]
    assert table == [["fails", "failed"], ["new", "to"]]


@pytest.mark.slow
def test_a_second_run_does_what_is_left_and_what_was_stopped_last(program, tmp_path):
    todo = [program("hangs", HANGS, seconds=1), program("fails", "1 / 0"), program("done"), program("new")]
    run(Day(tmp_path / "out", FACTS), *todo[:3], program("long", seconds=300))
    assert ran(tmp_path) == ["hangs", "fails", "done", "long"]
    program("hangs")  # it does not hang any more
    assert set(run(Day(tmp_path / "out", FACTS), *todo).values()) == {"done", "failed"}
    assert ran(tmp_path) == ["new", "hangs"]
    run(Day(tmp_path / "out", FACTS), *todo)
    assert ran(tmp_path) == []


@pytest.mark.parametrize("changed", ["code", "torch", "gpu", "rehearsal"])
def test_results_of_other_code_or_another_machine_need_another_folder(program, tmp_path, changed):
    run(Day(tmp_path / "out", FACTS), program("part"))
    other = f"holds results of {changed} {FACTS[changed]}, not another; take another --out"
    with pytest.raises(Refused, match=other):
        Day(tmp_path / "out", {**FACTS, changed: "another"})


def test_nothing_begins_that_has_too_little_time_left_unless_it_is_the_first(program, tmp_path):
    todo = [program("first", seconds=1e6), program("long", seconds=1e6), program("short")]
    assert run(Day(tmp_path / "out", FACTS), *todo) == {"first": "done", "long": "", "short": "done"}
    assert run(Day(tmp_path / "out", FACTS), *todo, seconds=0.5)["long"] == ""  # no time at all
    assert run(Day(tmp_path / "out", FACTS), *todo)["long"] == "done"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def wait_for(file: Path) -> str:
    """Wait until a file is there and complete, that is, ends with a full stop."""
    while not (file.exists() and file.read_text().endswith(".")):
        time.sleep(0.01)
    return file.read_text().rstrip(".")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the mark of a process is found in /proc")
def test_a_part_is_ended_with_what_left_its_group(tmp_path):
    file = tmp_path / "pid"
    program = (
        "import os, signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"if os.fork() == 0: os.setsid(); open({str(file)!r}, 'w').write(f'{{os.getpid()}}.')\n{HANGS}"
    )
    environment = {**os.environ, parts.MARK: str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, preexec_fn=parts.lead_a_group
    )
    child = int(wait_for(file))
    assert alive(child)
    stop(process, str(tmp_path))
    assert process.returncode == -signal.SIGKILL
    while alive(child):  # it dies at once, or the test's time ends
        time.sleep(0.01)


def test_a_part_may_write_down_what_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "GRACE", 600)
    file = tmp_path / "file"
    program = (
        f"import time\ntry:\n  open({str(file)!r}, 'w').write('begun.')\n  time.sleep(1000)\n"
        f"except KeyboardInterrupt:\n  open({str(file)!r}, 'w').write('written down.')"
    )
    process = subprocess.Popen([sys.executable, "-c", program], preexec_fn=parts.lead_a_group)
    wait_for(file)
    stop(process, str(tmp_path))
    assert process.returncode == 0 and file.read_text() == "written down."


def test_ctrl_c_leaves_everything_written_and_nothing_running(program, tmp_path):
    ready = tmp_path / "ready"
    first = program("first", "print('well')")
    part = program("hangs", f"import os\nopen({str(ready)!r}, 'w').write(f'{{os.getpid()}}.')\n{HANGS}")
    driver = (
        f"import pathlib, sys, time; sys.path.insert(0, {str(Path(parts.__file__).parent)!r}); import parts\n"
        f"day = parts.Day(pathlib.Path({str(tmp_path / 'out')!r}), {FACTS!r})\n"
        f"day.run([parts.{first!r}, parts.{part!r}], time.monotonic() + 600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", driver], stderr=subprocess.DEVNULL, preexec_fn=parts.lead_a_group
    )
    pid = int(wait_for(ready))
    process.send_signal(signal.SIGINT)
    assert process.wait() != 0 and not alive(pid)
    written = json.loads((tmp_path / "out" / "state.json").read_text())["parts"]
    assert {name: entry["state"] for name, entry in written.items()} == {"first": "done", "hangs": "stopped"}


def test_the_archive_has_all_that_is_there(program, tmp_path):
    pack = tmp_path / "elsewhere" / "day.tar.gz"
    part = program("part", f"open({str(tmp_path / 'out' / 'results' / 'part')!r}, 'w').write('result')")
    run(Day(tmp_path / "out", FACTS, pack), part)
    with tarfile.open(pack) as archive:
        names = set(archive.getnames())
    assert {"gpu_day/state.json", "gpu_day/logs/part.log", "gpu_day/results/part"} <= names
    assert not list(tmp_path.rglob("*.part"))
