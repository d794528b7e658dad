"""A sheet to draw on, and the answers of the lesson's convolutional network, loaded when a reader asks."""

from __future__ import annotations

import json
from base64 import b64encode
from html import escape
from typing import Any
from zlib import crc32

from . import table

FILE = "play-drawing-network.js"


def play(names: dict[str, Any]) -> tuple[Any, str, dict[str, bytes]]:
    """Keep the network's weights, and a dozen test pictures: one of each class, and two answered wrong."""
    import torch

    network, short, test_set = names["cnn"], names["short"], names["test_set"]
    pictures, labels = test_set.data, test_set.targets
    with torch.inference_mode():
        scores = network((pictures / 255).unsqueeze(1).to(names["device"])).cpu()
    best, answers = scores.softmax(dim=1).max(dim=1)
    chosen = [int((labels == number).nonzero()[0]) for number in range(10)]
    wrong = (answers != labels).nonzero().flatten().tolist()
    chosen += [number for number in wrong if number not in chosen][:2]

    weights = torch.cat([each.cpu().flatten() for each in network.state_dict().values()])
    texts = [b64encode(each.numpy().tobytes()).decode() for each in (weights, pictures[chosen])]
    script = f"play.network = {json.dumps(texts)};\n".encode()
    data = {
        "names": short,
        "labels": labels[chosen].tolist(),
        "file": f"{FILE}?{crc32(script):x}",
        "size": f"{len(script) / 1000:.0f} kB",
    }
    rows = (
        (escape(short[labels[number]]), escape(short[answers[number]]), f"{best[number]:.0%}")
        for number in chosen
    )
    still = table(["It is", "The network's answer", "Its probability"], rows, "A dozen test pictures")
    return data, still, {FILE: script}
