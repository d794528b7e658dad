"""Lesson 10: the memory of one training step, of a network like the lesson's."""

from __future__ import annotations

from typing import Any

from . import table


def play(names: dict[str, Any]) -> tuple[dict[str, int], str]:
    """Begin with the lesson's own network and batch, which it has measured."""
    layers, pictures = list(names["model"]), names["pictures"]
    begin = {
        "inputs": layers[0].in_features,
        "classes": layers[-1].out_features,
        "width": layers[0].out_features,
        "layers": len(layers) // 2,  # each with its ReLU
        "rows": len(pictures),
    }
    rows = ((name, f"{size / 2**20:.2f} MiB") for name, size in names["measured"].items())
    caption = f"{begin['layers']} layers of {begin['width']} numbers, {begin['rows']} rows, Adam"
    return begin, table([], rows, caption)
