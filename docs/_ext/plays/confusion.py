"""The confusion matrix as a table; a press on a square shows some of the pictures that it counts."""

from __future__ import annotations

import io
from html import escape
from itertools import product
from typing import Any
from zlib import crc32

MOST = 12  # pictures of a square


def play(names: dict[str, Any]) -> tuple[Any, str, dict[str, bytes]]:
    """Draw a row of pictures for each square that counts any, and write the table."""
    labels, answers, confusion = names["labels"], names["answers"], names["confusion"]
    squares = [(row, column) for row, column in product(range(10), repeat=2) if confusion[row, column]]
    found = [((labels == row) & (answers == column)).nonzero().flatten()[:MOST] for row, column in squares]
    sheet = drawn([names["images"][numbers, 0] for numbers in found])
    data = {"file": f"play-confusion.png?{crc32(sheet):x}", "most": MOST}
    return data, table(confusion.tolist(), names["short"]), {"play-confusion.png": sheet}


def drawn(rows: list[Any]) -> bytes:
    """Draw rows of pictures as one, dark on white as in the lesson's figures, in 16 greys."""
    import torch
    from PIL import Image

    sheet = torch.zeros(28 * len(rows), 28 * MOST)
    for number, pictures in enumerate(rows):
        sheet[28 * number : 28 * (number + 1), : 28 * len(pictures)] = torch.cat([*pictures], dim=1)
    file = io.BytesIO()
    Image.fromarray((255 * (1 - sheet)).byte().numpy()).quantize(16).save(file, "PNG", optimize=True)
    return file.getvalue()


def table(counts: list[list[int]], names: list[str]) -> str:
    """Write the matrix, each count with its shade: of `right`, or of `wrong-1` to `wrong-4`."""
    most = max(counts[row][column] for row, column in product(range(10), repeat=2) if row != column)

    def square(row: int, column: int) -> str:
        count = counts[row][column]
        kind = "right" if row == column else f"wrong-{-(-4 * count // most)}"
        return f'<td class="{kind}">{count}</td>' if count else "<td></td>"

    head = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in names)
    body = ""
    for row, name in enumerate(names):
        cells = "".join(square(row, column) for column in range(10))
        body += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>\n'
    caption = "Rows: what it is. Columns: the model's answer."
    return (
        f"<table>\n<caption>{caption}</caption>\n<thead><tr><td></td>{head}</tr></thead>\n"
        f"<tbody>\n{body}</tbody>\n</table>"
    )
