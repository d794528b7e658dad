"""Figures in two themes, drawings in the page, and programs that a page runs."""

from __future__ import annotations

import re

import matplotlib.pyplot as plt
import pytest
from _ext.figures import COLOURS, DARK_GROUND, DARK_INK, save_card
from colours import colour, contrast
from projects import CONF, INDEX, Project, lesson

FIGURE = """
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(4, 2))
axes.plot([1, 2], [3, 4], label="a line")
axes.set(title="One line", xlabel="time in s")
axes.legend()
plt.show()
"""
DRAWING = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10" class="drawing" role="img">
  <title>Two boxes</title>
  <desc>A box in a box.</desc>
</svg>
"""
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


@pytest.fixture(scope="module")
def site(built) -> Project:
    conf = (
        CONF
        + """
extensions.append("_ext.programs")
sphinx_gallery_conf |= {
    "image_scrapers": ("_ext.figures.scrape",), "reset_modules": ("matplotlib", "_ext.figures.reset"),
}
"""
    )
    text = ".. drawing:: two_boxes.svg\n\n   A *box*, and another."
    page = "\n\nPage\n====\n\n.. run:: own.py 3\n"
    return built(
        {
            "conf.py": conf,
            "docs/index.rst": INDEX + "   page\n",
            "docs/page.rst": page,
            "docs/drawings/two_boxes.svg": DRAWING,
            "examples/01_first.py": lesson(text=text, body=FIGURE),
            "examples/scripts/own.py": "import sys\nprint(sys.argv)\n",
        }
    )


@pytest.mark.slow
def test_a_figure_is_drawn_for_each_theme(site):
    pictures = site.page("lessons/01_first").select("img.figure")
    assert [picture["class"] for picture in pictures] == [["figure", "only-light"], ["figure", "only-dark"]]
    light, dark = ((site.folder / "out/lessons" / picture["src"]).read_text() for picture in pictures)
    assert DARK_INK in dark and DARK_INK not in light
    assert "#ffffff" in light and DARK_GROUND in dark and "#ffffff" not in dark  # behind the legend
    for picture, svg in zip(pictures, (light, dark), strict=True):
        assert COLOURS[0] in svg and ">One line<" in svg  # the line's colour; text that is text
        assert re.search(r'id="patch_1">\s*<path [^>]*style="fill: none', svg), "the ground is transparent"
        assert picture["alt"] == "One line" and picture["loading"] == "lazy"
        points = [
            float(found) for found in re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', svg).groups()
        ]
        assert [int(picture["width"]), int(picture["height"])] == [round(4 / 3 * point) for point in points]
    assert (site.folder / "out/_images/sphx_glr_01_first_thumb.png").is_file()


@pytest.mark.slow
def test_a_drawing_is_part_of_the_page(site):
    figure = site.page("lessons/01_first").select_one("figure.drawing")
    assert figure.svg.desc.get_text() == "A box in a box."
    caption = figure.select_one("figcaption .caption-text")
    assert caption.get_text() == "A box, and another." and caption.em
    notebook = (site.folder / "docs/lessons/01_first.ipynb").read_text()
    assert "![A box in a box.](attachment:two_boxes.svg)" in notebook and "image/svg+xml" in notebook


@pytest.mark.slow
def test_a_program_is_shown_with_what_it_printed(site):
    page = site.page("page")
    shown = [block.get_text().strip() for block in page.select("article pre")]
    assert shown == ["python own.py 3", "['own.py', '3']"]


@pytest.mark.slow
def test_a_program_that_fails_fails_the_build(project):
    project.write("conf.py", CONF + 'extensions.append("_ext.programs")\n')
    project.write("docs/index.rst", "Home\n====\n\n.. run:: broken.py\n" + INDEX)
    project.write("examples/scripts/broken.py", "print(1 / 0)\n")
    build = project.build()
    assert build.status != 0 and "ZeroDivisionError" in build.log
