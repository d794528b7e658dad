"""Right functions, however they are written, pass."""

from __future__ import annotations

import pytest
from right import RIGHT

from gpulesson_tools.exercises import exercises, find
from gpulesson_tools.exercises.checker import begin

PROGRAMS = [
    pytest.param(number, text, id=f"{number}-{place}", marks=[pytest.mark.thorough] if place > 1 else [])
    for number, texts in RIGHT.items()
    for place, text in enumerate(texts, 1)
]


def test_every_exercise_has_other_styles():
    assert set(RIGHT) == {exercise.number for exercise in exercises()}
    assert all(len(texts) >= 2 for texts in RIGHT.values())


@pytest.mark.slow
@pytest.mark.parametrize(("number", "text"), PROGRAMS)
def test_it_passes(number, text, tmp_path):
    path = tmp_path / find(number).starter
    path.write_text(text, encoding="utf-8")
    report = begin(path).report()
    assert report.passed, report
