"""Lets a browser train the network of lesson 3: its numbers, its flowers, and the five calls of its loop."""

from __future__ import annotations

import inspect
import re
from typing import Any

from . import table

RATES = (0.0001, 0.005, 0.02, 0.1, 1)
STEPS = (1, 2, 3, 10, 30, 100, 300, 500)
MARKS = ("m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0", "m-3-3h6v6h-6z", "m0-4l4 7h-8z")  # circle, square, triangle


def play(names: dict[str, Any]) -> tuple[Any, str]:
    train, iris, losses = names["train"], names["iris"], names["losses"]
    with names["torch"].random.fork_rng(devices=[]):
        linear = [layer for layer in names["make_model"]() if hasattr(layer, "weight")]
    rows = [row for layer in linear for row in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)]
    flowers = [[round(length, 1) for length in flower] for flower in names["X_train"].tolist()]
    labels = names["y_train"].tolist()
    data = {
        "calls": re.findall(r"^ *(.+?)  # \d\. (.+)$", inspect.getsource(train), re.M),
        "start": [float(f"{number:.7g}") for weights, bias in rows for number in (*weights, bias)],
        "flowers": flowers,
        "labels": labels,
        "species": list(iris.class_names),
        "sepals": [round(length, 4) for length in names["sepals"][0].tolist()],
        "map": answers(flowers, labels, iris.class_names, iris.feature_names[2:]),
        "curve": curve(),
        "rates": RATES,
        "rate": RATES.index(inspect.signature(train).parameters["lr"].default),
        "steps": len(losses),
    }
    return data, table(["step", "loss"], ((step, f"{losses[step - 1]:.4f}") for step in STEPS))


def answers(flowers: list[list[float]], labels: list[int], species: list[str], axes: list[str]) -> str:
    """Draw the petals of all flowers in the lesson's own axes; a browser adds the regions."""
    marks = ["", "", ""]
    for (*_, length, width), label in zip(flowers, labels, strict=True):
        marks[label] += f"M{across(length):.0f} {up(width):.0f}{MARKS[label]}"
    return svg(
        288,
        '<g transform="translate(40 8) scale(3)">',
        *(f'<path class="region kind-{kind}"/>' for kind in range(3)),
        '<path class="line"/></g>',
        *(f'<path class="kind-{kind}" d="{path}"/>' for kind, path in enumerate(marks)),
        *(f'<text class="name">{name}</text>' for name in species),
        *(f'<text x="{across(length):.0f}" y="263">{length}</text>' for length in range(1, 8)),
        *(f'<text x="28" y="{up(width) + 4:.0f}">{width}</text>' for width in range(3)),
        f'<text x="190" y="282">{axes[0]}</text>',
        f'<text x="-128" y="12" transform="rotate(-90)">{axes[1]}</text>',
    )


def curve() -> str:
    ticks = (("30", 122, "0"), ("30", 67, "1"), ("22", 14, "≥ 2"), ("44", 134, "1"), ("316", 134, ""))
    return svg(
        138,
        '<path class="line" d="M40 8V118H340"/><path class="losses"/><path class="losses before"/>',
        *(f'<text x="{x}" y="{y}">{words}</text>' for x, y, words in ticks),
    )


def across(length: float) -> float:
    return 40 + 300 * (length - 0.5) / 6.7


def up(width: float) -> float:
    return 8 + 240 * (2.7 - width) / 2.7


def svg(height: int, *inside: str) -> str:
    return f'<svg viewBox="0 0 344 {height}" role="img">{"".join(inside)}</svg>'
