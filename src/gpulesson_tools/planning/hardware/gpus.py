"""What GPUs can do at most: one table, ``gpus.csv`` beside this file, to which readers add their own rows.

The head of that file says what its columns mean, and gives the form of a reader's file.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RATES = "float64", "float32", "tfloat32", "float16", "bfloat16"
_NEEDED = "name", "memory_gib", "bandwidth", "float32", "cache"
_OPTIONAL = "also", "float64", "tfloat32", "float16", "bfloat16", "capability", "source", "seen", "unseen"
_FILE = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True, slots=True)
class Gpu:
    """
    What a GPU can do at most.

    Attributes
    ----------
    name : str
    also : tuple of str
        Other names.
    memory : int
        Bytes that programs can have.
    bandwidth : float
        Bytes a second between the GPU and its memory.
    rates : dict
        Floating-point operations a second, by type; see `rate`.
    cache : int
        Bytes of the last-level cache.
    capability : tuple of (int, int) or None
        CUDA's compute capability (major, minor).
    source : str
        Address of the vendor's document.
    seen : str
        Where the numbers were seen.
    unseen : tuple of str
        Columns of the table whose numbers were seen in no document.
    """

    name: str
    also: tuple[str, ...]
    memory: int
    bandwidth: float
    rates: Mapping[str, float]
    cache: int
    capability: tuple[int, int] | None = None
    source: str = ""
    seen: str = ""
    unseen: tuple[str, ...] = ()

    def rate(self, dtype: str) -> float | None:
        """
        Return the floating-point operations a second of one type, or None if nothing is known of it.

        Where a GPU has no units for a type, the rate is that of float32.
        """
        return self.rates.get(dtype, self.rates["float32"] if dtype in RATES else None)


def find(name: str, gpus: Iterable[Gpu] | None = None) -> Gpu:
    """
    Return the GPU of that name.

    Parameters
    ----------
    name : str
        As in the table, or as ``torch.cuda.get_device_name`` has it. Capitals, spaces and hyphens do not
        count.
    gpus : iterable of Gpu, optional
        The table: what `read` returned, for one with rows of the reader's own.

    Raises
    ------
    ValueError
        If there is none; the message lists what there is.

    Examples
    --------
    >>> find("Tesla T4").name, find("a100").bandwidth / 1e9
    ('T4', 1555.0)
    """
    gpus = read() if gpus is None else tuple(gpus)
    known = {_key(each): gpu for gpu in gpus for each in (*gpu.also, gpu.name)}
    if (found := known.get(_key(name))) is not None:
        return found
    near = difflib.get_close_matches(_key(name), known, 1)
    hint = f", did you mean {known[near[0]].name}?" if near else "."
    raise ValueError(
        f"unknown GPU {name!r}{hint} There are {', '.join(gpu.name for gpu in gpus)}. For another one, write "
        f"a CSV file with the columns {','.join(_NEEDED)} (units: head of {_FILE}), and name it: --table FILE"
    )


def read(*files: str | Path) -> tuple[Gpu, ...]:
    """
    Return the table, with the rows of other files in front; of two with one name the first remains.

    Parameters
    ----------
    *files : str or Path
        CSV files in UTF-8 of the same form.

    Raises
    ------
    ValueError
        If a row lacks a number, or has one that cannot be; the message names file, line and column.
    OSError
        If a file cannot be read.
    """
    gpus: dict[str, Gpu] = {}
    for rows in (*map(_rows, files), _own()):
        for gpu in rows:
            gpus.setdefault(_key(gpu.name), gpu)
    return tuple(gpus.values())


@cache
def _own() -> tuple[Gpu, ...]:
    return _rows(_FILE)


def _rows(file: str | Path) -> tuple[Gpu, ...]:
    """Read one file. Empty lines and those that begin with # do not count."""
    try:
        lines = enumerate(Path(file).read_text("utf-8-sig").splitlines(), 1)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not text in UTF-8: save it as CSV in UTF-8") from error
    kept = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]
    reader = csv.DictReader((line for _, line in kept), skipinitialspace=True)
    columns = reader.fieldnames or ()
    if missing := [name for name in _NEEDED if name not in columns]:
        raise ValueError(
            f"{file} has no column {', '.join(missing)}; found {', '.join(columns) or 'no line'}. Its first "
            f"line has to name the columns: {','.join(_NEEDED)}, and any of {','.join(_OPTIONAL)}"
        )
    if unknown := [name for name in columns if name not in _NEEDED + _OPTIONAL]:
        raise ValueError(
            f"{file} has the unknown column {unknown[0]!r}; there can be {','.join(_NEEDED + _OPTIONAL)}"
        )
    return tuple(
        _gpu(row, f"{file}, line {number}") for (number, _), row in zip(kept[1:], reader, strict=True)
    )


def _gpu(row: Mapping[str | None, str | list[str] | None], where: str) -> Gpu:
    if None in row:
        raise ValueError(f"{where} has more cells than there are columns: put text with a comma in quotes")
    cells = {
        name: (text or "").strip() for name, text in row.items() if isinstance(text, str | None) and name
    }
    if empty := [name for name in _NEEDED if not cells[name]]:
        raise ValueError(f"{where}: {', '.join(empty)} may not be empty")
    numbers = {
        name: _number(cells[name], f"{where}, {name}") for name in (*_NEEDED[1:], *RATES) if cells.get(name)
    }
    return Gpu(
        name=cells["name"],
        also=_several(cells.get("also", "")),
        memory=int(numbers["memory_gib"] * 2**30),
        bandwidth=numbers["bandwidth"] * 1e9,
        rates={name: numbers[name] * 1e12 for name in RATES if name in numbers},
        cache=int(numbers["cache"] * 2**20),
        capability=_capability(cells.get("capability", ""), f"{where}, capability"),
        source=cells.get("source", ""),
        seen=cells.get("seen", ""),
        unseen=_several(cells.get("unseen", "")),
    )


def _several(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(";") if each.strip())


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{where}: found {text!r}, expected a number above 0, such as 8.1")
    return number


def _capability(text: str, where: str) -> tuple[int, int] | None:
    if not text:
        return None
    if (found := re.fullmatch(r"(\d{1,2})\.(\d)", text)) is None:
        raise ValueError(f"{where}: found {text!r}, expected CUDA's compute capability, such as 7.5")
    return int(found[1]), int(found[2])


def _key(name: str) -> str:
    """Return a name without what people leave out: NVIDIA GeForce RTX 3090 is rtx3090."""
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())
