"""The commands, as a learner and a teacher call them."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import run_script
from sampling import some

from gpulesson.__main__ import main
from gpulesson_tools.exercises import catalogue, exercises

ROOT = Path(__file__).parents[2]
SOLUTION = (ROOT / "examples/solutions/solution_04.py").read_text(encoding="utf-8")
STARTER = (ROOT / "examples/exercises/exercise_04.py").read_text(encoding="utf-8")
PERCENT = SOLUTION.replace("right / rows", "100 * right / rows")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULESSON_PROGRESS", str(tmp_path / "elsewhere" / "progress.json"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("number", ["04", "14"])
def test_start_copies_the_starter_and_never_over_ones_work(number, capsys):
    assert main(["start", number]) == 0
    path = Path(f"exercise_{number}.py")
    assert path.read_text() == (ROOT / "examples/exercises" / path.name).read_text()
    assert f"python -m gpulesson check {path.name}" in capsys.readouterr().out
    path.write_text("my work")
    assert main(["start", number]) == 2
    assert (
        "is here already, perhaps with your work" in capsys.readouterr().err and path.read_text() == "my work"
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", some((exercise.number for exercise in exercises()), every=4))
def test_an_untouched_starter_runs_to_its_end(number, warm, tmp_path):
    script = ROOT / f"examples/exercises/exercise_{number}.py"
    if number == "14":
        command = [sys.executable, "-m", "gpulesson", "practice", "--nproc", "2", str(script)]
        done = subprocess.run(command, capture_output=True, text=True)
    else:
        done = run_script(warm, script, tmp_path)
    assert done.returncode == 0 and done.stdout and "Traceback" not in done.stdout + done.stderr, done.stderr


@pytest.mark.slow
def test_check_says_what_is_wrong_and_goes_further_each_time(capsys):
    def said(text, *words):
        Path("exercise_04.py").write_text(text)
        assert main(["check", *words]) == (text != SOLUTION)
        return " ".join(capsys.readouterr().out.split())

    first, second = (said(PERCENT, "exercise_04.py") for _ in range(2))
    assert "✗ accuracy" in first and "Fix:" not in first and "to be told more" in first
    assert "That is a percentage. Seen: the accuracy is 36, expected 0.36." in first
    assert "Fix: Return the share" in second and "The solution is at the end of lesson 04" in second
    assert "passed" in said(SOLUTION, "4"), "the starter's name is known"
    assert "Fix:" not in said(PERCENT, "exercise_04.py"), "it was right in between"
    assert "Fix: Return the share" in said(PERCENT, "04", "exercise_04.py", "--hint")
    assert main(["lessons"]) == 0
    listed = capsys.readouterr().out
    assert "[x] 04  Write the training loop, passed on 2" in listed
    assert f"1 of {len(exercises())} passed" in listed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check", "gone.py"], "gpulesson check: there is no file gone.py (looked for in "),
        (["check", "4"], "4 is a number; give your file: python -m gpulesson check exercise_04.py"),
        (["check", "1", "2", "a.py"], "give a number and one file"),
        (["check", "99", "here.py"], "there is no exercise 99: the numbers are 01"),
        (["check", "4", "here.py", "--time-limit", "0"], "give more than 0"),
        (["check", "red\x1b[31m.py"], "there is no file red\\x1b[31m.py"),
        (["start", "99"], "there is no exercise 99"),
        (["submissions", "4", "gone"], "there is no folder gone"),
        (["submissions", "4", "."], "only here.txt"),
        (["submissions", "99", "."], "there is no exercise 99"),
        (["submissions", "4", ".", "-j", "0"], "jobs is 0; give 1 or more"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(words, says, capsys):
    Path("here.txt" if "only" in says else "here.py").write_text("x = 1\n")
    assert main(words) == 2
    error = capsys.readouterr().err
    expected = "there is no Python file or notebook in ." if "only" in says else says
    assert expected in error and error.count("\n") == 1


def test_progress_that_cannot_be_read_or_written_is_not_fatal(monkeypatch, tmp_path, capsys):
    path = catalogue.progress_file()
    path.parent.mkdir()
    path.write_text('{"exercises": {"04": {"checks": 2, "hints": 1, "passed": "2026-01-31", "found": ""}}}')
    assert catalogue.progress()["04"].passed == "2026-01-31", "an earlier version's"
    for damaged in ("{", '{"exercises": {"04": {"checks": 1e999}}}'):
        path.write_text(damaged)
        assert catalogue.progress() == {} and path.with_name("progress.json.damaged").read_text() == damaged
    monkeypatch.setenv("GPULESSON_PROGRESS", str(tmp_path / "here.py" / "progress.json"))
    Path("here.py").write_text("")
    assert catalogue.note("04", ["a"], False) == ({"a": 1}, False)


@pytest.fixture
def folder() -> Path:
    """What the learners of a class have sent."""
    folder = Path("class")
    folder.mkdir()
    files = {"ada": SOLUTION, "ben": PERCENT, "cyd": STARTER, "dan": "def (", "eve": PERCENT}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    (folder / ".hidden.py").write_text("")
    (folder / "notes.txt").write_text("")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [pytest.param("1", marks=pytest.mark.thorough), "3"])
def test_submissions_of_a_class(folder, capsys, jobs):
    assert main(["submissions", "04", "class", "-j", jobs, "--csv", "table.csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(".hidden.py") and "skipped" in lines[1]
    said = dict(line.split(maxsplit=1) for line in lines[2:7])
    assert said["ada"] == "passed" and said["ben"] == said["eve"] == "1 of 3: accuracy scale=percent"
    assert (
        said["cyd"] == "0 of 3: train_step empty, accuracy empty, run empty"
        and said["dan"] == "0 of 3: error"
    )
    assert lines[8] == "1 of 5 passed" and lines[9] == "2 of 5: accuracy scale=percent"
    with Path("table.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    names = {"file", "function", "state", "found", "says"}
    assert len(rows) == 4 * 3 + 1 and all(set(row) == names and row["says"] for row in rows)
    right, wrong, stopped = rows[0], rows[4], rows[9]
    assert (right["file"], right["function"], right["state"]) == ("ada.py", "train_step", "done")
    assert (wrong["function"], wrong["found"]) == ("accuracy", "scale=percent")
    assert wrong["says"].startswith("That is a percentage. Seen: ")
    assert (stopped["file"], stopped["function"], stopped["state"]) == ("dan.py", "", "stopped")
    assert json.loads((folder / "ada.json").read_text())["passed"]
    assert catalogue.progress() == {}


@pytest.mark.slow
def test_a_folder_may_hold_anything(folder, capsys):
    os.mkfifo(folder / "fifo.py")
    (folder / "link.py").symlink_to("/dev/zero")
    (folder / "large.py").write_text("#" * 12_000_000)
    target = Path("precious")
    target.write_text("precious")
    (folder / "ada.json").symlink_to(target.absolute())
    for name in ("ben", "cyd", "dan", "eve"):
        (folder / f"{name}.py").unlink()
    assert main(["submissions", "04", "class"]) == 1
    said = capsys.readouterr().out
    assert "1 of 2 passed" in said and "not checked: UsageError" in said and "fifo.py" in said
    assert target.read_text() == "precious" and json.loads((folder / "ada.json").read_text())["passed"]


@pytest.mark.slow
@pytest.mark.parametrize("signal_", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)])
def test_a_signal_ends_the_check_of_a_class(folder, signal_):
    begun = Path("begun").absolute()
    (folder / "aaa.py").write_text(f"open({str(begun)!r}, 'w'); import time\nwhile True: time.sleep(1)\n")
    command = [sys.executable, "-m", "gpulesson", "submissions", "04", "class", "--time-limit", "600"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal_)
    assert process.wait(30) != 0


@pytest.mark.slow
def test_watch_checks_again_when_the_file_is_saved(tmp_path):
    path = Path("exercise_04.py")
    path.write_text(PERCENT)
    command = [sys.executable, "-u", "-m", "gpulesson", "check", path.name, "--watch"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        while "Waiting for" not in (line := process.stdout.readline()):
            assert line
        path.write_text(SOLUTION)
        while "passed" not in (line := process.stdout.readline()):
            assert line
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        process.stdout.close()
