"""What a check says is short, in the words of the lessons, and its code can be typed as it stands."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import gpulesson.exercises
from gpulesson.exercises import exercises
from gpulesson.exercises.demands import DEMANDS
from gpulesson.exercises.findings import Diagnosis, plural, times
from gpulesson.exercises.rules import errors

PACKAGE = Path(gpulesson.exercises.__file__).parent
MODULES = [
    import_module(f"gpulesson.exercises.{folder}{module.name}")
    for folder in ("", "rules.")
    for module in iter_modules([str(PACKAGE / folder.strip("."))])
]
DIAGNOSES = {value for module in MODULES for value in vars(module).values() if isinstance(value, Diagnosis)}
HINTS = [hint for exercise in exercises() for hint in exercise.hints]
OTHER_WORDS = r"\b(judg\w*|mend(s|ed|ing)?|whoever|somebody|a training(?=[.,;:?!)])|stands? in for)\b"
CURLY_CODE = r"[“”][^“”\s]*[(=\[][^“”\s]*[“”]"


def sentences(text: str) -> list[str]:
    text = re.sub(r'"[^"]*"', "code", text)
    return [part for part in re.split(r"(?<=[.?!)])\s+(?=[A-Z(“])", text) if part]


def test_each_part_of_a_diagnosis_is_short_and_ends():
    parts = [text for each in DIAGNOSES for text in (each.why, each.remedy.removesuffix(errors.PAGE).strip())]
    assert [text for text in parts if len(sentences(text)) > 2 or len(text.split()) > 34] == []
    assert [text for text in parts if not re.search(r"[.?:)]$", text)] == []
    assert [text for text in parts if re.search(CURLY_CODE, text)] == []


def test_the_words_are_those_of_the_lessons():
    said = [text for diagnosis in DIAGNOSES for text in diagnosis] + HINTS + list(DEMANDS.values())
    assert len(DIAGNOSES) > 150
    assert [text for text in said if re.search(OTHER_WORDS, text, re.IGNORECASE)] == []


def test_an_exercise_with_a_rule_of_its_own_says_what_it_asks_for():
    for exercise in exercises():
        own = [rule for rule in (*exercise.rules, *exercise.last) if rule not in DEMANDS]
        assert bool(exercise.demand) == bool(own), exercise.name


def test_one_is_counted_as_one_says_it():
    assert [plural(number, "step") for number in (0, 1, 20)] == ["0 steps", "1 step", "20 steps"]
    assert [times(number) for number in (0, 1, 20)] == ["0 times", "once", "20 times"]
