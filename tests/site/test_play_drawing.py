"""What can be played with in lesson 5: its network, loaded from the disk, and the squares of its matrix."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode

import pytest
import torch
from browser import begun, opened, violations
from PIL import Image
from torch.nn import functional
from torchvision.datasets import FashionMNIST
from torchvision.transforms.functional import pil_to_tensor

from gpulesson.data import excerpt_folder

pytestmark = pytest.mark.slow
PAGE = "lessons/05_fashion_mnist"
PIXELS = "sheet => [...sheet.getContext('2d').getImageData(0, 0, 28, 28).data].filter((_, i) => i % 4 == 0)"
SHOWN = """() => {
    const tiles = document.querySelectorAll(".confusion-pictures span");
    const says = document.querySelector(".confusion-says").textContent;
    return [says, tiles.length, tiles[tiles.length - 1].style.backgroundPosition];
}"""
ANSWERS = """texts => texts.map(text => play.answer(Uint8Array.from(atob(text), one => one.charCodeAt(0))))"""


@pytest.fixture(scope="module")
def network(site):
    """The network of the file that a reader may load, with PyTorch's own layers."""
    script = (site.html / "_static" / "play-drawing-network.js").read_text("utf-8")
    weights = torch.frombuffer(bytearray(b64decode(json.loads(script[15:-2])[0])), dtype=torch.float32)
    shapes = [(8, 1, 3, 3), (8,), (16, 8, 3, 3), (16,), (10, 784), (10,)]
    sizes = [torch.Size(shape).numel() for shape in shapes]
    parts = [part.reshape(shape) for part, shape in zip(weights.split(sizes), shapes, strict=True)]

    def answers(pictures):
        x = pictures.unsqueeze(1) / 255
        for weight, bias in (parts[:2], parts[2:4]):
            x = functional.max_pool2d(functional.conv2d(x, weight, bias, padding=1), 2).relu()
        return functional.linear(x.flatten(1), *parts[4:]).softmax(1)

    return answers


def test_the_network_answers_in_a_browser_as_in_the_lesson(browser, site, network):
    """From the disk, where a page may not fetch."""
    test_set = FashionMNIST(excerpt_folder(), train=False)
    with opened(browser) as window:
        tab = window.new_page()
        refused = violations(tab)
        tab.goto((site.html / f"{PAGE}.html").as_uri())
        begun(tab, "drawing")
        assert not tab.evaluate("play.network")
        tab.get_by_role("button", name=re.compile(r"Load the trained network \(\d+ kB\)")).click()
        tab.get_by_role("button", name="Next test picture").wait_for()
        texts = [b64encode(picture.numpy().tobytes()).decode() for picture in test_set.data[:200]]
        answers = torch.tensor(tab.evaluate(ANSWERS, texts))
    assert not refused
    expected = network(test_set.data)
    assert (answers - expected[:200]).abs().max() < 1e-4
    right = (expected.argmax(1) == test_set.targets).sum()
    assert f"\n{right} of 1000 test pictures right" in site.page(PAGE).printed()


def test_a_sheet_is_drawn_on_and_answered_by_keys_alone(browser, address, network):
    with opened(browser) as window:
        tab = window.new_page()
        tab.goto(f"{address}{PAGE}.html")
        begun(tab, "drawing")
        says, sheet = tab.locator(".drawing-says"), tab.locator("canvas")
        tab.get_by_role("button", name="Load the trained network").press("Enter")
        says.get_by_text("The network says").wait_for()
        for key in ("Space", *["ArrowRight"] * 8, "Space", "ArrowDown"):
            tab.keyboard.press(key)
        says.get_by_text("Pen up.").wait_for()
        tab.keyboard.press("Tab")
        says.get_by_text(re.compile("^ *The network says")).wait_for()
        dark = (torch.tensor(sheet.evaluate(PIXELS)).reshape(28, 28) < 9).nonzero()
        assert dark.amin(0).tolist() == [13, 13] and dark.amax(0).tolist() == [15, 23]
        tab.get_by_role("button", name="Clear").press("Enter")
        names = tab.locator(".drawing-stage .play-bar b").all_text_contents()
        show, best = tab.get_by_role("button", name="Next test picture"), tab.locator(".drawing-stage .best")
        for number in range(12):
            show.press("Enter")
            says.get_by_text(f"Test picture {number + 1} of 12").wait_for()
            picture = 255 - torch.tensor(sheet.evaluate(PIXELS)).reshape(1, 28, 28)
            assert picture.any()
            share, at = (each.item() for each in network(picture).max(1))
            assert best.text_content() == f"{names[at]}{100 * share:.0f} %"
            assert says.text_content().endswith(f"The network says: {names[at]}, {100 * share:.0f} %.")


def test_a_square_shows_pictures_that_it_counts(browser, address, site, network):
    """By arrow keys through all squares, against the printed counts, the labels and the network."""
    printed = site.page(PAGE).printed().partition("tensor(")[2].partition(")")[0]
    counts = [[int(count) for count in re.findall(r"\d+", row)] for row in printed.splitlines()]
    train_set = FashionMNIST(excerpt_folder(), train=True)
    pictures, labels = train_set.data[5000:], train_set.targets[5000:]
    answers = network(pictures).argmax(1)
    drawn = Image.open(site.html / "_static" / "play-confusion.png").convert("L")
    drawn = 255 - pil_to_tensor(drawn)[0].int()
    squares = [(row, column) for row in range(10) for column in range(10) if counts[row][column]]
    with opened(browser) as window:
        tab = window.new_page()
        tab.goto(f"{address}{PAGE}.html")
        begun(tab, "confusion").locator("button").first.focus()
        for number, (row, column) in enumerate(squares):
            tab.keyboard.press("Enter")
            says, tiles, place = tab.evaluate(SHOWN)
            x, y = (int(part) // -2 for part in re.findall(r"-?\d+", place))
            assert says.startswith(f"{counts[row][column]} × ") and tiles == min(12, counts[row][column])
            assert (x, y) == (28 * (tiles - 1), 28 * number)
            counted = pictures[(labels == row) & (answers == column)].int()
            away = (counted - drawn[y : y + 28, x : x + 28]).abs().float().mean((1, 2))
            assert len(counted) == counts[row][column] and away.min() < 8
            tab.keyboard.press("ArrowRight")
        tab.keyboard.press("ArrowUp")
        now = [row for row in range(9) if counts[row][9]][-1]
        assert tab.evaluate("document.activeElement.textContent") == f"{counts[now][9]}"


def test_the_counts_and_answers_are_tables_without_javascript(browser, address):
    with opened(browser, java_script_enabled=False) as window:
        tab = window.new_page()
        tab.goto(f"{address}{PAGE}.html")
        matrix, answers = tab.locator(".still table").all()
        assert matrix.is_visible() and answers.is_visible()
        assert sum(int(text or 0) for text in matrix.locator("td").all_text_contents()) == 1000
        assert answers.locator("tbody tr").count() == 12
