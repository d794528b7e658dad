"""What a run may not touch, what the next one finds, and how loops end early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from gpulesson_tools.porting import instrument
from gpulesson_tools.porting.command import _ended_by_signals
from gpulesson_tools.porting.facts import DIED, Failure, Spot
from gpulesson_tools.porting.run import LARGEST, NoTrial, Runs
from gpulesson_tools.programs.arguments import Program

TRAIN = """
import torch
w = torch.ones(3, requires_grad=True)
for step in range(4):
    (w * w).sum().backward()
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Runs a script beside some files; afterwards the folder has to be what it was."""
    place = tmp_path / "reader"
    (place / "data" / "deep").mkdir(parents=True)
    (place / "data" / "deep" / "a.txt").write_text("old")
    (place / "model.pt").write_text("old")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.txt").write_text("old")
    (place / "linked").symlink_to(tmp_path / "elsewhere")
    (place / "linked" / "back").symlink_to(place)
    (place / "again").symlink_to(place / "data")
    monkeypatch.chdir(place)
    open_now = []

    def begin(text: str, **options):
        Path("train.py").write_text(text)
        options.setdefault("limit", 60.0)
        open_now.append(Runs(Path("train.py"), Program("train.py"), **options).__enter__())
        return open_now[-1]

    before = _everything(tmp_path)
    yield begin
    (place / "train.py").unlink()
    for each in open_now:
        each.__exit__()
        assert not each._place.exists()
    assert _everything(tmp_path) == before


def _everything(folder: Path) -> dict[str, object]:
    found = {}
    for path in folder.rglob("*"):
        state = path.lstat()
        content = path.read_text() if path.is_file() else path.is_symlink() and path.readlink()
        found[str(path)] = (state.st_mode, state.st_uid, content)
    return found


@pytest.mark.slow
def test_what_a_script_writes_stays_in_its_copy_for_that_run_alone(runs):
    writes = """
import os, pathlib, shutil, torch
assert pathlib.Path("again/deep/a.txt").read_text() == "old"
assert not pathlib.Path("fresh").exists() and pathlib.Path("data/deep/a.txt").read_text() == "old"
torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), "model.pt")
torch.save([1], pathlib.Path(__file__).resolve().parent / "data" / "other.pt")
torch.save(obj=[1], f="named.pt")
os.system("echo new > linked/b.txt; mkdir fresh; rm linked/back; ln -s /nowhere linked/back")
pathlib.Path("data/deep/a.txt").write_text("new")
shutil.rmtree("data/deep")
pathlib.Path("data/deep").write_text("a file in the place of a folder")
"""
    both = runs(writes + TRAIN)
    for _ in range(2):
        record = both.run({}, gpu=False)
        assert record.failure is None, record.failure.text
        assert len(record.losses) == 4


WRITES = [
    "open({!r}, 'w')",
    "torch.save([1], {!r})",
    "torch.save(obj=[1], f={!r})",
    "torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), {!r})",
    "os.remove({!r})",
    "os.rename({!r}, 'taken')",
    "os.symlink('/nowhere', {!r} + '.link')",
    "os.chown({!r}, 1234, 1234)",
    "torch.jit.script(torch.nn.Linear(2, 2)).save({!r})",
    "os.link({!r}, 'same'); open('same', 'w')",
    "os.symlink({!r}, 'same'); open('same', 'w')",
    "shutil.rmtree(os.path.dirname({!r}))",
]


@pytest.mark.slow
def test_nothing_is_written_outside_of_the_copy(runs, tmp_path):
    outside = str(tmp_path / "elsewhere" / "b.txt")
    text = "import os, shutil, torch\n"
    for number, line in enumerate(WRITES):
        text += f"try:\n    {line.format(outside)}\n"
        text += f"except PermissionError as error:\n    print({number}, error)\n"
    run = runs(text).run({}, gpu=False)
    assert run.failure is None, run.failure
    refused = [line for line in run.output.splitlines() if "must not write outside of it" in line]
    assert [line.split()[0] for line in refused] == [str(number) for number in range(len(WRITES))]


@pytest.mark.slow
def test_what_lies_above_is_found_with_a_root(runs, tmp_path):
    reads = "assert open('../elsewhere/b.txt').read() == 'old'\n"
    assert runs(reads + TRAIN).run({}, gpu=False).failure.kind == "FileNotFoundError"
    whole = runs(reads + TRAIN, root=tmp_path)
    assert whole.name == "reader/train.py"
    assert len(whole.run({}, gpu=False).losses) == 4
    (tmp_path / "above.py").write_text(TRAIN)
    above = Runs(Path("../above.py"), Program("../above.py"), 60.0, tmp_path)
    with above:
        assert [*above.run({}, gpu=False).lines] == ["above.py"]
    (tmp_path / "above.py").unlink()
    with pytest.raises(NoTrial, match="name one above both: --root FOLDER"):
        runs(TRAIN, root=tmp_path / "elsewhere")


def test_a_folder_that_is_too_large_is_refused(runs):
    with Path("large.bin").open("wb") as file:
        file.truncate(LARGEST + 1)
    try:
        with pytest.raises(NoTrial, match="holds more than"):
            runs(TRAIN)
    finally:
        Path("large.bin").unlink()


@pytest.mark.slow
def test_the_sources_are_those_of_the_beginning(runs):
    started = runs(TRAIN)
    Path("train.py").write_text("1 / 0")
    assert len(started.run({}, gpu=False).losses) == 4 and started.texts["train.py"] == TRAIN.encode()


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_a_signal_that_ends_the_command_closes_what_is_open():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, _ended_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert end.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_a_killed_command_leaves_neither_a_process_nor_a_folder(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os\nopen('began', 'w').write(str(os.getpid()))\nwhile True: pass\n"
    )
    command = [sys.executable, "-m", "gpulesson", "port", "train.py"]
    with tempfile.TemporaryDirectory() as folder:  # short: a socket in it has 107 letters
        place = Path(folder)
        process = subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"TMPDIR": folder})
        while not (began := [each for each in place.glob("gpulesson-*/copy/began") if each.read_text()]):
            assert process.poll() is None
            time.sleep(0.1)
        child = int(began[0].read_text())
        process.kill()
        process.wait()
        end = time.monotonic() + 30
        while (list(place.glob("gpulesson-*")) or _runs(child)) and time.monotonic() < end:
            time.sleep(0.1)
        assert not list(place.glob("gpulesson-*")) and not _runs(child)


def _runs(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "code, turns",
    [
        ("for i in range(100): step()", 8),
        ("while True: step()", 8),
        ("for i in range(100): draw()", 8),
        ("for i in range(100):\n for j in range(100): step()", 3 * 8),
        ("for i in range(100): pass", 0),
        ("for i in range(100):\n i < 5 or step()", 8),
        ("[step() for i in range(20)]", 20),
    ],
)
def test_loops_end_when_enough_was_done_in_them(code, turns):
    counts = [0, 0]

    def step():
        counts[0] += 1

    def draw():
        counts[1] += 1

    instrument.install(lambda: (counts[0], counts[1]))
    space = {"step": step, "draw": draw}
    exec(instrument.compiled(code.encode(), "loops.py", True, set()), space)
    assert sum(counts) == turns


def test_shortening_keeps_lines_and_columns():
    code = b"def f():\n    for x in g(1):\n        raise ValueError\n"
    both = compile(code, "f.py", "exec"), instrument.compiled(code, "f.py", True, set())
    plain, short = (next(each for each in one.co_consts if hasattr(each, "co_code")) for one in both)
    places = [{place for place in each.co_positions() if place[2]} for each in (plain, short)]
    assert places[0] <= places[1] and {place[0] for place in places[1]} == {place[0] for place in places[0]}


@pytest.mark.parametrize(
    "condition, steps",
    [
        ("step % 500 == 0", [3]),  # in none of the few steps
        ("step > 1 and (step + 1) % many == 0 or False", [4]),
        ("step > 50 and step % 500 == 0", []),
        ("'%s' % step == 'train'", []),
        ("step % 2 == 0", [2, 4, 6, 8]),
        ("step == 500", []),
        ("step % 500 == 0: break\n    if 0", []),
        ("step % 500 == 0: raise ValueError\n    if 0", []),
    ],
)
def test_what_is_due_in_no_step_is_done_once(condition, steps):
    counts, done = [0, 0], []
    instrument.install(lambda: (counts[0], counts[1]))
    code = f"for step in range(1, 100):\n    counts[0] += 1\n    if {condition}: done.append(step)\n"
    space = {"counts": counts, "done": done, "many": 900}
    exec(instrument.compiled(code.encode(), "due.py", True, set()), space)
    assert done == steps and counts[0] == 8


def test_a_loop_that_was_left_begins_anew(capsys):
    counts = [0, 0]
    instrument.install(lambda: (counts[0], counts[1]))
    space = {"counts": counts}
    code = """
for epoch in range(3):
    while True:
        counts[0] += 1
        if counts[0] % 5 == 0:
            break
"""
    exec(instrument.compiled(code.encode(), "left.py", True, set()), space)
    assert counts[0] == 15


def test_lines_that_ran_and_lines_that_did_not():
    code = b'''"""What it does."""
from __future__ import annotations
import os; x = 1

class Net:
    """A class."""
    size = 3

    def run(self, wanted):
        """A method."""
        if wanted:
            return 1
        elif x == 1:
            print(
                "two lines")
        else:
            x / 0

    def other(self):
        pass

try:
    Net().run(False)
    raise ValueError
except ValueError:
    x = 2
except KeyError:
    x = 3
else:
    x = 4
finally:
    x = 5
for _ in []:
    x = 6
'''
    ran: set[int] = set()
    space: dict = {}
    exec(instrument.compiled(code, "noted.py", False, ran), space)
    assert space["__doc__"] == "What it does." and space["Net"].__doc__ == "A class."
    assert space["Net"].run.__doc__ == "A method." and space["x"] == 5
    assert list(instrument.not_reached(code, ran)) == [(12, 12), (17, 17), (28, 30), (34, 34)]


def test_a_statement_that_needs_whole_loops_is_left_out_and_named_as_not_reached():
    code = "losses = [1, 2]\ndef mean(of):\n"
    code += "    return sum(of[:1000]) / of[1000 - 1]\nprint(mean(losses))\nx = 1\n"
    frames = Spot("train.py", "<module>", 4, 0, 4, 0), Spot("train.py", "mean", 3, 0, 3, 0)
    statement = instrument.unlike(Failure(frames, kind="IndexError"), {"train.py": code.encode()})
    assert statement == "print(mean(losses))"  # what only returns a value cannot be left out
    ran: set[int] = set()
    space: dict = {}
    exec(instrument.compiled(code.encode(), "train.py", True, ran, [statement]), space)
    assert space["x"] == 1 and list(instrument.not_reached(code.encode(), ran)) == [(3, 4)]
    training = Failure((Spot("train.py", "<module>", 1, 0, 1, 0),), kind="RuntimeError")
    assert instrument.unlike(training, {"train.py": b"loss.backward()"}) == ""


@pytest.mark.slow
def test_an_end_without_cleaning_up_leaves_a_record(runs):
    with_end = runs(
        TRAIN + "import os, sys\nprint('out')\nif os.fork() == 0:\n    os._exit(3)\nos._exit(0)\n"
    )
    record = with_end.run({}, gpu=False)
    assert len(record.losses) == 4 and not record.stopped and record.output == "out\n"
    killed = runs(TRAIN + "import os\nos.kill(os.getpid(), 9)\n").run({}, gpu=False)
    assert killed.stopped.startswith(DIED)


@pytest.mark.slow
def test_what_the_cpu_computes_again_and_again_is_noted_unless_the_gpu_gets_it(runs):
    text = (
        "import torch\nw = torch.ones(3, 3)\nfor _ in range(4):\n    a = w @ w\n    b = w @ w\n    b.cuda()\n"
    )
    text += "c = w @ w\n"
    record = runs(text).run({}, gpu=True)
    assert [seen.frames[-1].line for seen in record.on_cpu] == [4]
    text = "import torch\nw = torch.ones(3, requires_grad=True)\n"
    text += "for _ in range(3):\n    torch.autograd.grad(w.sum(), w)\n"
    record = runs(text).run({}, gpu=True)
    assert [seen.frames[-1].line for seen in record.on_cpu] == [4] and len(record.losses) == 3


@pytest.mark.slow
def test_results_that_are_put_into_a_tensor_of_the_cpu_are_noted(runs):
    text = "import torch\nw = torch.ones(3, device='cuda', requires_grad=True)\nkept = torch.empty(3)\n"
    text += "with torch.no_grad():\n    kept[1] = 2 * w[1]\nfor i in range(3):\n    kept[i] = w[i]\n"
    (seen,) = runs(text).run({}, gpu=True).filled
    assert seen.frames[-1].line == 7 and [thing.by for thing in seen.things] == ["empty"]


@pytest.mark.slow
def test_what_worker_processes_have_sent_by_then_is_not_progress(runs):
    load = (
        "from torch.utils.data import DataLoader as L\nfor x in L(torch.rand({}, 2), num_workers=1): pass\n"
    )
    calls = [runs(f"{TRAIN}{load.format(size)}").run({}, gpu=False).calls for size in (2, 6)]
    assert calls[0] == calls[1]
