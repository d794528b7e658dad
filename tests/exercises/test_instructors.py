"""The program on the page for instructors does what the page says of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "docs" / "check_hand_ins.py"


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | environment)


@pytest.mark.slow
def test_a_folder_of_hand_ins(tmp_path, own_progress):
    folder = tmp_path / "hand_ins"
    folder.mkdir()
    shutil.copy(ROOT / "examples/solutions/03_train_iris.py", folder / "ada.py")
    shutil.copy(ROOT / "tests/exercises/attempts/03_labels_not_moved.py", folder / "blaise.py")
    (folder / "carl.py").write_text("while True:\nprint('never')\n")
    done = run("03", folder)
    assert done.returncode == 0, done.stderr
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    line = next(
        number
        for number, text in enumerate((folder / "blaise.py").read_text().splitlines(), 1)
        if "diagnosis" in text
    )
    assert rows == [
        ["ada", "passed"],
        ["blaise", f"labels-on-cpu (line {line})"],
        ["carl", "syntax-error (line 2)"],
    ]
    assert json.loads((folder / "ada.json").read_text())["passed"] is True
    assert not own_progress.exists(), "the instructor's own progress is left alone"
    assert json.loads((folder / "carl.json").read_text())["findings"][0]["line"] == 2


def test_a_check_that_breaks_does_not_stop_the_rest(tmp_path):
    broken = tmp_path / "broken" / "gpulesson"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("")
    (broken / "__main__.py").write_text("raise OSError('no space left')\n")
    for name in ("ada", "blaise"):
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    done = run("03", tmp_path, PYTHONPATH=str(broken.parent))
    assert done.returncode == 0, done.stderr
    rows = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert rows == [[name, "not checked: OSError: no space left"] for name in ("ada", "blaise")]
    assert not list(tmp_path.glob("*.json"))


def test_a_wrong_number_stops_it(tmp_path):
    (tmp_path / "ada.py").write_text("x = 1\n")
    done = run("77", tmp_path)
    assert done.returncode == 1 and "there is no exercise 77" in done.stderr
    assert not list(tmp_path.glob("*.json"))


def test_the_page_names_every_key_and_limit():
    from gpulesson.exercises import Report
    from gpulesson.exercises.checker import MEMORY_LIMIT, TIME_LIMIT

    page = (ROOT / "docs" / "instructors.rst").read_text()
    assert all(f"``{key}``" in page for key in Report(None, "x.py", ()).to_dict())
    assert (TIME_LIMIT, MEMORY_LIMIT) == (120, 4 * 2**30)
    assert "by default it has two" in page and "The memory limit is 4 GiB" in page
