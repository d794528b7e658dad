"""The memory of a step on lesson 10: its sums are what the lesson measured and what a plan counts."""

from __future__ import annotations

import re

import pytest
import torch
from browser import begun, opened
from torch import nn

from gpulesson_tools.planning.memory.peak import peak
from gpulesson_tools.planning.recording.recorded import record_function

pytestmark = pytest.mark.slow
LESSON = "lessons/10_where_did_my_memory_go"


def most(width: int, layers: int, rows: int, optimizer: str) -> int:
    """The peak of a plan for three steps of the network."""

    def train() -> None:
        inputs = [784, *[width] * (layers - 1)]
        hidden = [part for n in inputs for part in (nn.Linear(n, width), nn.ReLU())]
        model = nn.Sequential(*hidden, nn.Linear(width, 10)).to("cuda")
        if optimizer == "Adam":
            steps = torch.optim.Adam(model.parameters())
        else:
            steps = torch.optim.SGD(model.parameters(), momentum=0.9 if "momentum" in optimizer else 0)
        pictures = torch.rand(rows, 784, device="cuda")
        classes = torch.randint(10, (rows,), device="cuda")
        for _ in range(3):
            loss = nn.functional.cross_entropy(model(pictures), classes)
            steps.zero_grad()
            loss.backward()
            steps.step()

    return peak(record_function(train, 3, dry=True)).nbytes


def test_the_sums_are_those_of_the_lesson_and_of_plans(browser, address, site):
    lesson = site.page(LESSON).soup.get_text()
    with opened(browser, viewport={"width": 1280, "height": 900}) as window:
        tab = window.new_page()
        tab.goto(f"{address}{LESSON}.html")
        part = begun(tab, "memory")
        bars = [bar.inner_text().split("\n") for bar in part.locator(".play-bar").all()]
        for name, size in bars:
            predicted, measured = re.search(rf"^{name} +([\d,]+) +([\d,]+)$", lesson, re.M).groups()
            assert predicted == measured and size == f"{int(measured.replace(',', '')) / 2**20:.2f} MiB"
        assert len(bars) == 5
        settings = [  # width, layers, rows, optimizer, part of the step
            (256, 3, 128, "Adam", "in the optimizer's step"),
            (256, 3, 2048, "Adam", "early in the backward pass"),
            (1024, 8, 32, "SGD with momentum", "in the forward pass"),
            (1, 1, 1, "SGD", "in the forward pass"),
        ]
        for width, layers, rows, optimizer, where in settings:
            for name, value, least in (
                ("Width of a layer", width.bit_length() - 1, 0),
                ("Layers", layers, 1),
                ("Rows of the batch", rows.bit_length() - 1, 0),
            ):
                slider = part.get_by_role("slider", name=name)
                slider.press("Home")
                for _ in range(value - least):
                    slider.press("ArrowRight")
            part.get_by_role("combobox").select_option(optimizer)
            says = part.locator(".memory-says").text_content()
            expected = f"At most {most(width, layers, rows, optimizer):,} bytes are needed at once"
            assert says.startswith(expected) and f": {where}." in says


def test_without_javascript_the_lessons_own_sums_are_there(browser, address):
    with opened(browser, java_script_enabled=False) as window:
        tab = window.new_page()
        tab.goto(f"{address}{LESSON}.html")
        assert tab.locator("[data-play=memory] .still tr").count() == 5
        assert tab.locator("[data-play=memory] .still").is_visible()
