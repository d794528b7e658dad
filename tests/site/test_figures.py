"""Figures in two themes, and drawings in the page."""

from __future__ import annotations

import re

import matplotlib.pyplot as plt
import pytest
from _ext.figures import COLOURS, DARK_INK, save_card
from colours import colour, contrast

GROUNDS = {"light": colour("#ffffff"), "dark": colour("#131416")}  # the theme's


def test_lines_and_ink_can_be_seen_on_both_grounds():
    assert contrast(colour("#000000"), colour("#ffffff")) == pytest.approx(21)
    assert all(contrast(colour(line), ground) >= 3 for line in COLOURS for ground in GROUNDS.values())
    assert contrast(colour(DARK_INK), GROUNDS["dark"]) >= 7


def test_a_card_shows_a_shape_without_words(tmp_path):
    figure, axes = plt.subplots()
    axes.bar(["a", "b"], [1, 2], label="bars")
    axes.set(title="Bars", xlabel="in s", ylabel="GB")
    axes.text(0, 1, "one")
    axes.legend()
    figure.legend(["two"])
    figure.suptitle("All")
    save_card(figure, tmp_path / "card.png")
    words = [text for text in figure.findobj(plt.Text) if text.get_visible() and text.get_text()]
    plt.close(figure)
    assert not words and (tmp_path / "card.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_figure_is_drawn_for_each_theme(site):
    page = site.page("lessons/01_is_there_a_gpu")
    pictures = page.soup.select("img.figure")[:2]
    assert [picture["class"] for picture in pictures] == [["figure", "only-light"], ["figure", "only-dark"]]
    light, dark = (page.file(picture["src"]).read_text("utf-8") for picture in pictures)
    assert DARK_INK in dark and DARK_INK not in light
    assert "#ffffff" not in dark
    for picture, svg in zip(pictures, (light, dark), strict=True):
        assert COLOURS[0] in svg and f">{picture['alt'].split()[0]}" in svg, "text that is text"
        assert re.search(r'id="patch_1">\s*<path [^>]*style="fill: none', svg), "the ground is transparent"
        assert picture["loading"] == "lazy"
        points = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', svg).groups()
        sizes = [round(4 / 3 * float(found)) for found in points]
        assert [int(picture["width"]), int(picture["height"])] == sizes
    card = site.page("lessons/index").soup.select_one("img[src*=_01_is_there_a_gpu_thumb]")
    assert card["src"].endswith(".png")


@pytest.mark.slow
def test_a_drawing_is_part_of_the_page_and_a_picture_in_the_notebook(site):
    drawings = site.page("lessons/02_tensors_and_devices").soup.select("figure.drawing")
    notebook = (site.lessons / "02_tensors_and_devices.ipynb").read_text("utf-8")
    for figure in drawings:
        text = " ".join(figure.svg.desc.get_text().split())
        assert f"![{text[:20]}" in notebook
        assert figure.select_one("figcaption .caption-text").get_text()
    assert drawings and "](attachment:" in notebook and "image/svg+xml" in notebook
