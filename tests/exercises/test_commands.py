"""The commands ``check`` and ``lessons``, with the check itself replaced: that is tested elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module

import pytest

from gpulesson.__main__ import main
from gpulesson.exercises import Report, UsageError, commands, exercises, find
from gpulesson.exercises.findings import Source
from gpulesson.exercises.rules.devices import LABELS_ON_CPU
from gpulesson.exercises.rules.endings import ERROR

SOURCE = Source("04_mine.py", ["import torch", "    loss = loss_fn(outputs, targets)"])


@pytest.fixture
def asked(monkeypatch):
    """What `check` was asked, and the report that it gives."""
    calls, answer = [], {}

    def check(file, exercise=None, *, time_limit):
        calls.append((file, exercise, time_limit))
        if "error" in answer:
            raise UsageError(answer["error"])
        task = find(exercise or 4)
        findings = () if answer.get("passed") else (SOURCE.failure(LABELS_ON_CPU, 2, "What happened."),)
        return Report(task, file, findings, "a GPU", True, ("a fact",), True, "printed\n")

    monkeypatch.setattr(commands, "check", check)
    return calls, answer


def test_not_yet(asked, capsys, own_progress):
    assert main(["check", "04_mine.py"]) == 1
    assert asked[0] == [("04_mine.py", None, 120.0)]
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0] == "Exercise 04, Bring this loop to a device: not yet. 1 thing to mend."
    assert lines[2:5] == [
        "04_mine.py:2  to mend: labels-on-cpu",
        "    loss = loss_fn(outputs, targets)",
        "  What happened.",
    ]
    assert max(map(len, lines)) <= 80 and "\x1b" not in text
    assert json.loads(own_progress.read_text())["exercises"]["04"] == {"checks": 1, "hints": 0, "passed": ""}


def test_passed(asked, capsys):
    asked[1]["passed"] = True
    assert main(["check", "4", "mine.py", "--time-limit", "7"]) == 0
    assert asked[0] == [("mine.py", "4", 7.0)]
    assert capsys.readouterr().out.startswith("Exercise 04, Bring this loop to a device: passed.")
    assert main(["lessons"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"\[x\] Bring this loop to a device \(medium, passed on \d{4}-\d\d-\d\d\)", printed)
    assert f"1 of {len(exercises())} exercises passed." in printed


def test_json(asked, capsys):
    assert main(["check", "--json", "mine.py"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["exercise"] == "04" and content["passed"] is False and content["file"] == "mine.py"
    assert content["findings"][0] | {"why": "", "remedy": ""} == {
        "kind": "labels-on-cpu",
        "severity": "failure",
        "line": 2,
        "text": "loss = loss_fn(outputs, targets)",
        "what": "What happened.",
        "why": "",
        "remedy": "",
    }


def test_wrong_usage_is_status_2(asked, capsys):
    asked[1]["error"] = "there is no file x.py"
    assert main(["check", "x.py"]) == 2
    assert main(["check", "04"]) == 2
    assert main(["check", "1", "2", "3"]) == 2
    assert main(["check", "99", "x.py", "--hint"]) == 2
    with pytest.raises(SystemExit) as stopped:
        main(["check"])
    assert stopped.value.code == 2
    assert "there is no file x.py" in capsys.readouterr().err


def test_hints_come_one_by_one(asked, capsys):
    hints = find(4).hints
    for number in [1, 2, 3, 4, 4]:
        assert main(["check", "04_mine.py", "--hint"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"Hint {number} of {len(hints)}: {hints[number - 1]}")
    assert "That was the last one." in out
    assert asked[0] == []  # nothing was checked
    assert main(["lessons"]) == 0
    assert f"4 of {len(hints)} hints" in capsys.readouterr().out


def test_a_hint_finds_the_exercise_where_the_check_finds_it(asked, capsys, tmp_path):
    file = tmp_path / "my_loop.py"
    file.write_text('"""Exercise 6: resume."""\n')
    assert main(["check", str(file), "--hint"]) == 0
    assert find(6).hints[0] in capsys.readouterr().out
    assert main(["check", "6", "--hint"]) == 0
    assert find(6).hints[1] in capsys.readouterr().out
    file.write_text("x = 1\n")
    assert main(["check", str(file), "--hint"]) == 2
    assert "my_loop.py names no exercise" in capsys.readouterr().err


def test_every_exercise_has_all_its_parts():
    assert [exercise.name for exercise in exercises()] == sorted(exercise.name for exercise in exercises())
    for exercise in exercises():
        assert exercise.name.startswith(f"{exercise.number}_")
        assert import_module(f"gpulesson.exercises.e{exercise.name}").EXERCISE is exercise
        assert exercise.lesson and exercise.title and exercise.difficulty in ("easy", "medium", "hard")
        assert exercise.rules and len(exercise.hints) >= 2


def test_a_report_in_a_notebook_shows_code_as_text():
    source = Source("<b>.py", ["if a < b & c:"])
    report = Report(None, "<b>.py", (source.failure(ERROR, 1, "x < y"),), output="<script>\n")
    shown = report._repr_html_()
    assert "if a &lt; b &amp; c:" in shown and "<script>" not in shown and "<b>" not in shown
    assert "style=" not in shown  # colours are the notebook's, light or dark


def test_importing_the_package_and_its_command_line_takes_no_torch():
    program = "import sys, gpulesson.__main__, gpulesson.exercises.checker; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=1200, check=True
    )
    assert done.stdout.strip() == "False"
