"""Runs a lesson cell by cell, as a build of the site does, and tells what each cell gave.

The clock is another one: it counts how often it was asked, a millisecond each time. So even what is printed
of times is the same again, and whatever differs is no matter of time.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
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
