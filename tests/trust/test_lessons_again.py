"""A lesson that runs again prints and draws the same."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lesson_runs import LESSONS, differences
from warm import POSSIBLE, WarmProcess

TIMES = 5  # in all
FOLDER = Path(__file__).parent


@pytest.fixture
def warm_with_docs():
    """A process that has imported what the lessons need."""
    if not POSSIBLE:
        pytest.skip("this system has no warm process")
    places = [str(place) for place in (FOLDER, FOLDER.parents[1] / "src", FOLDER.parents[1] / "docs")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "CUDA_VISIBLE_DEVICES": ""}
    with WarmProcess(
        ["torch._dynamo", "torchvision", "sklearn.datasets", "lesson_runs"], environment
    ) as warm:
        yield warm, environment


@pytest.mark.slow
def test_lessons_again(tally, warm_with_docs, tmp_path):
    warm, environment = warm_with_docs

    def run(job):
        lesson, number = job
        folder, file = tmp_path / f"{lesson.stem} {number}", tmp_path / f"{lesson.stem} {number}.json"
        folder.mkdir()
        child = warm.start(
            "lesson_runs:run_lesson", str(lesson), str(file), folder=folder, environment=environment
        )
        output = child.communicate()[0]
        return lesson, json.loads(file.read_text()) if file.exists() else output[-500:]

    first = {}
    lessons = LESSONS if tally.scale >= 1 else tally.pick(LESSONS[1:])
    times = TIMES if tally.scale >= 1 else 2
    jobs = [(lesson, number) for lesson in lessons for number in range(times)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for lesson, told in pool.map(run, jobs):
            if isinstance(told, str):
                tally.count(f"{lesson.stem}: {told}")
            elif lesson in first:
                tally.count(f"{lesson.stem}: {found}" if (found := differences(first[lesson], told)) else "")
            else:
                first[lesson] = told
    assert first.keys() == set(lessons)
    tally.notes.append(
        f"{len(lessons)} lessons and guides, text and figures; of the profiler's times, how many"
    )


@pytest.mark.slow
def test_what_differs_is_found():
    cell = {"code": "print(1)", "text": "1\n", "figures": ["a"]}
    assert differences([cell, cell], [cell, cell]) == ""
    assert differences([cell], [cell, cell])
    assert differences([cell], [{**cell, "text": "2\n"}]).startswith("cell 1: '1\\n'")
    assert differences([cell], [{**cell, "figures": ["b"]}])
    profiled = {**cell, "code": "entry.self_cpu_time_total"}
    assert differences([profiled], [{**profiled, "text": "2\n", "figures": ["b"]}]) == ""
    assert differences([profiled], [{**profiled, "text": "2\n3\n"}])
    assert differences([profiled], [{**profiled, "figures": []}])
