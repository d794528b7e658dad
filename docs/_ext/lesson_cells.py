"""The code cells of a lesson, and the hash by which a recorded output knows its cell."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sphinx_gallery.py_source_parser import split_code_and_text_blocks

HASH_LENGTH = 16  # hexadecimal digits


@dataclass(frozen=True)
class Cell:
    """One code cell.

    Attributes
    ----------
    line : int
        Where it begins in the script.
    code : str
        As the script has it.
    hash : str
        Of its code and of all code before it in the lesson.
    """

    line: int
    code: str
    hash: str

    @property
    def first_line(self) -> str:
        """Its first line of code, for people."""
        return self.code.strip().split("\n")[0].rstrip()


def read_cells(script: Path) -> list[Cell]:
    """Split a lesson into its code cells, just as sphinx-gallery does."""
    _, blocks = split_code_and_text_blocks(script)
    codes = [block for block in blocks if block.type == "code"]
    hashes = chain(block.content for block in codes)
    return [Cell(block.lineno, block.content, key) for block, key in zip(codes, hashes, strict=True)]


def chain(codes: Iterable[str]) -> Iterator[str]:
    """Yield the hash of each cell: SHA-256 over the code so far, its first 16 hexadecimal digits.

    Neither the text between the cells counts, nor blank lines around a cell, nor spaces at the end of a line.

    Examples
    --------
    >>> list(chain(["a = 1", "b = 2"])) == list(chain(["a = 1  ", "b = 2"]))
    True
    """
    so_far = hashlib.sha256()
    for code in codes:
        lines = [line.rstrip() for line in code.split("\n")]
        so_far.update("\n".join(lines).strip("\n").encode() + b"\0")
        yield so_far.hexdigest()[:HASH_LENGTH]
