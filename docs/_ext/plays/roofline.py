"""A linear layer under the roofs of several machines, by the size of its batch (lesson 15)."""

from __future__ import annotations

from typing import Any

from gpulesson_tools.planning.hardware import gpus

from . import table

SHEETS = (
    ("T4", "float16"),
    ("RTX 4090", "bfloat16"),
    ("A100", "bfloat16"),
    ("H200", "float32"),
    ("H200", "bfloat16"),
)
LARGEST = 14  # the slider ends at this power of two
SHOWN = (0, 4, 8, 12)  # in the table


def play(names: dict[str, Any]) -> tuple[Any, str]:
    measured = [[batch, rate] for batch, (_, rate) in names["layer"].items()]
    own = machine(names["byte_rate"], names["flop_rate"], 4)
    machines = [{"name": "This machine, float32, measured", **own, "measured": measured}]
    for name, dtype in SHEETS:
        gpu = gpus.find(name)
        own = machine(gpu.bandwidth, gpu.rates[dtype], 4 if dtype == "float32" else 2)
        machines.append({"name": f"{name}, {dtype}, data sheet", **own, "measured": []})
    side = names["side"]
    rows = (row(each, 2**power, side) for each in machines for power in SHOWN)
    still = table(["machine", "batch", "FLOP per byte", "limit"], rows)
    return {"machines": machines, "side": side, "largest": LARGEST}, still


def machine(bandwidth: float, rate: float, size: int) -> dict[str, Any]:
    """Return a roof: bytes and operations a second, and the bytes of a number."""
    return {"bytes": float(f"{bandwidth:.4g}"), "flop": float(f"{rate:.4g}"), "size": size}


def row(roof: dict[str, Any], batch: int, side: int) -> tuple[str, ...]:
    intensity = 2 * batch * side / (roof["size"] * (side + 2 * batch))
    limit = "memory" if intensity < roof["flop"] / roof["bytes"] else "arithmetic"
    return roof["name"], f"{batch:,}", f"{intensity:.1f}", limit
