"""What joins GPUs: NVLink or PCI Express in a node, a network between nodes; one table, ``links.csv``.

The head of that file says what its columns mean.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NETWORK = "InfiniBand NDR"
"""What joins nodes unless another is named: the quickest of the table."""

_FILE = Path(__file__).with_suffix(".csv")


@dataclass(frozen=True, slots=True)
class Link:
    """
    What a link can carry at most.

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
    """
    Return what joins GPUs of this name in one node; None if it was seen in no document.

    Examples
    --------
    >>> of_gpu("A100").name, of_gpu("T4").bandwidth / 1e9, of_gpu("mine")
    ('NVLink 3', 15.75, None)
    """
    return next((link for link in read() if name in link.gpus), None)


def network(name: str) -> Link:
    """
    Return the network of that name; capitals and spaces do not count.

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
    lines = _FILE.read_text("utf-8").splitlines()
    return tuple(_link(row) for row in csv.DictReader(line for line in lines if not line.startswith("#")))


def _link(row: dict[str, str]) -> Link:
    return Link(
        name=row["name"],
        where=row["where"],
        shared=row["ports"] == "node",
        bandwidth=float(row["bandwidth"]) * 1e9,
        ring=float(row["ring"]) * 1e-6,
        tree=float(row["tree"]) * 1e-6,
        gpus=tuple(filter(None, row["gpus"].split(";"))),
        source=row["source"],
        seen=row["seen"],
    )


def _key(name: str) -> str:
    return name.replace(" ", "").lower()
