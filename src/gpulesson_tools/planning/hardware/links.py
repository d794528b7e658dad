"""What joins GPUs, in a node and between nodes: the table ``links.csv``, whose head explains its columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpulesson_tools.planning.hardware import _table

NETWORK = "InfiniBand NDR"
"""What joins nodes unless another is named: the quickest of the table."""

_FILE = Path(__file__).with_suffix(".csv")
_COLUMNS = "name", "where", "ports", "bandwidth", "ring", "tree", "source", "seen"


@dataclass(frozen=True, slots=True)
class Link:
    """What a link can carry at most.

    Attributes
    ----------
    name : str
    where : str
        ``"node"``, between the GPUs of one machine, or ``"network"``, between machines.
    shared : bool
        The GPUs of a node share one port; otherwise each has its own.
    bandwidth : float
        Bytes a second through one port, in one direction.
    ring, tree : float
        Seconds of one hop, in a ring and in a tree of ranks.
    gpus : tuple of str
        Names of the GPUs that have it, as in the table of GPUs.
    source : str
        Address of the vendor's document.
    seen : str
        Where the numbers were seen.
    """

    name: str
    where: str
    shared: bool
    bandwidth: float
    ring: float
    tree: float
    gpus: tuple[str, ...] = ()
    source: str = ""
    seen: str = ""

    def out_of_node(self, gpus: int) -> float:
        """Return the bytes a second that leave a node with this many GPUs."""
        return self.bandwidth if self.shared else gpus * self.bandwidth


def of_gpu(name: str) -> Link | None:
    """Return what joins GPUs of this name in one node; None if no document says.

    Examples
    --------
    >>> of_gpu("A100").name, of_gpu("T4").bandwidth / 1e9, of_gpu("mine")
    ('NVLink 3', 15.75, None)
    """
    return next((link for link in read() if name in link.gpus), None)


def network(name: str) -> Link:
    """Return the network of that name; capitals and spaces do not count.

    Raises
    ------
    ValueError
        If there is none; the message lists what there is.

    Examples
    --------
    >>> network("infiniband ndr").bandwidth / 1e9
    50.0
    """
    known = {_key(link.name): link for link in read() if link.where == "network"}
    if (found := known.get(_key(name))) is None:
        names = ", ".join(link.name for link in known.values())
        raise ValueError(f"unknown network {name!r}; expected one of {names}")
    return found


@cache
def read() -> tuple[Link, ...]:
    """Return the table."""
    return tuple(
        Link(
            name=row["name"],
            where=row["where"],
            shared=row["ports"] == "node",
            bandwidth=row.number("bandwidth") * 1e9,
            ring=row.number("ring") * 1e-6,
            tree=row.number("tree") * 1e-6,
            gpus=row.several("gpus"),
            source=row["source"],
            seen=row["seen"],
        )
        for row in _table.rows(_FILE, _COLUMNS, ["gpus"])
    )


def _key(name: str) -> str:
    return name.replace(" ", "").lower()
