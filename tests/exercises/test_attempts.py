"""Wrong attempts get their own diagnosis, on the right line; right solutions, however written, pass.

All begin in forks of one process that has imported PyTorch; test_robust.py has real starts.

An attempt says what is to be found, in comments: ``# <- diagnosis: labels-on-cpu`` on the faulty line, and
``# <- diagnosis: no-accuracy (no line)`` anywhere for what has none. Several of one line stand there with
commas.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

from gpulesson.exercises import check, exercises, find

EXERCISES = exercises()
HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
ATTEMPTS = sorted((HERE / "attempts").glob("*.py"))
RIGHT = sorted((HERE / "right").glob("*.py"))
ADVICE_ONLY = {
    "03_loss_printed_with_history",
    "04_evaluated_on_the_cpu",
    "04_item_every_step",
    "04_device_written_down",
    "04_fetched_every_batch",
    "04_not_shuffled",
}


def expected(file: Path) -> list[tuple[str, int]]:
    """The diagnoses that a file's comments name, with their lines."""
    found = []
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        if match := re.search(r"# <- diagnosis: ([\w, -]+?)( \(no line\))?$", line):
            found += [(kind, 0 if match[2] else number) for kind in match[1].split(", ")]
    return sorted(found, key=lambda pair: (pair[1] or 10_000, pair[0]))


def found(report, severity: str) -> list[tuple[str, int]]:
    kinds = [(each.kind, each.line) for each in report.findings if each.severity == severity]
    return sorted(kinds, key=lambda pair: (pair[1] or 10_000, pair[0]))


@pytest.mark.slow
@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda path: path.stem)
def test_an_attempt_gets_its_diagnosis(attempt, warm, few_images, monkeypatch):
    monkeypatch.setenv("GPULESSON_DATA", str(few_images))
    report = check(attempt, warm=warm)
    assert expected(attempt), "an attempt says what is wrong with it"
    if "accelerator-not-asked" in attempt.read_text():
        built_for = torch.accelerator.current_accelerator()
        if built_for is None or built_for.type != "cuda":
            pytest.skip("without a PyTorch for CUDA, the accelerator that is named is none, or works")
    severity = "advice" if attempt.stem in ADVICE_ONLY else "failure"
    assert found(report, severity) == expected(attempt), str(report)
    assert report.passed == (attempt.stem in ADVICE_ONLY)
    for finding in report.findings:
        line = attempt.read_text().splitlines()[finding.line - 1].strip() if finding.line else ""
        assert finding.text == line and finding.what and finding.why and finding.remedy


@pytest.mark.slow
@pytest.mark.parametrize("solution", RIGHT, ids=lambda path: path.stem)
def test_a_right_solution_passes_however_it_is_written(solution, warm, few_images, monkeypatch):
    monkeypatch.setenv("GPULESSON_DATA", str(few_images))
    report = check(solution, warm=warm)
    assert report.passed, str(report)
    assert report.exercise is not None and report.exercise.number == solution.name[:2]
    assert {finding.kind for finding in report.findings} <= {"item-every-step", "fetched-every-batch"}


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_the_starter_as_it_is_given_is_one_of_the_attempts(exercise):
    """So its check, above, shows what a learner who has done nothing yet is told."""
    given = HERE / "attempts" / f"{exercise.number}_as_given.py"
    starter = EXAMPLES / "exercises" / exercise.starter
    trees = [ast.dump(ast.parse(file.read_text())) for file in (given, starter)]
    assert trees[0] == trees[1], "but for comments and line breaks"


@pytest.mark.slow
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_a_solution_passes_without_advice(exercise, warm):
    report = check(EXAMPLES / "solutions" / exercise.solution, warm=warm)
    assert report.passed and not report.findings, str(report)


NOTHING = {
    "empty": "",
    "pass": "pass\n",
    "another program": "import torch\nprint(torch.ones(2, device=torch.get_default_device()).sum())\n",
    "the expected words": (
        "print('measured right, well fed, nothing is kept, lean, it pays, the same bits, "
        "it fits, and learns the same, accuracy 0.99')\n"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", NOTHING.values(), ids=NOTHING)
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.number)
def test_a_program_that_does_nothing_of_the_exercise_has_not_passed(exercise, text, warm, tmp_path):
    """Where there is no evidence, there is a failure."""
    file = tmp_path / f"{exercise.name}.py"
    file.write_text(text)
    report = check(file, warm=warm)
    assert report.exercise is exercise and not report.passed, str(report)


EXPECTED_LINES = {
    "01": "done on cuda:0: (64, 10) scores",
    "02": "8 of 8",
    "03": "parameters on cuda:0\nepoch   1  loss 1.1\naccuracy 100.0%: 30 of 30 new flowers",
    "04": "parameters on cuda:0\naccuracy 0.9528: 343 of 360",
    "05": "accuracy 80%\nShirt 51%\nPullover 60%\ntogether 80%",
    "06": "the same bits",
    "07": "40 losses held 512 bytes each\naccuracy 99.00%\naccuracy 99.00%",
    "14": "epoch 1: loss 0.6862\nepoch 2: loss 0.6431\nepoch 3: loss 0.5981",
}
READS_THE_SOLUTION = {
    "exec": "exec(open({path!r}).read())\n",
    "runpy": "import runpy\nrunpy.run_path({path!r}, run_name='__main__')\n",
}
UNKNOWABLE = {"02": "answers that were read and answers that were thought of are the same eight words"}
"""Exercises in which no checker can tell a program that reads the solution, and why."""


@pytest.mark.slow
@pytest.mark.parametrize("number", EXPECTED_LINES)
def test_a_program_that_only_prints_the_expected_lines_has_not_passed(number, warm, tmp_path):
    file = tmp_path / f"{number}_mine.py"
    file.write_text(f"print({EXPECTED_LINES[number]!r})\n")
    report = check(file, warm=warm)
    assert not report.passed, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("way", READS_THE_SOLUTION)
@pytest.mark.parametrize("number", [number for number in EXPECTED_LINES if number not in UNKNOWABLE])
def test_a_program_that_runs_the_solution_has_not_passed(
    number, way, warm, tmp_path, few_images, monkeypatch
):
    monkeypatch.setenv("GPULESSON_DATA", str(few_images))
    solution = EXAMPLES / "solutions" / find(number).solution
    file = tmp_path / f"{number}_mine.py"
    file.write_text(READS_THE_SOLUTION[way].format(path=str(solution)))
    report = check(file, warm=warm)
    assert [finding.kind for finding in report.findings] == ["another-file"], str(report)


def test_the_catalogue_says_what_the_lessons_and_the_files_say():
    for exercise in EXERCISES:
        (lesson,) = EXAMPLES.glob(f"{exercise.number}_*.py")
        text = lesson.read_text()
        assert f"{int(exercise.number)} · {exercise.lesson}" == text.splitlines()[1]
        assert f"exercise:: {exercise.title}\n" in text
        assert f":difficulty: {exercise.difficulty}\n" in text
        assert f":starter: {exercise.starter}\n" in text and f":file: {exercise.solution}\n" in text
        assert f"``python -m gpulesson check {exercise.starter}``" in text
        assert (EXAMPLES / "exercises" / exercise.starter).is_file()
        assert (EXAMPLES / "solutions" / exercise.solution).is_file()


def test_there_are_attempts_for_every_exercise_and_ten_right_solutions_of_the_central_one():
    for exercise in EXERCISES:
        assert len([path for path in ATTEMPTS if path.name.startswith(exercise.number)]) >= 2
    assert len([path for path in RIGHT if path.name.startswith("04_")]) >= 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempt", "words"),
    {
        "07_class_weights_copy_lost": "the class weights are still on cpu",
        "03_copy_thrown_away": "the labels are still on cpu",
        "08_median_divided": "That is 45 times too small",
        "07_detached_and_lost": "39 losses of earlier steps",
        "08_warm_up_of_four": "leaves out 4 calls, too few",
        "08_warmed_up_once": "leaves out 1 call, too few",
        "12_same_rate_for_both": "a rate of 0.03; expected 0.001",
        "12_two_seeds": "1, 2; expected 0, 1, 2",
        "01_cuda_left_over": "write .to(device) for .cuda()",
        "01_name_of_the_gpu": "only where there is such a GPU",
        "02_key_twice": "“g” is here for the second time, and ANSWERS has no “h”",
        "05_best_first": "Leave out descending=True",
        "05_in_their_order": "sorted(zip(numbers, names))",
        "05_whole_total": "Divide with a single /",
        "06_seeded_and_no_state_saved": "no random state had been saved. Save torch.get_rng_state()",
        "06_adam_not_restored": 'optimizer.load_state_dict(state["adam"])',
        "06_one_epoch_left_out": "Leave out the + 1",
    }.items(),
)
def test_the_words_name_what_was_seen(attempt, words, warm):
    report = check(HERE / "attempts" / f"{attempt}.py", warm=warm)
    assert words in f"{report.findings[0].what} {report.findings[0].remedy}"


@pytest.mark.slow
def test_the_check_itself_keeps_no_loss(warm):
    """So the program counts the bytes of its losses as it does without a check."""
    report = check(HERE / "attempts" / "07_last_eval.py", warm=warm)
    assert "40 losses held 512 bytes each" in report.output


@pytest.mark.slow
def test_the_facts_of_several_models_are_not_mixed(warm):
    report = check(EXAMPLES / "solutions" / "solution_12.py", warm=warm)
    assert report.device == "CPU" and not any("loss" in fact for fact in report.facts)
    report = check(EXAMPLES / "solutions" / "solution_11.py", warm=warm)
    assert not report.facts, "there the check's own calls count"


@pytest.mark.slow
def test_the_checklist_of_an_exercise_without_training_names_none(warm):
    report = check(HERE / "attempts" / "08_warm_up_of_four.py", warm=warm)
    assert all(demand.met is not None for demand in report.demands), str(report)
