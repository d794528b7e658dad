"""Amounts of memory, as users write them and as CUDA prints them; numbers of devices."""

import re

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_size(memory: str | int) -> int:
    """Return the bytes of an amount of memory: a number of them, or a number with a unit.

    Examples
    --------
    >>> parse_size("64 MiB"), parse_size("1.5 GB")
    (67108864, 1500000000)
    """
    if isinstance(memory, bool) or not isinstance(memory, str | int):
        raise TypeError(f'memory is {memory!r}; expected a number of bytes or a text such as "8 GiB"')
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(memory))
    unit = found.group(2).lower() if found else ""
    if found is None or unit not in _UNITS:
        raise ValueError(
            f"memory is {memory!r}; expected a number of bytes or a text such as "
            '"8 GiB", "512 MiB" or "1.5 GB"'
        )
    size = int(float(found.group(1)) * _UNITS[unit])
    if size < 512:
        raise ValueError(f"memory is {memory!r}; a practice GPU needs at least one block of 512 bytes")
    return size


def check_count(count: object) -> None:
    """Raise an error unless it is a number of devices: a whole number from 1 to 16."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 16:
        raise ValueError(f"count is {count!r}; expected a number of devices from 1 to 16")


def format_size(size: int) -> str:
    """Format bytes as CUDA's allocator does in its messages, by ``format_size`` of its source.

    Examples
    --------
    >>> format_size(3 * 2**29)
    '1.50 GiB'
    """
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size > factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size} bytes"
