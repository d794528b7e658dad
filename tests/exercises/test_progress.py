from __future__ import annotations

import json
import os

import pytest

from gpulesson.exercises import progress


def test_checks_hints_and_the_first_pass_are_remembered(own_progress):
    progress.note_check("04", False)
    progress.note_hint("04", 2)
    assert progress.load()["04"] == progress.Progress(checks=1, hints=2, passed="")
    progress.note_check("04", True)
    day = progress.load()["04"].passed
    assert day.count("-") == 2
    content = json.loads(own_progress.read_text())
    content["exercises"]["04"]["passed"] = "2020-02-02"
    own_progress.write_text(json.dumps(content))
    progress.note_check("04", True)
    assert progress.load()["04"] == progress.Progress(checks=3, hints=2, passed="2020-02-02")
    left = {path.name for path in own_progress.parent.iterdir()} - {f"{own_progress.name}.lock"}
    assert left == {own_progress.name}


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 10**5,
        '{"exercises": {"04": 3}}',
        '{"exercises": {"04": {"checks": "x"}}}',
        '{"exercises": {"04": {"checks": 1e999, "hints": 0, "passed": ""}}}',
    ],
    ids=range(8),
)
def test_a_damaged_file_is_put_aside_and_nothing_stops(own_progress, damage):
    own_progress.parent.mkdir(parents=True)
    own_progress.write_text(damage)
    assert progress.load() == {}
    assert own_progress.with_name("progress.json.damaged").read_text() == damage
    assert progress.note_check("01", True) and progress.load()["01"].checks == 1


def test_a_file_that_is_not_utf_8_counts_as_damaged(own_progress):
    own_progress.parent.mkdir(parents=True)
    own_progress.write_bytes(b"\xff\xfe\x00")
    assert progress.load() == {}


def test_a_folder_that_cannot_be_written_is_no_error(own_progress, monkeypatch):
    own_progress.parent.write_text("a file where the folder should be")
    assert progress.note_check("01", True) is False


def test_where_it_is_kept(monkeypatch, tmp_path):
    monkeypatch.delenv("GPULESSON_PROGRESS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert progress.progress_file() == tmp_path / "gpulesson" / "progress.json"
    monkeypatch.setenv("GPULESSON_PROGRESS", os.path.join("~", "mine.json"))  # noqa: PTH118
    assert progress.progress_file().is_absolute()
