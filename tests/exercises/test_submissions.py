"""A folder of files, one of each learner, checked as the page for instructors says."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpulesson.__main__ import main
from gpulesson.exercises import Report, UsageError, check_folder, submissions
from gpulesson.exercises.checker import MEMORY_LIMIT, TIME_LIMIT
from gpulesson.exercises.findings import Source
from gpulesson.exercises.process.warm import POSSIBLE, WarmProcess
from gpulesson.exercises.rules.devices import LABELS_ON_CPU
from gpulesson.exercises.rules.endings import ERROR

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def line_of(file: Path, mark: str = "diagnosis") -> int:
    return next(number for number, text in enumerate(file.read_text().splitlines(), 1) if mark in text)


ONLY_WHERE_POSSIBLE = pytest.mark.skipif(not POSSIBLE, reason="this system cannot fork safely")
RIGHT = [ROOT / "examples/solutions/solution_03.py", *sorted(HERE.glob("right/03_*.py"))]
WRONG = {
    "accuracy_typed": "wrong-accuracy",
    "break_in_the_loop": "leaves-the-loop",
    "eval_missing": "missing-eval",
    "eval_of_another": "missing-eval",
    "eval_too_early": "missing-eval",
    "labels_not_moved": "labels-on-cpu",
    "logits_against_labels": "logits-compared",
    "loss_item": "loss-without-history",
    "no_seed": "no-seed",
    "step_after_the_loop": "step-outside-loop",
}
SKIPPED = {"._ada.py": "a hidden file", "essay.docx": "not a Python file", "readme.txt": "not a Python file"}


@pytest.mark.slow
def test_thirty_files_of_which_ten_are_wrong(tmp_path, own_progress):
    """As the page for instructors has it: the command itself, two at a time."""
    folder, table, reports = tmp_path / "submissions", tmp_path / "table.csv", tmp_path / "reports"
    folder.mkdir()
    for number in range(20):  # several learners may hand in the same
        shutil.copy(RIGHT[number % len(RIGHT)], folder / f"learner_{number:02}.py")
    for number, name in enumerate(WRONG, 20):
        shutil.copy(HERE / f"attempts/03_{name}.py", folder / f"learner_{number}.py")
    for name in SKIPPED:
        (folder / name).write_bytes(b"\x00\xff")
    command = [sys.executable, "-m", "gpulesson", "submissions", "03", str(folder), "--jobs", "2"]
    command += ["--csv", str(table), "--reports", str(reports)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert (done.returncode, done.stderr) == (0, "")

    names = [f"learner_{number:02}" for number in range(30)]
    lines = [line_of(folder / f"{name}.py") for name in names[20:]]
    faults = dict(zip(names[20:], zip(WRONG.values(), lines, strict=True), strict=True))
    *answers, empty, passed, first = done.stdout.splitlines()[: 3 + 30 + 3]
    assert [line.split(maxsplit=1) for line in answers] == [
        *([name, f"skipped: {why}"] for name, why in SKIPPED.items()),
        *([name, "passed"] for name in names[:20]),
        *([name, f"{kind} (line {line})"] for name, (kind, line) in faults.items()),
    ]
    assert (empty, passed, first) == ("", "20 of 30 passed", "3 of 30: missing-eval")
    others = sorted(set(WRONG.values()) - {"missing-eval"})
    assert done.stdout.splitlines()[36:] == [f"1 of 30: {kind}" for kind in others]
    with table.open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["file", "result", "found"],
            *([f"{name}.py", "passed"] for name in names[:20]),
            *([f"{name}.py", "not yet", f"{kind}:{line}"] for name, (kind, line) in faults.items()),
        ]
    assert sorted(path.name for path in reports.iterdir()) == [f"{name}.json" for name in names]
    written = {name: json.loads((reports / f"{name}.json").read_text()) for name in names}
    assert [written[name]["passed"] for name in names] == [True] * 20 + [False] * 10
    for name, fault in faults.items():
        assert [(each["kind"], each["line"]) for each in written[name]["findings"]] == [fault]
    assert len(list(folder.iterdir())) == 33, "nothing is written beside the files"
    assert not own_progress.exists(), "the instructor's own progress is left alone"


@pytest.mark.slow
def test_where_nothing_can_fork_each_file_has_a_start_of_its_own(tmp_path, monkeypatch, capsys):
    shutil.copy(RIGHT[0], tmp_path / "ada.py")
    (tmp_path / "carl.py").write_text("while True:\nprint('never')\n")
    monkeypatch.setattr("gpulesson.exercises.process.warm.POSSIBLE", False)
    assert main(["submissions", "03", str(tmp_path), "-j", "2"]) == 0
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert rows[:2] == [["ada", "passed"], ["carl", "syntax-error (line 2)"]]
    assert json.loads((tmp_path / "ada.json").read_text())["passed"] is True
    assert json.loads((tmp_path / "carl.json").read_text())["findings"][0]["line"] == 2


@pytest.fixture
def replaced(monkeypatch):
    """The check is replaced by a function of a test's own; nothing is started."""

    def replace(check) -> None:
        monkeypatch.setattr(submissions, "check", check)
        monkeypatch.setattr("gpulesson.exercises.process.warm.POSSIBLE", False)

    return replace


def written(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / f"{name}.py").write_text("x = 1\n")
    return folder


def test_a_check_that_breaks_does_not_stop_the_rest(tmp_path, replaced, capsys):
    def check(file, *args, **options):
        if file.stem == "blaise":
            raise OSError("no space left")
        return Report(None, file.name, ())

    replaced(check)
    written(tmp_path, "ada", "blaise", "carl")
    assert main(["submissions", "03", str(tmp_path)]) == 1
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert rows[:3] == [
        ["ada", "passed"],
        ["blaise", "not checked: OSError: no space left"],
        ["carl", "passed"],
    ]
    assert rows[4:] == [["2", "of 3 passed"]]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["ada.json", "carl.json"]


def test_as_many_run_at_once_as_were_asked_for_and_come_in_order(tmp_path, replaced):
    together = threading.Barrier(3)

    def check(file, *args, **options):
        together.wait(timeout=600)  # passes when three have come
        return Report(None, file.name, ())

    replaced(check)
    names = [file.stem for file, _ in check_folder(written(tmp_path, *"abcdef"), 3, jobs=3)]
    assert names == list("abcdef")


def test_limits_and_the_exercise_reach_the_check(tmp_path, replaced):
    seen = []

    def check(file, exercise, **options):
        seen.append((exercise, options["time_limit"], options["memory_limit"], options["warm"]))
        return Report(None, file.name, ())

    replaced(check)
    list(check_folder(written(tmp_path, "ada"), "4", time_limit=7, memory_limit=2**30))
    assert seen == [("4", 7, 2**30, None)]


@ONLY_WHERE_POSSIBLE
def test_where_it_is_possible_every_check_starts_in_a_fork(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(submissions, "warm_process", lambda: WarmProcess(preload=[]))

    def check(file, *args, warm, **options):
        seen.append(warm)
        return Report(None, file.name, ())

    monkeypatch.setattr(submissions, "check", check)
    list(check_folder(written(tmp_path, "ada", "blaise"), 3))
    assert len(seen) == 2 and seen[0] is seen[1] and isinstance(seen[0], WarmProcess)


def test_a_report_that_cannot_be_written_stops_no_other(tmp_path, replaced, capsys):
    replaced(lambda file, *args, **options: Report(None, file.name, ()))
    written(tmp_path, "ada", "blaise")
    (tmp_path / "ada.json").mkdir()
    assert main(["submissions", "03", str(tmp_path)]) == 1
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "not checked: IsADirectoryError" in first and second.split() == ["blaise", "passed"]


@pytest.mark.parametrize(
    ("number", "folder", "jobs", "message"),
    [
        ("77", ".", "1", "there is no exercise 77"),
        ("03", "nowhere", "1", "there is no folder"),
        ("03", "empty", "1", "there is no Python file or notebook in"),
        ("03", ".", "0", "jobs is 0; give 1 or more"),
    ],
)
def test_where_there_is_nothing_to_check_it_says_so(tmp_path, capsys, number, folder, jobs, message):
    written(tmp_path, "ada")
    (tmp_path / "empty").mkdir()
    assert main(["submissions", number, str(tmp_path / folder), "-j", jobs]) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.glob("*.json"))
    with pytest.raises(UsageError, match=message):
        check_folder(tmp_path / folder, number, jobs=int(jobs))
    assert main(["submissions", "03", str(tmp_path), "--time-limit", "0"]) == 2
    assert "both limits must be more than 0; found 0 seconds" in capsys.readouterr().err


def test_the_page_names_every_key_and_limit():
    page = (ROOT / "docs" / "instructors.rst").read_text()
    assert all(f"``{key}``" in page for key in Report(None, "x.py", ()).to_dict())
    assert (TIME_LIMIT, MEMORY_LIMIT) == (120, 4 * 2**30)
    assert "by default it has two" in page and "The memory limit is 4 GiB" in page


def test_a_table_statistics_and_reports_in_a_folder_of_ones_own(tmp_path, replaced, capsys):
    def check(file, *args, **options):
        source = Source(file.name, ["x = 1"])
        faults = {"ada": [], "blaise": [LABELS_ON_CPU], "carl": [LABELS_ON_CPU, LABELS_ON_CPU, ERROR]}
        if file.suffix == ".ipynb":
            source = Source("blaise.py", ["# cell 1", "# cell 2", "x = 1"], cells=(1, 2))
            return Report(None, file.name, (source.failure(ERROR, 3, "So."), source.failure(ERROR, 0, "So.")))
        return Report(None, file.name, tuple(source.failure(fault, 1, "So.") for fault in faults[file.stem]))

    replaced(check)
    folder = tmp_path / "files"
    folder.mkdir()
    written(folder, "ada", "blaise", "carl")
    for name in ("dora.docx", "._ada.py", "blaise.ipynb"):
        (folder / name).write_text("{}")
    table, reports = tmp_path / "table.csv", tmp_path / "new" / "reports"
    command = ["submissions", "03", str(folder), "--csv", str(table), "--reports", str(reports)]
    assert main(command) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in printed[:2]] == [
        ["._ada.py", "skipped: a hidden file"],
        ["dora.docx", "skipped: not a Python file"],
    ]
    assert printed[3].split(maxsplit=1) == ["blaise.ipynb", "error (cell 2, line 1), error"]
    assert printed[-3:] == ["1 of 4 passed", "2 of 4: error", "2 of 4: labels-on-cpu"]
    with table.open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["file", "result", "found"],
            ["ada.py", "passed"],
            ["blaise.ipynb", "not yet", "error:cell 2:1", "error:0"],
            ["blaise.py", "not yet", "labels-on-cpu:1"],
            ["carl.py", "not yet", "labels-on-cpu:1", "labels-on-cpu:1", "error:1"],
        ]
    names = ["ada.json", "blaise.ipynb.json", "blaise.json", "carl.json"]
    assert sorted(path.name for path in reports.iterdir()) == names
    assert not list(folder.glob("*.json"))
