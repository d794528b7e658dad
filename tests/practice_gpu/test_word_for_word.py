"""The comparison of the practice GPU with a real one finds every kind of difference, and always an answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import word_for_word
from warm import POSSIBLE, WarmProcess
from word_for_word import Asking, Program, alike, described, of_script, programs, text_of, verdict

GPUS = {"real": "NVIDIA Pretended 9000", "practice": "Practice GPU"}


def answer(side: str, kind: str = "", text: str = "", value: Any = None, key: str = "operator: add") -> Any:
    return {"key": key, "side": side, "type": kind, "text": text, "value": value}


@pytest.mark.parametrize(
    ("real", "practice", "expected"),
    [
        (("", "", [1.0]), ("", "", [1.00001]), "agree"),
        (("", "", [1.0]), ("", "", [1.1]), "other value"),
        (("", "", [1.0]), ("RuntimeError", "no"), "other type"),
        (("ValueError", "no"), ("RuntimeError", "no"), "other type"),
        (("RuntimeError", "yes"), ("RuntimeError", "no"), "other text"),
        (("RuntimeError", "no\nhint"), ("RuntimeError", "no\nanother"), "same first line"),
        (("RuntimeError", "on NVIDIA Pretended 9000"), ("RuntimeError", "on Practice GPU"), "agree"),
        (("none", "it ended"), ("none", "it ended"), "no answer"),
    ],
)
def test_every_kind_of_difference_has_a_name(real, practice, expected):
    assert verdict(answer("real", *real), answer("practice", *practice), GPUS) == expected


def test_what_scripts_print_agrees_but_for_numbers_and_names():
    def both(one: list[Any], other: list[Any]) -> str:
        first = answer("real", value=one, key="solution: 01")
        return verdict(first, answer("practice", value=other, key="solution: 01"), GPUS)

    assert both([0, "NVIDIA Pretended 9000 in 1.5 s"], [0, "Practice GPU in 2 s"]) == "agree"
    assert both([0, "yes"], [0, "no"]) == "other value"
    assert both([0, "yes"], [3, "yes"]) == "other value"


def test_results_are_described_and_compared():
    assert described((torch.tensor([1, 2]), True)) == [["torch.int64 [2] on cpu", 1.0, 2.0], True]
    assert described(torch.tensor([1 + 2j])) == ["torch.complex64 [1] on cpu", 1.0, 2.0]
    assert described(object()) == "object"
    assert alike([float("nan")], [float("nan")])
    assert not alike([1.0], [1.0, 2.0]) and not alike("on cpu", "on cuda:0")


def test_the_error_of_a_script_is_read_from_its_traceback():
    text = 'a warning\nTraceback (most recent call last):\n  File "x"\n    f()\ntorch.cuda.X: one\n\ntwo: 2\n'
    assert of_script(1, "out", text) == {"type": "X", "text": "one\n\ntwo: 2", "value": [1, "out"]}
    assert of_script(0, "out", "a warning: it is one")["type"] == ""
    assert of_script(1, "", "Traceback (most recent call last):\n  f()\nKeyError")["type"] == "KeyError"


def test_there_are_programs_of_every_group():
    found = list(programs())
    counts = {group: len([p for p in found if p.group == group]) for group in {p.group for p in found}}
    assert counts.keys() == {"operator", "mistake", "error page", "solution"}
    assert counts["operator"] > 100 and counts["mistake"] > 5 and counts["error page"] > 60
    keys = [key for program in found for key in program.keys]
    assert len(keys) == len(set(keys))


def test_the_table_shows_differences_in_full():
    sides = [answer(side, "RuntimeError", f"said by {side}") for side in GPUS]
    table = "\n".join(text_of([("operator", "other text", *sides)], {"device": "NVIDIA X", "torch": "9"}))
    assert "other text          1" in table
    assert "operator: add: other text\n  real      RuntimeError: said by real  null" in table


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.skipif(not POSSIBLE, reason="no warm process here")
def test_every_program_is_answered_for(tmp_path, monkeypatch):
    monkeypatch.setattr(word_for_word, "LIMIT", 600)
    paths = [word_for_word.HERE, word_for_word.ROOT / "src", word_for_word.ROOT / "tests" / "site"]
    environment = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PATH": "/usr/bin", "HOME": str(tmp_path)}
    todo = [
        Program("mistake", "to_numpy", ("to_numpy", "label_out_of_range")),
        Program("operator", "add", ("add | cc", "add | cp")),
        Program("solution", "fails", script="import torch\nprint(1)\ntorch.ones(2).to('cuda:7')"),
        Program("solution", "killed", script="import os; os.kill(os.getpid(), 9)"),
    ]
    with WarmProcess(("torch", "word_for_word"), environment) as warm:
        asking = Asking(warm, tmp_path, rehearse=True)
        for program in todo:
            asking.ask(program, "real")
        monkeypatch.setattr(word_for_word, "LIMIT", 0.5)
        asking.ask(Program("error page", "hangs", script="import time\nwhile True: time.sleep(1)"), "real")
    found = {key: said for (key, _), said in asking.answers().items()}
    assert found["mistake: to_numpy"]["text"].startswith("can't convert cuda:0 device type tensor to numpy")
    assert found["mistake: label_out_of_range"]["type"] == "AcceleratorError"
    assert found["operator: add | cc"]["value"][0] == "torch.float32 [2, 3] on cuda:0"
    assert found["operator: add | cp"]["type"] == "RuntimeError"
    assert found["solution: fails"]["text"].startswith("CUDA error: invalid device ordinal")
    assert found["solution: fails"]["value"] == [1, "1\n"]
    assert found["solution: killed"]["value"] == [-9, ""]
    assert found["error page: hangs"]["type"] == "none"
    assert Path(tmp_path / "answers.jsonl").read_text().count("\n") == 7
