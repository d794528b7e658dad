"""The race on lesson 1: its times are those of the recording, whose picture is read right."""

from __future__ import annotations

import json
import math
import re

import matplotlib.pyplot as plt
import pytest
from _ext.plays.race import RECORDING, read, recorded
from _ext.recorded.files import load
from browser import begun, opened

LESSON = "lessons/01_is_there_a_gpu"
SIZES = [10, 30, 100, 300, 1000]


def test_a_drawn_picture_is_read_as_it_was_drawn(tmp_path):
    lines = [0.5, 9, 160, 700, 900], [0.04, 1, 40, 2000, 20_000]
    with plt.style.context("default"):  # a lesson that was built before has another one
        figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
        for line in lines:
            axes.loglog(SIZES, line, "o-", label="a name")
        axes.set_yticks([10**n for n in range(6)])
        axes.legend()
        figure.savefig(tmp_path / "drawn.webp", dpi=200)
        plt.close(figure)
    one, other = read(tmp_path / "drawn.webp", SIZES)
    pixels = (one[-1] - other[-1]) / math.log10(20_000 / 900)  # for a power of ten
    for drawn, heights in zip(lines, (one, other), strict=True):
        found = [drawn[-1] * 10 ** ((heights[-1] - height) / pixels) for height in heights]
        assert found == pytest.approx(drawn, rel=0.05)


def test_what_is_read_off_the_recording_rounds_to_what_it_printed():
    recording = load(RECORDING)
    said = [line for cell in recording.cells for line in cell.stdout]
    for name, line in recorded(recording, SIZES).items():
        assert f"{line[0]:6.1f}{line[-1]:9,.1f}  {name}" in said


@pytest.mark.slow
def test_the_race_is_won_by_the_shorter_time_and_readers_can_join(browser, address, site):
    data = json.loads(site.page(LESSON).soup.select_one("[data-play=race] script").string)
    with opened(browser, viewport={"width": 1280, "height": 900}) as window:
        tab = window.new_page()
        tab.goto(f"{address}{LESSON}.html")
        part = begun(tab, "race")
        says, times = part.locator(".race-says"), part.locator(".play-bar > span:last-child")
        for key, at in ("Home", 0), ("End", -1):
            part.get_by_role("slider").press(key)
            cpu, gpu = (line[at] for line in data["speeds"])
            winner, loser = ("The GPU", "the CPU") if gpu > cpu else ("The CPU", "the GPU")
            ratio = float(f"{max(cpu, gpu) / min(cpu, gpu):.2g}")
            assert says.text_content().startswith(f"{winner} is about {ratio:g} times as fast as {loser}.")
            for shown, speed in zip(times.all_text_contents(), (cpu, gpu), strict=False):
                microseconds = 2e-3 * SIZES[at] ** 3 / speed
                assert float(re.sub("[ µs,]", "", shown)) == pytest.approx(microseconds, rel=0.05)
        crossing = int(re.search(r"about (\d+) rows", says.text_content())[1])
        assert 100 < crossing < 300
        assert times.nth(2).text_content() == ""
        for field, speed in zip(part.get_by_role("spinbutton").all(), (2, 100), strict=True):
            field.press_sequentially(str(speed))
        assert times.nth(2).text_content() == "20,000 µs"  # two billion calculations, 100 billion a second
        assert "as fast as your CPU" in says.text_content()


@pytest.mark.slow
def test_without_javascript_a_table_has_the_times(browser, address):
    with opened(browser, java_script_enabled=False) as window:
        tab = window.new_page()
        tab.goto(f"{address}{LESSON}.html")
        assert tab.locator("[data-play=race] .still tr").count() == len(SIZES) + 1
        assert "NVIDIA" in tab.locator("[data-play=race] .still").inner_text()
