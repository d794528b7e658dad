"""What GPUs can do at most: the table ``gpus.csv``, whose head explains its columns; readers add rows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpulesson_tools.planning.hardware import _table

RATES = "float64", "float32", "tfloat32", "float16", "bfloat16"
_NEEDED = "name", "memory_gib", "bandwidth", "float32", "cache"
_OPTIONAL = "also", "float64", "tfloat32", "float16", "bfloat16", "capability", "source", "seen", "unseen"
_FILE = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a GPU can do at most.

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
        Columns of the table whose numbers were not seen in any document.
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
        """Return the floating-point operations a second of one type, or None if nothing is known of it.

        Where a GPU has no units for a type, the rate is that of float32.
        """
        return self.rates.get(dtype, self.rates["float32"] if dtype in RATES else None)


def find(name: str, gpus: Iterable[Gpu] | None = None) -> Gpu:
    """Return the GPU of that name.

    Parameters
    ----------
    name : str
        As in the table, or as ``torch.cuda.get_device_name`` has it. Capitals, spaces and hyphens do not
        count.
    gpus : iterable of Gpu, optional
        The table: what `read` returned, if a reader has added rows.

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
    """Return the table, with the rows of other such files in front; of two with one name the first remains.

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
    return tuple(map(_gpu, _table.rows(file, _NEEDED, _OPTIONAL)))


def _gpu(row: _table.Row) -> Gpu:
    capability = re.fullmatch(r"(\d{1,2})\.(\d)", row["capability"])
    if row["capability"] and capability is None:
        raise ValueError(
            f"{row.where}, capability: found {row['capability']!r}, expected CUDA's compute capability, such "
            "as 7.5"
        )
    return Gpu(
        name=row["name"],
        also=row.several("also"),
        memory=int(row.number("memory_gib") * 2**30),
        bandwidth=row.number("bandwidth") * 1e9,
        rates={name: row.number(name) * 1e12 for name in RATES if row[name]},
        cache=int(row.number("cache") * 2**20),
        capability=(int(capability[1]), int(capability[2])) if capability else None,
        source=row["source"],
        seen=row["seen"],
        unseen=row.several("unseen"),
    )


def _key(name: str) -> str:
    """Return a name without what people leave out: NVIDIA GeForce RTX 3090 is rtx3090."""
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())
