"""Figures that follow the light and the dark theme: each is drawn once by the lesson, and saved for both.

The two pictures differ in their ink alone: text, axes and grid. Lines keep their colours, which can be told
from either ground. Both grounds are transparent. A third picture, smaller and without words, is for the
lesson's card: it is told from the others by its shape.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

INK = {"light": "black", "dark": "#cfd0d0"}  # matplotlib's own; the theme's --color-foreground-primary
# each with a contrast of at least 3 to 1 against the theme's two grounds, #ffffff and #131416
COLOURS = ("#1f78b4", "#d1530a", "#2a8a3f", "#8a63d2", "#b0337a", "#7a7a00")
STYLE: Any = {
    "font.size": 11,
    "axes.titlesize": 12,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.facecolor": "none",
    "legend.framealpha": 0,
    "svg.fonttype": "none",  # text, not outlines: smaller, and found by a search
    "svg.hashsalt": "lesson",  # unchanged sources give the same bytes
}
CARD = (3.6, 2.4)  # inches, of the picture on a lesson's card


def reset(gallery_conf: Any, fname: str) -> None:
    """Give every lesson the same style; `reset_modules` in conf.py names it."""
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update(STYLE)
    mpl.rcParams["axes.prop_cycle"] = cycler(color=COLOURS)


def recolour(figure: Any, old: str, new: str) -> None:
    """Draw in the new colour all that was drawn in the old one."""
    from matplotlib.colors import same_color

    for artist in figure.findobj():
        for part in ("color", "edgecolor"):
            get, put = getattr(artist, f"get_{part}", None), getattr(artist, f"set_{part}", None)
            try:
                if get and put and same_color(get(), old):
                    put(new)
            except (TypeError, ValueError):  # a collection, which has several
                continue
    for axes in figure.axes:
        axes.tick_params(which="both", color=new, labelcolor=new)


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: Any) -> str:
    """Save each open figure, light, dark and for the card; return the markup of both."""
    import matplotlib.pyplot as plt

    markup = []
    for number in plt.get_fignums():
        figure = plt.figure(number)
        light = Path(next(block_vars["image_path_iterator"])).with_suffix(".svg")
        dark = light.with_stem(f"{light.stem}_dark")
        options: dict[str, Any] = {"format": "svg", "bbox_inches": "tight", "metadata": {"Date": None}}
        figure.savefig(light, **options)
        recolour(figure, INK["light"], INK["dark"])
        figure.savefig(dark, **options)
        recolour(figure, INK["dark"], INK["light"])
        alt = title(figure)
        save_card(figure, light.with_suffix(".png"))
        for path, scheme in ((light, "only-light"), (dark, "only-dark")):
            width, height = size(path.read_text(encoding="utf-8"))
            markup.append(
                f".. image:: /{path.relative_to(gallery_conf['src_dir']).as_posix()}\n"
                f"   :alt: {alt}\n   :class: figure {scheme}\n"
                f"   :width: {width}px\n   :height: {height}px\n"
            )
    plt.close("all")
    return "\n".join(markup)


def save_card(figure: Any, path: Path) -> None:
    """Save a small picture without words, for which there is no room; the card has the lesson's name."""
    figure.suptitle("")
    for legend in figure.legends:
        legend.remove()
    for axes in figure.axes:
        axes.set(title="", xlabel="", ylabel="")
        axes.tick_params(which="both", length=0, labelleft=False, labelbottom=False, labelright=False)
        for words in (*axes.texts, *filter(None, [axes.get_legend()])):
            words.remove()
    figure.set_size_inches(*CARD)
    figure.savefig(path, dpi=160, facecolor="white")


def title(figure: Any) -> str:
    """Return the title of the whole, or of its parts."""
    parts = [axes.get_title() for axes in figure.axes if axes.get_title()]
    return " ".join((figure.get_suptitle() or "; ".join(parts)).split())


def size(svg: str) -> tuple[int, int]:
    """Read width and height of an SVG of matplotlib, in pixels."""
    root = svg[svg.index("<svg") :].partition(">")[0]
    width, height = (re.search(rf'\b{side}="([\d.]+)pt"', root) for side in ("width", "height"))
    assert width and height, root
    return round(float(width[1]) * 4 / 3), round(float(height[1]) * 4 / 3)
