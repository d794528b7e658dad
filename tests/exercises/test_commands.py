"""The commands ``check`` and ``lessons``, with the check itself replaced: that is tested elsewhere."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
import torch

from gpulesson.__main__ import main
from gpulesson.exercises import Report, UsageError, checker, commands, e06_resume, exercises, find, progress
from gpulesson.exercises.demands import DEMANDS, Demand, checklist
from gpulesson.exercises.findings import Diagnosis, Source
from gpulesson.exercises.rules import accuracy, called, devices, endings, errors, memory, models, steps
from gpulesson.exercises.rules.devices import LABELS_ON_CPU
from gpulesson.exercises.rules.endings import ERROR
from gpulesson.exercises.trace import ModelSeen, OptimizerSeen, Site, Trace

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = Source("04_mine.py", ["import torch", "    loss = loss_fn(outputs, targets)"])


@pytest.fixture
def asked(monkeypatch):
    """What `check` was asked, and the report that it gives."""
    calls, answer = [], {}

    def check(file, exercise=None, *, time_limit, tell):
        calls.append((file, exercise, time_limit))
        if "error" in answer:
            raise UsageError(answer["error"])
        task = find(exercise or 4)
        findings = () if answer.get("passed") else (SOURCE.failure(LABELS_ON_CPU, 2, "What happened."),)
        return Report(
            task, file, findings, (Demand("it runs", True),), "a GPU", True, ("a fact",), True, "printed\n"
        )

    monkeypatch.setattr(commands, "check", check)
    return calls, answer


def test_not_yet(asked, capsys, own_progress):
    assert main(["check", "04_mine.py"]) == 1
    assert asked[0] == [("04_mine.py", None, 120.0)]
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0] == "Exercise 04, Bring this loop to a device: not yet. 1 thing to fix."
    assert lines[2:7] == [
        "  ✓ it runs",
        "",
        "04_mine.py:2  to fix: labels-on-cpu",
        "    loss = loss_fn(outputs, targets)",
        "  What happened.",
    ]
    assert max(map(len, lines)) <= 80 and "\x1b" not in text
    entry = {"checks": 1, "hints": 0, "passed": "", "found": "labels-on-cpu"}
    assert json.loads(own_progress.read_text())["exercises"]["04"] == entry


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
        "cell": 0,
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
    assert "That was the last hint." in out
    assert asked[0] == []  # nothing was checked
    assert main(["lessons"]) == 0
    assert f"4 of {len(hints)} hints" in capsys.readouterr().out


def test_the_first_hint_is_the_one_for_the_fault_that_was_found(asked, capsys):
    hints = find(6).hints
    for kind, numbers in (("not-resumed", [1]), ("random-state-not-saved", [2, 3]), ("no-seed", [3])):
        progress.note_check("06", False, kind)
        for number in numbers:
            main(["check", "6", "--hint"])
            assert capsys.readouterr().out.startswith(f"Hint {number} of {len(hints)}: {hints[number - 1]}")


def test_every_hint_for_a_fault_is_there():
    kinds = {kind for exercise in exercises() for kind in exercise.hint_for}
    known = {
        each.kind for module in diagnosing() for each in vars(module).values() if isinstance(each, Diagnosis)
    }
    assert kinds <= known
    for exercise in exercises():
        assert all(1 < number <= len(exercise.hints) for number in exercise.hint_for.values())


def diagnosing():
    names = [f"gpulesson.exercises.e{exercise.name}" for exercise in exercises()]
    names += [
        f"gpulesson.exercises.rules.{name}" for name in ("memory", "models", "steps", "causes", "endings")
    ]
    return map(import_module, names)


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


def test_a_demand_is_met_unmet_or_not_looked_at():
    task = find(4)
    _, one, other, *_ = task.rules
    fault = SOURCE.failure(ERROR, 1, "It failed.")
    demands = checklist([one, other, one], {one: [fault], other: []}, task, trained=True)
    assert demands == (Demand(DEMANDS[one], False), Demand(DEMANDS[other], True))
    advice = SOURCE.advice(ERROR, 1, "It could be better.")
    assert checklist([one], {one: [advice]}, task, trained=True) == (
        Demand(DEMANDS[one], True, advised=True),
    )
    assert checklist([one], {}, task, trained=True) == (Demand(DEMANDS[one], None),)
    assert checklist([one], {one: []}, task, trained=False) == (Demand(DEMANDS[one], None),)
    assert checklist([one], {one: [fault]}, task, trained=True, shown=[]) == (Demand(DEMANDS[one], None),)


def test_a_demand_with_advice_is_no_plain_tick():
    task = find(4)
    advice = SOURCE.advice(memory.FETCHED_EVERY_BATCH, 2, "Twice.")
    demands = checklist([memory.fetched_once], {memory.fetched_once: [advice]}, task, trained=True)
    report = Report(task, "a.py", (advice,), demands)
    line = f"! {DEMANDS[memory.fetched_once]}"
    assert (
        f"\n  {line}\n  (! see the advice)\n" in report.text() and f"<li>{line}</li>" in report._repr_html_()
    )
    hidden = checklist([memory.fetched_once], {memory.fetched_once: [advice]}, task, trained=True, shown=[])
    assert hidden == (Demand(DEMANDS[memory.fetched_once], None),)


def test_a_rule_of_several_lines_says_which_of_them_is_not_met():
    task = find(6)
    rule = task.rules[-1]
    where_it_stopped, safely = task.demand, *task.demand_for.values()
    unsafe = SOURCE.failure(e06_resume.LOADS_ANYTHING, 1, "It loads anything.")
    other = SOURCE.failure(e06_resume.NOT_THE_SAME_BITS, 1, "They differ.")
    never = SOURCE.failure(e06_resume.NO_CHECKPOINT, 0, "Nothing was saved.")
    for findings, met in (([unsafe], [True, False]), ([other], [False, True]), ([never], [False, None])):
        demands = checklist([rule], {rule: findings}, task, trained=True)
        assert demands == tuple(map(Demand, (where_it_stopped, safely), met))
    optimizer = SOURCE.advice(devices.OPTIMIZER_BEFORE_MOVE, 1, "Too early.")
    demands = checklist([devices.trained_on], {devices.trained_on: [optimizer]}, None, trained=True)
    assert [(demand.met, demand.advised) for demand in demands] == [(True, False), (True, True)]


def test_a_fault_may_speak_of_another_demand_as_well():
    fault = SOURCE.failure(errors.LOGITS_COMPARED, 1, "The largest score.")
    found = {models.answers: [], accuracy.of_the_test_set: [fault]}
    demands = checklist(list(found), found, find(3), trained=True)
    assert [demand.met for demand in demands] == [False, False]


def test_where_nothing_trains_the_list_has_no_line_about_training():
    task = find(1)
    (ends,) = checklist([endings.raised, *task.rules[:-1]], {endings.raised: []}, task, trained=False)
    assert ends == Demand(f"{DEMANDS[endings.raised]}, with and without a GPU", True)
    stopped = checklist([endings.raised], {endings.raised: []}, task, trained=False, to_the_end=False)
    assert [demand.met for demand in stopped] == [False]
    assert len(checklist(task.rules[:2], {}, find(4), trained=False)) == 2, "and there it has"


def test_what_a_step_asks_for_is_no_mere_advice():
    adam = OptimizerSeen("Adam", Site("a.py", 1), ["cpu"], steps=9, params_on=["cuda"])
    trace = Trace(optimizers=[adam], facts={"test_samples": 0, "passes": 0})
    for task, severity in ((find(3), "failure"), (None, "advice")):
        findings, _ = checker.apply_rules(trace, SOURCE, task)
        (finding,) = (each for each in findings if each.kind == "optimizer-before-move")
        assert finding.severity == severity


def test_a_training_on_the_cpu_that_no_step_forbids_is_called_so():
    model = ModelSeen("MLP", Site("a.py", 3), False, ["cpu"], stepped=True)
    trace = Trace(device="Practice GPU", models=[model])
    assert checker._computed_on(trace, find(6)) == ("CPU", False)
    assert checker._computed_on(trace, find(4)) == checker._computed_on(trace, None) == ("Practice GPU", True)


def test_nothing_is_said_of_a_function_that_could_not_be_called():
    task = find(8)
    own = task.rules[-1]
    fault = SOURCE.failure(called.NO_FUNCTION, 0, "There is none.")
    demands = checklist([called.calls, own], {called.calls: [fault], own: []}, task, trained=False)
    assert [demand.met for demand in demands] == [False, None]


def test_of_a_run_without_training_nothing_is_said_about_training():
    for rule in (models.modes, models.answers, steps.loss_falls):
        (demand,) = checklist([rule], {rule: []}, find(11), trained=False)
        assert demand.met is None
        assert not checklist([rule], {rule: []}, find(8), trained=False), "there nothing is to be trained"


def test_the_checklist_explains_its_dots():
    demands = Demand("it runs", True), Demand("it learns", None)
    report = Report(find(4), "a.py", (SOURCE.failure(ERROR, 1, "x"),), demands)
    assert "\n  · it learns\n  (· not checked yet)\n" in report.text()
    assert "it learns" not in Report(find(4), "a.py", (), demands).text(), "a program that passed needs none"


def test_what_a_program_did_is_said_once():
    model = ModelSeen("MLP", Site("a.py", 3), False, ["cpu"], stepped=True)
    adam = OptimizerSeen("Adam", Site("a.py", 4), ["cpu"], steps=20)
    trace = Trace(models=[model] * 6, optimizers=[adam] * 6)
    assert checker.facts(trace) == (
        "MLP (6 of them): parameters on cpu",
        "training steps: 20 by each of 6 Adam optimizers",
    )


def test_the_end_of_the_output_keeps_what_is_useful_of_a_long_line():
    long = f"/{'folder/' * 20}layers.py"
    output = (
        f'  File "{long}", line 12, in forward\n    {"x" * 90}\n    {"^" * 90}\nError: {"word " * 30}end\n'
    )
    report = Report(find(4), "a.py", (SOURCE.failure(ERROR, 1, "x"),), output=output)
    tail = report.text().split("The end of its output:\n")[1].split("\n\n")[0].splitlines()
    assert max(map(len, tail)) <= 80
    assert tail[0].endswith('folder/layers.py", line 12, in forward') and tail[-1].endswith("end")


def test_no_advice_to_load_anything_and_no_colours_are_shown(tmp_path):
    torch.save({"a": torch.nn.Linear(1, 1).state_dict}, tmp_path / "a.pt")
    with pytest.raises(pickle.UnpicklingError) as caught:
        torch.load(tmp_path / "a.pt", weights_only=True)
    shown = checker.readable(f"before\nUnpicklingError: {caught.value}\nafter\n")
    assert shown.splitlines()[0] == "before" and shown.splitlines()[-1] == "after"
    assert "getattr" in shown and "trust" not in shown and "False" not in shown and "\x1b" not in shown


def test_every_rule_of_several_exercises_says_what_it_asks_for():
    counts = Counter(rule for exercise in exercises() for rule in (*exercise.rules, *exercise.last))
    assert [rule.__name__ for rule, count in counts.items() if count > 1 and rule not in DEMANDS] == []


def test_colours_are_for_terminals(asked, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    main(["check", "04_mine.py"])
    assert "\x1b[31mExercise 04" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(["check", "04_mine.py"])
    assert "\x1b" not in capsys.readouterr().out


def test_after_a_pass_it_says_what_is_next(asked, capsys):
    asked[1]["passed"] = True
    main(["check", "11", "mine.py"])
    assert f"Next: {find(12).title} (python -m gpulesson start 12)" in capsys.readouterr().out
    main(["check", str(exercises()[-1].number), "mine.py"])
    assert "That was the last exercise." in capsys.readouterr().out


def test_start_copies_the_starter_and_never_over_a_file(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for exercise in exercises():
        assert main(["start", exercise.number]) == 0
        copy = tmp_path / f"exercise_{exercise.number}.py"
        assert copy.read_text() == (EXAMPLES / "exercises" / exercise.starter).read_text()
        said = capsys.readouterr().out
        assert f"python -m gpulesson check {copy.name}" in said
        assert (f"python -m gpulesson practice --nproc 2 {copy.name}" in said) == (exercise.number == "14")
        assert checker.named_in(str(copy)) is exercise
    copy.write_text("my work")
    assert main(["start", exercise.number]) == 2 and copy.read_text() == "my work"
    assert main(["start", "99"]) == 2
    assert "is here already" in capsys.readouterr().err


def test_a_lesson_is_not_taken_for_an_exercise(capsys):
    assert main(["check", str(EXAMPLES / "04_training_loop.py")]) == 2
    assert "is a lesson, not an exercise: python -m gpulesson start 04" in capsys.readouterr().err


def test_a_saved_file_is_checked_again(asked, capsys, tmp_path):
    file = tmp_path / "04_mine.py"
    file.write_text("x = 1\n")

    def save() -> None:
        while not asked[0]:
            time.sleep(0.01)
        os.utime(file, ns=(1, 1))
        while len(asked[0]) < 2:
            time.sleep(0.01)
        asked[1]["error"] = "there is no file any more"
        os.utime(file, ns=(2, 2))

    thread = threading.Thread(target=save)
    thread.start()
    assert main(["check", str(file), "--watch"]) == 2  # ended by the error
    thread.join()
    assert capsys.readouterr().out.count("1 thing to fix") == 2


def test_two_checks_at_once_lose_no_progress(own_progress):
    program = "from gpulesson.exercises import progress\nfor _ in range(20): progress.note_check('04', False)"
    both = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [process.wait(timeout=600) for process in both] == [0, 0]
    assert json.loads(own_progress.read_text())["exercises"]["04"]["checks"] == 40


def test_a_notebook_becomes_a_program():
    cells = [
        ("markdown", "text"),
        ("code", ["%matplotlib inline\n", "x = 1\n", "!ls"]),
        ("code", "%%bash\nls\n"),
    ]
    content = {"cells": [{"cell_type": kind, "source": source} for kind, source in cells]}
    code, cells = checker.notebook_code("a.ipynb", json.dumps(content).encode())
    assert cells == (1, 5)
    assert code.decode().splitlines() == [
        "# cell 1", "pass  # %matplotlib inline", "x = 1", "pass  # !ls", "# cell 2", "# %%bash", "# ls"
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"a\.ipynb cannot be read as a notebook"):
        checker.notebook_code("a.ipynb", b"[]")


@pytest.mark.parametrize(
    "magic", ["%%time", "\n%%capture out", "%%timeit -n 1", "%%prun", "%%capture\n%%time"]
)
def test_a_cell_that_is_timed_or_captured_runs(magic):
    content = {"cells": [{"cell_type": "code", "source": f"{magic}\nx = 1\nif x:\n    %time y = 2\n"}]}
    code, _ = checker.notebook_code("a.ipynb", json.dumps(content).encode())
    ran = {}
    exec(code, ran)
    assert ran["x"] == 1 and "y" not in ran
    assert code.decode().splitlines().index("x = 1") == 1 + len(magic.splitlines())


@pytest.mark.parametrize("magic", ["%%bash", "%%html", "%%writefile a.py", "%%timed", "%% time"])
def test_a_cell_in_another_language_does_not_run(magic):
    content = {"cells": [{"cell_type": "code", "source": f"{magic}\nx = 1\n"}]}
    code, _ = checker.notebook_code("a.ipynb", json.dumps(content).encode())
    ran = {}
    exec(code, ran)
    assert "x" not in ran


def test_a_finding_in_a_notebook_names_the_cell_and_its_line():
    source = Source("a.py", ["# cell 1", "x = 1", "# cell 2", "", "y = x"], cells=(1, 3))
    finding = source.failure(ERROR, 5, "What happened.")
    assert (finding.cell, finding.line, finding.text) == (2, 2, "y = x")
    assert finding.place == source.where(5) == "cell 2, line 2" and source.failure(ERROR, 0, "").place == ""
    report = Report(None, "a.ipynb", (finding,))
    assert "\na.ipynb, cell 2, line 2  to fix: error\n" in report.text()
    assert "(a.ipynb, cell 2, line 2)" in report._repr_html_()
    assert (report.to_dict()["findings"][0]["cell"], report.to_dict()["findings"][0]["line"]) == (2, 2)
    printed = (
        'a.py:2: UserWarning: x\n  File "a.py", line 5, in f\n  File "b.py", line 5\nTabError: on line 2\n'
    )
    assert source.in_cells(printed) == (
        'a.ipynb, cell 1, line 1: UserWarning: x\n  File "a.ipynb", cell 2, line 2, in f\n'
        '  File "b.py", line 5\nTabError: on cell 1, line 1\n'
    )
    file = Source("a.py", ["x = 1"])
    finding = file.failure(ERROR, 1, "")
    assert (finding.cell, finding.line, file.in_cells(printed)) == (0, 1, printed)
    assert "\na.py:1  to fix: error\n" in Report(None, "a.py", (finding,)).text()


@pytest.mark.slow
def test_a_notebook_is_checked_and_its_cells_are_named(tmp_path, warm):
    first, *rest = (EXAMPLES / "solutions/solution_04.py").read_text().split("\n\n\n")
    rest[-1] = rest[-1].replace("model.eval()", "")
    sources = ["%matplotlib inline", first, "\n\n\n".join(rest), "def f():\n    return 1 / 0\n", "", "\nf()"]

    def checked(name: str, number: int) -> tuple[list[tuple[str, int, int]], Report]:
        cells = [{"cell_type": "code", "source": source} for source in sources[:number]]
        (tmp_path / name).write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ""}, *cells]}))
        report = checker.check(tmp_path / name, warm=warm)
        return [(found.kind, found.cell, found.line) for found in report.findings], report

    (found,), report = checked("04_mine.ipynb", 3)
    lines = sources[2].splitlines()
    assert found[:2] == ("missing-eval", 3) and "model(" in lines[found[2] - 1], str(report)
    (found,), report = checked("04_mine.ipynb", 6)
    assert found == ("divided-by-zero", 4, 2) and report.file == "04_mine.ipynb"
    assert re.findall(r'File "(.+?)", (.+), in', report.output) == [
        ("04_mine.ipynb", "cell 6, line 2"),
        ("04_mine.ipynb", "cell 4, line 2"),
    ]


def test_the_data_that_a_program_names_is_found_beside_it(tmp_path):
    for name in ("numbers.csv", "other.csv", "helper.py"):
        (tmp_path / name).write_text("1,2\n")
    (tmp_path / "pictures").mkdir()
    text = 'open("numbers.csv"); open(\'pictures/a.png\'); open("/etc/passwd"); open("../x"); "helper.py"; ""'
    found = checker.named_beside(Source("a.py", [text]), tmp_path)
    assert [path.name for path in found] == ["numbers.csv", "pictures"]
    assert checker.named_beside(Source("a.py", ["x = ("]), tmp_path) == []
