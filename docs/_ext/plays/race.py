"""Lesson 1: a CPU and a GPU at one matrix product, as a machine with both recorded it.

It prints both ends of each line. What is between them is read off its picture, which the ends scale.
"""

from __future__ import annotations

import re
from itertools import groupby
from math import log10
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..recorded.files import Recording, load
from . import table

RECORDING = Path(__file__).parents[2] / "recordings" / "01_is_there_a_gpu.json"
LINES = (31, 119, 180), (255, 127, 14)  # Matplotlib's first two colours
MARGIN = 0.05  # Matplotlib's, on each side of the points


def play(names: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Give the recorded speeds, and the time of a product at each size."""
    recording, sizes = load(RECORDING), names["sizes"]
    speeds = recorded(recording, sizes)
    run = recording.run
    source = f"Recorded on {run.date} with PyTorch {run.torch} and driver {run.driver}"
    data = {"sizes": sizes, "speeds": list(speeds.values()), "names": list(speeds), "source": source}
    rows = []
    for at, size in enumerate(sizes):
        times = (2e-3 * size**3 / line[at] for line in speeds.values())  # microseconds
        rows.append([size, *(f"{float(f'{time:.2g}'):,g} µs" for time in times)])
    return data, table(["Rows and columns", *speeds], rows, source)


def recorded(recording: Recording, sizes: list[int]) -> dict[str, list[float]]:
    """Return each processor's billions of calculations a second at each size."""
    said = "\n".join(line for cell in recording.cells for line in cell.stdout)
    rows = re.findall(r"^ *[\d.]+ +([\d,]+\.\d)  (.+)$", said, re.M)
    ends = {name: float(speed.replace(",", "")) for speed, name in rows}
    (figure,) = (figure for cell in recording.cells for figure in cell.figures)
    heights = read(RECORDING.with_suffix("") / figure.file, sizes)
    (one, other), (low, high) = ends.values(), (line[-1] for line in heights)
    scale = log10(other / one) / (low - high)  # powers of ten for each pixel
    return {
        name: [end * 10 ** (scale * (line[-1] - height)) for height in line]
        for (name, end), line in zip(ends.items(), heights, strict=True)
    }


def read(picture: Path, sizes: list[int]) -> list[list[float]]:
    """Return how many pixels from the top each line has its markers."""
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    frame = np.flatnonzero((pixels.sum(2) < 60).mean(0) > 0.7)  # its two upright sides
    heights: list[list[float]] = []
    for colour in LINES:
        heights.append([])
        for size in sizes:
            share = (log10(size / sizes[0]) / log10(sizes[-1] / sizes[0]) + MARGIN) / (1 + 2 * MARGIN)
            column = round(frame[0] + share * (frame[-1] - frame[0]))
            rows = np.flatnonzero(abs(pixels[:, column] - colour).sum(1) < 60)
            marks = [[row for _, row in run] for _, run in groupby(enumerate(rows), lambda at: at[1] - at[0])]
            heights[-1].append(float(np.mean(marks[-1])))  # the legend is above
    return heights
