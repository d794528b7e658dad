"""Figures that follow the light and the dark theme: each is drawn once, and saved for both.

The two pictures differ in their ink, for text, axes and grid, and in the white background of a legend. Lines
keep their colours, which contrast with both backgrounds; the pictures are transparent. A third picture of
a lesson's first figure, smaller and without words, goes onto its card.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from .paths import gallery_dir
from .recorded.files import described

# the theme's --color-foreground-primary and --color-background-primary; in light they are black and white
DARK_INK, DARK_GROUND = "#cfd0d0", "#131416"
# each with a contrast of at least 3 to 1 to the theme's two backgrounds, #ffffff and #131416
COLOURS = ("#1f78b4", "#d1530a", "#2a8a3f", "#8a63d2", "#b0337a", "#7a7a00")
STYLE: Any = {
    "font.size": 11,
    "axes.titlesize": 12,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.facecolor": "white",  # hides the grid behind its words
    "legend.edgecolor": "none",
    "legend.framealpha": 1,
    "svg.fonttype": "none",  # text, not outlines: smaller, and found by a search
    "svg.hashsalt": "lesson",  # unchanged sources give the same bytes
}
CARD = (3.6, 2.4)  # inches, of the picture on a lesson's card
CARD_INK = "#808890"  # seen on a light card and on a dark one


def reset(gallery_conf: Any, fname: str) -> None:
    """Give every lesson the same style; `reset_modules` in conf.py names it."""
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update(STYLE)
    mpl.rcParams["axes.prop_cycle"] = cycler(color=COLOURS)


def new_figure(height: float) -> tuple[Any, Any]:
    """Make a figure for a page, as wide as a telephone, and its axes; `height` is in inches."""
    from matplotlib.figure import Figure

    reset(None, "")
    figure = Figure(figsize=(4.8, height))
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def mark_ratios(axis: Any) -> None:
    """Mark 1, 2, 5, 10 and so on along a logarithmic axis; 1, 10, 100 and so on along a long one."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,g}")


def shown(directive: SphinxDirective, figure: Any, name: str) -> list[nodes.Node]:
    """Show a figure on the page of a directive; its label is the alternative text."""
    path = gallery_dir(directive.env.app) / "images" / f"{name}.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    markup = save(figure, path, Path(directive.env.srcdir), figure.get_label())
    return directive.parse_text_to_nodes(markup)


def save(figure: Any, path: Path, source_dir: Path, alt: str) -> str:
    """Save a figure for both themes; return the markup of its pictures."""
    file = io.StringIO()
    figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    light, markup = file.getvalue(), ""
    # black parts have this colour, texts have none at all
    dark = light.replace("#000000", DARK_INK).replace("#ffffff", DARK_GROUND)
    dark = dark.replace("<svg ", f'<svg fill="{DARK_INK}" ', 1)
    width, height = size(light)
    for stem, svg, scheme in ((path.stem, light, "light"), (f"{path.stem}_dark", dark, "dark")):
        picture = path.with_name(f"{stem}.svg")
        picture.write_text(svg, encoding="utf-8")
        markup += (
            f".. image:: /{picture.relative_to(source_dir).as_posix()}\n"
            f"   :alt: {alt}\n   :class: figure only-{scheme}\n"
            f"   :width: {width}\n   :height: {height}\n\n"
        )
    return markup


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: Any) -> str:
    """Save each open figure of a lesson, light and dark, and the first for its card; return the markup."""
    import matplotlib.pyplot as plt

    markup = ""
    for number in plt.get_fignums():
        figure = plt.figure(number)
        path = Path(next(block_vars["image_path_iterator"])).with_suffix(".svg")
        markup += save(figure, path, Path(gallery_conf["src_dir"]), described(figure))
        if path.stem.endswith("_001"):
            save_card(figure, path.with_suffix(".png"))
    plt.close("all")
    return markup


def save_card(figure: Any, path: Path) -> None:
    """Save a small picture without words; the card has the lesson's name."""
    figure.suptitle("")
    for legend in figure.legends:
        legend.remove()
    for axes in figure.axes:
        axes.set(title="", xlabel="", ylabel="")
        axes.tick_params(which="both", length=0, labelleft=False, labelbottom=False, labelright=False)
        for words in (*axes.texts, *filter(None, [axes.get_legend()])):
            words.remove()
        axes.spines[:].set_color(CARD_INK)
    figure.set_size_inches(*CARD)
    figure.savefig(path, dpi=160)


def size(svg: str) -> tuple[int, int]:
    """Read width and height of an SVG of matplotlib, in pixels."""
    root = svg[svg.index("<svg") :].partition(">")[0]
    width, height = (re.search(rf'\b{side}="([\d.]+)pt"', root) for side in ("width", "height"))
    assert width and height, root
    return round(float(width[1]) * 4 / 3), round(float(height[1]) * 4 / 3)
