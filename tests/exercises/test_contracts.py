"""Every exercise: the solution is right, and nothing but mistakes that were made is named."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
from functools import cache
from pathlib import Path

import pytest
from unfinished import UNFINISHED

from gpulesson_tools.exercises import exercises, find
from gpulesson_tools.exercises.contract import Referee, Task, differ, on_gpu, seen
from gpulesson_tools.exercises.report import answer_to
from gpulesson_tools.exercises.words import ELSE, SEEN

ROOT = Path(__file__).parents[2]
NUMBERS = [exercise.number for exercise in exercises()]
TASKS = [
    pytest.param(exercise.number, task, id=f"{exercise.number}-{task.name}")
    for exercise in exercises()
    for task in exercise.tasks()
]


def module(kind: str, number: str):
    path = ROOT / f"examples/{kind}s/{kind}_{number}.py"
    spec = importlib.util.spec_from_file_location(f"{kind}_{number}", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@cache
def referee_of(number: str, name: str) -> Referee:
    """What is known of a task's reference need not be found out by each test anew."""
    return Referee(next(task for task in find(number).tasks() if task.name == name))


def written(task: Task, chosen):
    """A program with these mistakes, as its own text: only the switches are the reference's."""
    switches = {mistake.switch: mistake.value for mistake in chosen}
    text = f"import {task.reference.__module__} as exercise\n"
    if task.value:
        text += f"{task.name} = exercise.{task.reference.__name__}(**{switches!r})\n"
    else:
        text += f"def {task.name}(*args, **kwargs):\n"
        text += f"    return exercise.{task.reference.__name__}(*args, **kwargs, **{switches!r})\n"
    space: dict = {}
    exec(text, space)
    return space[task.name]


@pytest.mark.slow
@pytest.mark.parametrize("every", [50, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("number", "task"), TASKS)
def test_what_is_named_was_made_and_what_is_left_is_found_next(number, task, every):
    """All single mistakes, so that none looks like another or like none; and one pair of `every`."""
    referee = referee_of(number, task.name)
    assert referee.explain(referee.facts()).right
    with on_gpu(task):
        failed = wrongly_named(task, referee, every)
    assert not failed, "\n".join(failed)


def wrongly_named(task: Task, referee: Referee, every: int) -> list[str]:
    failed = []
    for size in (1, 2):
        step = every if size == 2 else 1
        for chosen in itertools.islice(itertools.combinations(task.mistakes, size), 0, None, step):
            if len({mistake.switch for mistake in chosen}) < size:
                continue
            # one alone is called anew, as a program: what is seen must not change from call to call
            facts = seen(task, written(task, chosen)) if size == 1 else referee.facts(chosen)
            found = referee.explain(facts)
            same = not differ(referee.facts(tuple(found.mistakes)), facts)  # perhaps by others
            if size == 1:
                said = [each.kind for each in answer_to(task, referee, facts).findings]
                right = tuple(found.mistakes) == chosen and said == [chosen[0].kind]
            else:  # one is mended, and the other is then alone
                right = (
                    same
                    or found.empty
                    or (set(found.mistakes) < set(chosen) and bool(found.mistakes or found.unexplained))
                )
            if not right:
                names = [mistake.kind for mistake in chosen]
                failed.append(f"{names} named {[m.kind for m in found.mistakes]}, left {found.unexplained}")
    return failed


@pytest.mark.parametrize(("number", "task"), TASKS)
def test_the_words_are_complete(number, task):
    for mistake in task.mistakes:
        assert mistake.says.endswith((".", "?")) and mistake.fix.endswith("."), mistake.kind
    for words in task.words.values():
        if isinstance(words, dict):
            assert ELSE in words
        elif not callable(words):  # only a sentence is filled in
            assert "{" not in words or words.endswith((".", "?")), words
    # what no mistake explains is said by its fact, so every fact but an error has words
    missing = set(referee_of(number, task.name).facts()) - set(task.words) - set(SEEN) - {"error", "line"}
    assert not missing


@pytest.mark.slow
@pytest.mark.parametrize("number", NUMBERS)
def test_the_solution_is_right_and_the_starter_is_not_begun(number):
    solution, starter = module("solution", number), module("exercise", number)
    for task in find(number).tasks():
        right = referee_of(number, task.name).facts()
        assert not differ(seen(task, getattr(solution, task.name)), right), task.name
        assert differ(seen(task, getattr(starter, task.name)), right), task.name


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name", "body", "named", "left"), UNFINISHED)
def test_of_half_a_function_the_next_step_is_said_and_nothing_made_up(number, name, body, named, left):
    space = vars(module("solution", number))
    exec(f"def {name}{inspect.signature(space[name])}:\n    {body}\n", space)
    referee = referee_of(number, name)
    found = referee.explain(seen(referee.task, space[name]))
    assert "; ".join(each.kind for each in found.mistakes) == named and " ".join(found.unexplained) == left
