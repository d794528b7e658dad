"""The day with a GPU: what runs, within which limits, what is refused, and what is copied at home."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gpu_day
import pytest
from _ext.recorded.files import Recording, RecordingError, write
from gpu_day import Day, Part, Refused, all_parts, collect, missing, stop
from projects import ROOT
from test_recorded_files import RUN

FACTS = {"gpu": RUN.gpu, "torch": RUN.torch, "code": "0123", "rehearsal": False, "parts": {}}
SIMULATED = "Practice GPU (simulated on the CPU)"
HANGS = "import time\nwhile True: time.sleep(1)"


@pytest.mark.parametrize("rehearse", [False, True], ids=["", "rehearsal"])
def test_the_parts_are_all_that_a_gpu_is_for(tmp_path, rehearse):
    found = all_parts(tmp_path, rehearse)
    names = [part.name for part in found]
    assert len(set(names)) == len(names) > 25
    assert {"test_graphs", "test_training", "word_for_word", "captured", "ladder"} <= {*names}
    assert not {"test_tensors", "test_recordings"} & {*names}, "files without tests for a GPU"
    lessons = [path.stem for path in sorted(ROOT.glob("examples/[0-9]*.py"))]
    assert [name for name in names if name[0].isdigit()] == lessons
    order = [names.index(name) for name in ("test_training", "word_for_word", lessons[0], "ladder")]
    assert order == sorted(order), "the most valuable first"
    assert all((ROOT / part.command[0]).is_file() for part in found)
    assert all(part.seconds < 8 * 60 for part in found), "each has to start in a run of nine minutes"
    recorder = next(part for part in found if part.name.startswith("01"))
    assert ("--rehearse" in recorder.command) is rehearse


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--minutes=1", "this needs a CUDA GPU (torch "),
        ("--collect=nowhere", "nowhere holds no state.json: it is not a folder that this program wrote"),
    ],
)
def test_it_refuses_in_one_sentence(tmp_path, argument, said):
    command = [sys.executable, gpu_day.__file__, argument, "--out", tmp_path / "out"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "" and not (tmp_path / "out").exists()
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1


@pytest.mark.thorough
@pytest.mark.slow
def test_a_rehearsal_runs_on_the_practice_gpu_and_continues(tmp_path):
    command = [sys.executable, gpu_day.__file__, "--rehearse", "--out", tmp_path, "--only", "test_interface"]
    first, second = (subprocess.run(command, cwd=tmp_path, capture_output=True, text=True) for _ in "12")
    assert first.returncode == second.returncode == 0, first.stderr
    assert "test_interface: at most" in first.stdout and "test_interface: at most" not in second.stdout
    state = json.loads((tmp_path / "state.json").read_text())
    assert state["gpu"] == SIMULATED and state["rehearsal"]
    assert "1 skipped" in (tmp_path / "logs" / "test_interface.log").read_text()  # it needs a real one
    assert 'tests="1"' in (tmp_path / "tests" / "test_interface.xml").read_text()


def test_what_a_machine_lacks_is_said(monkeypatch):
    monkeypatch.setattr(gpu_day.importlib.util, "find_spec", lambda name: None if name == "tqdm" else name)
    (packages,) = missing()
    assert packages.endswith("wheels: tqdm")


# -- running them


@pytest.fixture
def program(tmp_path, monkeypatch) -> Callable[..., Part]:
    """Makes a part of a program, which first writes its name down."""
    monkeypatch.setattr(gpu_day, "GRACE", 0.3)

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


def run(folder: Path, *todo: Part, seconds: float = 600) -> dict[str, str]:
    """Run parts; return their states."""
    day = Day(folder / "out", FACTS)
    day.run(todo, time.monotonic() + seconds)
    return {part.name: day.state_of(part.name) for part in todo}


@pytest.mark.slow
def test_a_part_that_fails_or_is_killed_or_hangs_stops_no_other_and_a_second_run_continues(program, tmp_path):
    todo = [
        program("fails", "print('it was me')\nraise SystemExit(3)"),
        program("killed", "import os; os.kill(os.getpid(), 9)"),
        program("hangs", HANGS, seconds=1),
        program("last", "print('well')", seconds=400),
    ]
    states = {"fails": "failed", "killed": "failed", "hangs": "stopped", "last": "done"}
    assert run(tmp_path, *todo) == states and ran(tmp_path) == [*states]
    written = json.loads((tmp_path / "out" / "state.json").read_text())
    says = [written["parts"][name]["says"] for name in ("fails", "killed", "last")]
    assert says == ["it was me", "ended by signal 9", "well"] and written["gpu"] == FACTS["gpu"]
    program("hangs")  # it does not hang any more
    assert run(tmp_path, *todo, program("new")) == {**states, "hangs": "done", "new": "done"}
    assert ran(tmp_path) == ["new", "hangs"], "what was stopped comes last"


@pytest.mark.parametrize("changed", ["code", "torch", "gpu", "rehearsal"])
def test_results_of_other_code_or_another_machine_need_another_folder(tmp_path, changed):
    (tmp_path / "state.json").write_text(json.dumps(FACTS))
    other = f"holds results of {changed} {FACTS[changed]}, not another; take another --out"
    with pytest.raises(Refused, match=other):
        Day(tmp_path, {**FACTS, changed: "another"})


def test_nothing_starts_that_has_too_little_time_left_unless_it_is_the_first(program, tmp_path):
    todo = [program("first", seconds=1e6), program("long", seconds=1e6), program("short")]
    assert run(tmp_path, *todo) == {"first": "done", "long": "", "short": "done"}
    assert run(tmp_path, *todo, seconds=0.5)["long"] == ""  # no time at all
    assert run(tmp_path, *todo)["long"] == "done"


def wait_for(file: Path) -> str:
    """Wait until a file is there and complete, that is, ends with a full stop."""
    while not (file.exists() and file.read_text().endswith(".")):
        time.sleep(0.01)
    return file.read_text().rstrip(".")


def test_a_part_may_write_down_what_it_has(tmp_path):
    file = tmp_path / "file"
    program = (
        f"import time\ntry:\n  open({str(file)!r}, 'w').write('begun.')\n  time.sleep(1000)\n"
        f"except KeyboardInterrupt:\n  open({str(file)!r}, 'w').write('written down.')"
    )
    process = subprocess.Popen([sys.executable, "-c", program], preexec_fn=gpu_day.lead_a_group)
    wait_for(file)
    stop(process)
    assert process.returncode == 0 and file.read_text() == "written down."


def test_ctrl_c_leaves_everything_written_and_nothing_running(program, tmp_path):
    ready = tmp_path / "ready"
    child = "import subprocess, sys, time\n"
    child += "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1)\n"
    part = program("hangs", f"{child}open({str(ready)!r}, 'w').write(f'{{child.pid}}.')\ntime.sleep(1000)")
    driver = (
        f"import sys, time; sys.path.insert(0, {str(Path(gpu_day.__file__).parent)!r})\n"
        "import gpu_day\nfrom pathlib import Path\n"
        f"day = gpu_day.Day(Path({str(tmp_path / 'out')!r}), {FACTS!r})\n"
        f"day.run([gpu_day.{part!r}], time.monotonic() + 600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", driver], stderr=subprocess.DEVNULL, preexec_fn=gpu_day.lead_a_group
    )
    pid = int(wait_for(ready))
    process.send_signal(signal.SIGINT)
    assert process.wait() != 0
    with pytest.raises(ProcessLookupError):  # it dies at once, or the test's time ends
        while True:
            os.kill(pid, 0)
            time.sleep(0.01)
    written = json.loads((tmp_path / "out" / "state.json").read_text())["parts"]
    assert {name: entry["state"] for name, entry in written.items()} == {"hangs": "stopped"}


# -- results that came back


@pytest.fixture
def day(tmp_path) -> Path:
    """The folder of a finished day, with a recording and a figure."""
    folder = tmp_path / "gpu_day"
    for name in ("benchmarks", "recordings"):
        (folder / name).mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps(FACTS))
    write(Recording("01_x", RUN, (), ()), {}, folder / "recordings")
    (folder / "benchmarks" / "ladder.json").write_text(json.dumps({"about": {"device": f"cuda: {RUN.gpu}"}}))
    return folder


def test_what_came_back_goes_to_its_places(day, tmp_path):
    home = tmp_path / "home"
    pictures = home / "docs" / "recordings" / "01_x"
    pictures.mkdir(parents=True)
    (pictures / "01-of-an-old-one.webp").touch()
    (day / "recordings" / "01_x").mkdir()
    (day / "recordings" / "01_x" / "02-new.webp").touch()
    copied = collect(day, home)
    assert set(copied) == {
        "docs/recordings/01_x.json",
        "benchmarks/results/gpu/ladder.json",
    }
    assert all((home / name).is_file() for name in copied)
    assert [path.name for path in pictures.iterdir()] == ["02-new.webp"]


@pytest.mark.parametrize("facts", [{"rehearsal": True}, {"gpu": SIMULATED}], ids=["marked", "by its name"])
def test_a_rehearsal_is_not_collected(day, tmp_path, facts):
    (day / "state.json").write_text(json.dumps({**FACTS, **facts}))
    with pytest.raises(Refused, match=r"a rehearsal on the practice GPU, .* nothing was copied"):
        collect(day, tmp_path / "home")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("device", [f"cuda: {SIMULATED}", "cpu: CPU"])
def test_a_simulated_or_a_cpu_figure_is_not_collected(day, tmp_path, device):
    (day / "benchmarks" / "ladder.json").write_text(json.dumps({"about": {"device": device}}))
    with pytest.raises(Refused, match=r"ladder.json was measured on .*, not on a GPU"):
        collect(day, tmp_path / "home")


def test_a_simulated_recording_is_not_collected(day, tmp_path):
    write(Recording("01_x", replace(RUN, gpu=SIMULATED), (), ()), {}, day / "recordings")
    with pytest.raises(RecordingError, match="expected a real GPU"):
        collect(day, tmp_path / "home")
    assert not (tmp_path / "home").exists()
