"""Runs a lesson cell by cell, as a build of the site does, and tells what each cell gave.

The clock is another one: it counts how often it was asked, a millisecond each time. So even what is printed
of times is the same again, and whatever differs is no matter of time.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import time
from pathlib import Path
from types import ModuleType

os.environ.setdefault("MPLBACKEND", "Agg")  # read when matplotlib is imported
import matplotlib.pyplot as plt
from _ext import torch_state
from _ext.paths import without_paths
from _ext.recorded.files import read_cells
from _ext.recorded.run import run_cell, surroundings

PROJECT = Path(__file__).parents[2]
LESSONS = sorted([*PROJECT.glob("examples/[0-9]*.py"), *PROJECT.glob("examples/guides/*.py")])
PYTESTS_OWN = re.compile(r" in \d+\.\d\ds$", re.MULTILINE)  # its clock, in a program of its own
PROFILED = ("cpu_time_total", "time_range")  # what a cell says that shows the times of PyTorch's profiler


def run_lesson(script, file):
    """Write the code, the text and the digests of the figures of each cell into a file."""
    lesson = Path(script)
    plt.rcdefaults()
    torch_state.reset({}, lesson.name)
    set_counting_clock()
    main, told = ModuleType("__main__"), []
    with surroundings(lesson, main):
        for cell in read_cells(lesson):
            result = run_cell(cell, lesson, main)
            texts = [without_paths(text, PROJECT) for text in (result.text, result.html)]
            texts = [PYTESTS_OWN.sub("", text) for text in texts]
            figures = [digest_of_figure(number) for number in plt.get_fignums()]
            told.append({"code": cell.code, "text": "\n".join(texts), "figures": figures})
            plt.close("all")
    Path(file).write_text(json.dumps(told))


def set_counting_clock():
    """Replace the clocks that measure."""
    asked = itertools.count(1)

    def milliseconds():
        return next(asked)

    time.perf_counter = time.thread_time = lambda: milliseconds() / 1e3
    time.perf_counter_ns = time.thread_time_ns = lambda: milliseconds() * 10**6


def digest_of_figure(number):
    canvas = plt.figure(number).canvas
    canvas.draw()
    return hashlib.sha256(canvas.buffer_rgba()).hexdigest()


def differences(first, second):
    """Say where two runs of a lesson differ; of the profiler's own times, how many."""
    if len(first) != len(second):
        return "another number of cells"
    for number, (one, other) in enumerate(zip(first, second, strict=True), 1):
        if any(word in one["code"] for word in PROFILED):
            one, other = counts(one), counts(other)
        if one != other:
            return f"cell {number}: {one['text']!r:.200} and then {other['text']!r:.200}"
    return ""


def counts(cell):
    return {**cell, "text": cell["text"].count("\n"), "figures": len(cell["figures"])}
