"""A table in a CSV file: one row a thing. Empty lines, and those that begin with #, do not count."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path


class Row:
    """The cells of one line, by column; errors begin with `where`: file and line."""

    def __init__(self, where: str, cells: dict[str, str]) -> None:
        self.where, self._cells = where, cells

    def __getitem__(self, column: str) -> str:
        return self._cells.get(column, "")

    def several(self, column: str) -> tuple[str, ...]:
        """Return the texts of a cell, which has semicolons between them."""
        return tuple(each.strip() for each in self[column].split(";") if each.strip())

    def number(self, column: str) -> float:
        """Return the number of a cell, above 0."""
        try:
            number = float(self[column])
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise ValueError(
                f"{self.where}, {column}: found {self[column]!r}, expected a number above 0, such as 8.1"
            )
        return number


def rows(file: str | Path, needed: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows of a file; ValueError if a column or a needed cell is missing, or a column unknown."""
    try:
        lines = enumerate(Path(file).read_text("utf-8-sig").splitlines(), 1)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not text in UTF-8: save it as CSV in UTF-8") from error
    kept = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]
    reader = csv.DictReader((line for _, line in kept), skipinitialspace=True)
    columns, known = reader.fieldnames or (), [*needed, *optional]
    if missing := [name for name in needed if name not in columns]:
        raise ValueError(
            f"{file} has no column {', '.join(missing)}; found {', '.join(columns) or 'no line'}. Its first "
            f"line has to name the columns: {','.join(needed)}, and any of {','.join(optional)}"
        )
    if unknown := [name for name in columns if name not in known]:
        raise ValueError(f"{file} has the unknown column {unknown[0]!r}; there can be {','.join(known)}")
    for (number, _), cells in zip(kept[1:], reader, strict=True):
        where = f"{file}, line {number}"
        if None in cells:
            raise ValueError(
                f"{where} has more cells than there are columns: put text with a comma in quotes"
            )
        row = Row(where, {name: (text or "").strip() for name, text in cells.items()})
        if empty := [name for name in needed if not row[name]]:
            raise ValueError(f"{where}: {', '.join(empty)} may not be empty")
        yield row
