"""The day with a GPU: what runs, what is refused, and what comes home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import gpu_day
import pytest
from _ext.recorded.files import Recording, RecordingError, write
from gpu_day import all_parts, collect, missing
from parts import Refused
from projects import ROOT
from test_recorded_files import RUN

FACTS = {"gpu": RUN.gpu, "torch": RUN.torch, "code": "0123", "rehearsal": False, "parts": {}}
SIMULATED = "Practice GPU (simulated on the CPU)"


@pytest.mark.parametrize("rehearse", [False, True], ids=["", "rehearsal"])
def test_the_parts_are_all_that_a_gpu_is_for(tmp_path, rehearse):
    found = all_parts(tmp_path, rehearse)
    names = [part.name for part in found]
    assert len(set(names)) == len(names) > 25
    assert {"test_graphs", "test_training", "word_for_word", "captured", "ladder"} <= {*names}
    assert [name for name in names if name[0].isdigit()] == [
        path.stem for path in sorted(ROOT.glob("examples/[0-9]*.py"))
    ]
    order = [names.index(name) for name in ("test_training", "word_for_word", "01_is_there_a_gpu", "ladder")]
    assert order == sorted(order), "in the order of their worth"
    assert all((ROOT / part.command[0]).is_file() for part in found)
    assert all(part.seconds < 8 * 60 for part in found), "each has to begin in a run of nine minutes"
    recorder = next(part for part in found if part.name.startswith("01"))
    assert ("--rehearse" in recorder.command) is rehearse


def test_only_files_with_gpu_tests_run(tmp_path):
    names = [part.name for part in gpu_day.tests(tmp_path)]
    assert "test_graphs" in names and "test_tensors" not in names and "test_recordings" not in names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--minutes=1", "this needs a CUDA GPU (torch "),
        ("--collect=nowhere", "nowhere holds no state.json: it is not what this program wrote"),
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
def test_a_rehearsal_runs_on_the_practice_gpu_and_goes_on(tmp_path):
    command = [sys.executable, gpu_day.__file__, "--rehearse", "--out", tmp_path, "--only", "test_interface"]
    first, second = (subprocess.run(command, cwd=tmp_path, capture_output=True, text=True) for _ in "12")
    assert first.returncode == second.returncode == 0, first.stderr
    assert "test_interface: at most" in first.stdout and "test_interface: at most" not in second.stdout
    state = json.loads((tmp_path / "state.json").read_text())
    assert state["gpu"] == SIMULATED and state["rehearsal"]
    assert "1 skipped" in (tmp_path / "logs" / "test_interface.log").read_text()  # it needs a real one
    assert 'tests="1"' in (tmp_path / "tests" / "test_interface.xml").read_text()


def test_what_a_machine_lacks_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("GPULESSON_DATA", str(tmp_path))
    monkeypatch.setattr(gpu_day.importlib.util, "find_spec", lambda name: None if name == "pooch" else name)
    packages, data = missing()
    assert packages.endswith("wheels: pooch") and data.startswith("GPULESSON_DATA names no folder")
    (tmp_path / "FashionMNIST" / "raw").mkdir(parents=True)
    (tmp_path / "FashionMNIST" / "raw" / "train-images-idx3-ubyte").touch()
    assert list(missing()) == [packages]


# -- what came back


@pytest.fixture
def day(tmp_path) -> Path:
    """The folder of a finished day, with a recording, a figure and a table of words."""
    folder = tmp_path / "gpu_day"
    for name in ("benchmarks", "words", "recordings"):
        (folder / name).mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps(FACTS))
    write(Recording("01_x", RUN, (), ()), {}, folder / "recordings")
    (folder / "benchmarks" / "ladder.json").write_text(json.dumps({"about": {"device": f"cuda: {RUN.gpu}"}}))
    (folder / "words" / "word_for_word.json").write_text(json.dumps({"about": {"device": RUN.gpu}}))
    return folder


COLLECTED = {
    "docs/recordings/01_x.json",
    "benchmarks/results/gpu/ladder.json",
    "benchmarks/results/gpu/word_for_word.json",
}


def test_what_came_back_goes_to_its_places(day, tmp_path):
    pictures = tmp_path / "home" / "docs" / "recordings" / "01_x"
    pictures.mkdir(parents=True)
    (pictures / "01-of-an-old-one.webp").touch()
    (day / "recordings" / "01_x").mkdir()
    (day / "recordings" / "01_x" / "02-new.webp").touch()
    assert set(collect(day, tmp_path / "home")) == COLLECTED
    assert all((tmp_path / "home" / name).is_file() for name in COLLECTED)
    assert [path.name for path in pictures.iterdir()] == ["02-new.webp"]


def test_an_archive_is_taken_as_well(day, tmp_path):
    with tarfile.open(tmp_path / "day.tar.gz", "w:gz") as archive:
        archive.add(day, "gpu_day")
    assert set(collect(tmp_path / "day.tar.gz", tmp_path / "home")) == COLLECTED


@pytest.mark.parametrize(
    "facts", [{"rehearsal": True}, {"gpu": SIMULATED}], ids=["marked", "by the name of the GPU"]
)
def test_a_rehearsal_is_not_collected(day, tmp_path, facts):
    (day / "state.json").write_text(json.dumps({**FACTS, **facts}))
    with pytest.raises(Refused, match=r"a rehearsal on the practice GPU: .* none was taken"):
        collect(day, tmp_path / "home")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("device", [f"cuda: {SIMULATED}", "cpu: CPU"])
def test_a_simulated_or_a_cpu_figure_is_not_collected(day, tmp_path, device):
    (day / "benchmarks" / "ladder.json").write_text(json.dumps({"about": {"device": device}}))
    with pytest.raises(Refused, match=r"ladder.json is of .*, and no GPU's"):
        collect(day, tmp_path / "home")


def test_a_simulated_recording_is_not_collected(day, tmp_path):
    write(Recording("01_x", replace(RUN, gpu=SIMULATED), (), ()), {}, day / "recordings")
    with pytest.raises(RecordingError, match="expected a real GPU"):
        collect(day, tmp_path / "home")
    assert not (tmp_path / "home").exists()
