from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

import gpulesson
from gpulesson.__main__ import main
from gpulesson_tools.planning import ProgramFailed
from gpulesson_tools.planning.answer import Plan
from gpulesson_tools.planning.memory import any_batch, fitting
from gpulesson_tools.planning.memory.picture import course
from gpulesson_tools.planning.recording.batches import sizes_changed
from gpulesson_tools.planning.recording.recorded import record_function

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

width = int(sys.argv[1])
data = TensorDataset(torch.randn(640, width), torch.randint(10, (640,)))
model = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10)).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
for inputs, targets in DataLoader(data, batch_size=32, shuffle=True):
    loss = nn.functional.cross_entropy(model(inputs.to("cuda")), targets.to("cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
print("the end")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder to plan in, with a place for temporary files."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path
    assert list((tmp_path / "tmp").glob("gpulesson*")) == []


@pytest.mark.slow
def test_the_command_answers_in_numbers_and_draws_a_picture(folder, capfd):
    (folder / "train.py").write_text(SCRIPT)
    options = ("--gpu", "T4,H100", "--ranks", "2,64", "--json", "--picture", "memory.svg")
    assert main(["plan", *options, "train.py", "100"]) == 0
    printed, shown = capfd.readouterr()
    answer = json.loads(printed)  # it alone is on standard output
    assert answer["program"] == "train.py 100" and answer["batch_size"] == 32
    assert shown.count("loss") == 2, "what the program prints, until its third step"
    assert "the end" not in shown
    kinds = answer["peak"]["by_kind"]
    weights = sum(-(-4 * numbers // 512) * 512 for numbers in (100 * 64, 64, 64 * 10, 10))
    assert kinds["parameters"] == kinds["gradients"] == weights
    assert kinds["optimizer state"] == 2 * weights
    t4, h100 = answer["gpus"]
    assert (t4["name"], t4["answer"], t4["least_time"]["bound"]) == ("T4", "fits", "launches")
    assert h100["largest_batch"] > t4["largest_batch"] > 32
    rows = [(row["ranks"], row["model"], row["answer"]) for row in t4["ranks"]]
    assert rows == [(n, model, "fits") for n in (2, 64) for model in ("DDP", "fully sharded")]
    assert all(row["least_time"]["seconds"] >= t4["least_time"]["seconds"] for row in t4["ranks"])
    assert sorted(path.name for path in folder.iterdir()) == ["memory.svg", "tmp", "train.py"]
    assert "optimizer state" in (folder / "memory.svg").read_text()


def test_an_unknown_gpu_is_an_error_before_anything_runs(tmp_path, capfd):
    (tmp_path / "train.py").write_text("raise SystemExit('it ran')")
    assert main(["plan", "--gpu", "T5", str(tmp_path / "train.py")]) == 1
    said = capfd.readouterr().err
    assert "T5" in said and "T4" in said and "it ran" not in said


def test_an_option_behind_the_script_belongs_to_it_and_a_note_says_so(tmp_path, capfd):
    (tmp_path / "train.py").write_text("raise SystemExit('it ran')")
    assert main(["plan", "--gpu", "T5", str(tmp_path / "train.py"), "--steps", "4"]) == 1
    assert "--steps comes after" in capfd.readouterr().err


def test_without_a_program_the_usage_is_shown(capfd):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "--dry"])
    assert "there is no program" in capfd.readouterr().err


TRAINS = """
import torch
net = torch.nn.Linear(4, 4, device="cuda")
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(9):
    net(torch.ones(3, 4, device="cuda")).sum().backward()
    optimizer.step()
"""


CLOCK = "import time\nstop = time.time() + 3600\n"
CATCHING = "try: optimizer.step()\n    except BaseException: pass"


PROGRAMS = [
    ("import torch; torch.ones(3, device='cuda')", 0, "No optimizer took a step"),
    ("import torch; torch.ones(3)", 1, "put nothing on the GPU"),
    ("import torch\ntorch.ones(3, device='cuda')\n1 / 0", 1, "steps, then: ZeroDivisionError"),
    ("import os; os._exit(3)", 1, "ended its process with exit status 3"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 1, "--dry"),
    (CLOCK + TRAINS.replace("for _ in range(9)", "while time.time() < stop"), 0, "bounds, not promises"),
]
MORE = [
    (TRAINS + "raise ValueError('too late to matter')", 0, "no DataLoader feeds its steps"),
    ("import torch; torch.ones(3, device='cuda:1')", 1, "It asks for a second GPU"),
    ("raise SystemExit('needs a --config')", 1, "exit status 1"),
    (TRAINS.replace("range(9)", "range(2)"), 0, "ended after 2 of 3 steps"),
    (TRAINS.replace("optimizer.step()", CATCHING), 0, "T4"),
    ("import sys\n" + TRAINS.replace("range(9)", "range(int(sys.argv[1]))"), 1, "IndexError"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "status", "words"),
    [*PROGRAMS, *(pytest.param(*each, marks=pytest.mark.thorough) for each in MORE)],
)
def test_programs_that_do_not_fit_the_pattern_get_a_clear_answer(folder, capfd, script, status, words):
    (folder / "train.py").write_text(script)
    code = main(["plan", "train.py"])
    shown = capfd.readouterr()
    said = " ".join((shown.out + shown.err).split())
    assert code == status and words in said, said
    assert "gpulesson_tools/planning" not in said, "no traceback of ours"
    assert sorted(path.name for path in folder.iterdir()) == ["tmp", "train.py"]


def train(batch_size: int) -> None:
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        optimizer.zero_grad()
        model(torch.randn(batch_size, 512, device="cuda")).square().mean().backward()
        optimizer.step()


@pytest.fixture(scope="module")
def planned() -> Plan:
    return gpulesson.plan(train, gpu=["T4", "H100"], batch_size=96)


class TestFunction:
    def test_another_batch_is_what_running_it_gives(self, planned):
        def with_96() -> None:
            train(96)

        ran = gpulesson.plan(with_96, gpu="T4")
        assert planned.peak.by_kind == ran.peak.by_kind
        assert planned.replay.peak_reserved == ran.replay.peak_reserved
        flop = [[each.flop for each in plan.record.operations] for plan in (planned, ran)]
        assert flop[0] == flop[1]

    def test_the_largest_batch_fits_and_the_next_does_not(self, planned):
        on = planned.gpus[0]
        first, second = (record_function(lambda: train(size), 3) for size in (2, 3))  # noqa: B023
        first.batch_size, second.batch_size = 2, 3
        batches = on.largest_batch, on.largest_batch + 1
        records = [any_batch.at_batch(first, second, batch) for batch in batches]
        answers = [fitting.verdict(each, on.gpu.memory, on.gpu.capability).answer for each in records]
        assert answers == ["fits", "close"]

    @pytest.mark.slow
    def test_a_recurrent_network_has_no_least_time(self):
        def recurrent(batch_size: int) -> None:
            model = nn.GRU(8, 8, batch_first=True).to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            while True:
                model(torch.ones(batch_size, 5, 8, device="cuda"))[0].sum().backward()
                optimizer.step()

        answer = gpulesson.plan(recurrent, gpu="T4", batch_size=4)
        assert answer.gpus[0].floor is None
        assert "GRU" in answer.notes[0]

    def test_a_loader_that_had_less_than_a_batch_is_noted(self):
        def few() -> None:
            model = nn.Linear(8, 8).to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for (inputs,) in itertools.cycle(DataLoader(TensorDataset(torch.ones(20, 8)), batch_size=64)):
                model(inputs.to("cuda")).sum().backward()
                optimizer.step()

        answer = gpulesson.plan(few, gpu="T4")
        assert answer.record.batch_size == 20
        assert "batches of 64, and had 20 samples" in " ".join(answer.notes)

    def test_without_the_batch_size_it_cannot_be_called(self):
        with pytest.raises(ValueError, match="train takes a batch size: give batch_size=…"):
            gpulesson.plan(train)

    def test_its_errors_come_out(self):
        def fails() -> None:
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            gpulesson.plan(fails)

    def test_one_that_uses_no_gpu_is_refused(self):
        with pytest.raises(ProgramFailed, match="put nothing on the GPU"):
            gpulesson.plan(lambda: torch.ones(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0: give a whole number, 1 or more"),
        ({"steps": 0}, "steps=0: give a whole number"),
        ({"steps": True}, "steps=True"),
        ({"gpu": "GTX 9000"}, "GTX 9000"),
    ],
)
def test_wrong_calls_say_what_was_found_and_what_to_give(options, message):
    with pytest.raises(ValueError, match=message):
        gpulesson.plan(train, **{"batch_size": 4, **options})


def test_a_script_that_is_not_there_is_named():
    with pytest.raises(FileNotFoundError, match=r"no script 'trian\.py'"):
        gpulesson.plan("trian.py")
    with pytest.raises(ValueError, match="there is no program; expected a script, or -m"):
        gpulesson.plan(["-m"])


@pytest.mark.slow
def test_a_script_that_plans_for_another_needs_no_guard_and_its_environment_is_seen(tmp_path):
    (tmp_path / "plain.py").write_text(TRAINS)
    (tmp_path / "train.py").write_text(f"import os\nassert os.environ['DATA'] == 'here'\n{TRAINS}")
    (tmp_path / "ask.py").write_text(
        "import os, gpulesson\n"
        "gpulesson.plan('plain.py', gpu='T4', steps=1)\n"
        "os.environ['DATA'] = 'here'\n"
        "print(gpulesson.plan('train.py', gpu='T4', steps=1).gpus[0].verdict.answer)\n"
    )
    done = subprocess.run([sys.executable, "ask.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "fits", done.stderr


def test_the_report_has_the_answer_the_kinds_and_the_conditions(planned):
    text = str(planned)
    parts = ("Plan of train: 3 steps", "batch of 96", "optimizer state", "not promises", "test_plan.py:")
    assert [part for part in parts if part not in text] == []
    assert "Several" not in text and "ranks" not in planned.to_json()["gpus"][0]
    assert max(map(len, text.splitlines())) <= 110


def test_the_picture_begins_and_ends_with_what_stays(planned):
    lines = course(planned.record)
    for kind in ("parameters", "optimizer state"):
        assert lines[kind][0] == lines[kind][-1] > 0
    assert max(map(sum, zip(*lines.values(), strict=True))) <= planned.peak.nbytes


def test_loaders_of_other_sizes_keep_theirs():
    data = list(range(100))
    with sizes_changed(32, 2):
        loaders = [DataLoader(data, batch_size=32), DataLoader(data, 32), DataLoader(data, batch_size=7)]
        own = DataLoader(data, batch_sampler=BatchSampler(range(100), 32, False))
    assert [loader.batch_size for loader in loaders] == [2, 2, 7]
    assert len(next(iter(own))) == 2
    assert DataLoader(data, batch_size=32).batch_size == 32


def test_sizes_of_a_small_program_are_not_rounded_to_nothing():
    def train() -> None:
        model = nn.Linear(100, 10, device="cuda")
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model(torch.ones(4, 100, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    (line,) = (line for line in str(gpulesson.plan(train, gpu="T4")).splitlines() if "  parameters" in line)
    assert line.split() == ["parameters", f"{(4096 + 512) / 1024:.2f}", "KiB"]  # 4000 bytes and 40, in blocks
