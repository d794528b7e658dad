"""Collect, compare and set the states of all global random number generators."""

import random
import re
import struct
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gpulesson._files import printable
from gpulesson.checkpoint.differences import difference
from gpulesson.checkpoint.tensorfile import Refused, memory_of


def rng_state() -> dict[str, Any]:
    """Collect the states, by name: ``"python"``, ``"cpu"``, ``"numpy"`` (if it is used), ``"cuda:0"``, …"""
    version, numbers, gauss = random.getstate()
    python = {"version": version, "numbers": torch.tensor(numbers), "gauss": gauss}
    state: dict[str, Any] = {"python": python, "cpu": torch.get_rng_state()}
    if numpy := sys.modules.get("numpy"):
        found = numpy.random.get_state(legacy=False)
        if (kind := found.pop("bit_generator")) != "MT19937":
            raise Refused(
                f"NumPy's global generator is {kind}, and only its default one, MT19937, can be saved"
            )
        inner = found.pop("state")
        state["numpy"] = found | {"key": torch.from_numpy(inner["key"].astype("int64")), "pos": inner["pos"]}
    for device in _accelerators():
        backend = torch.get_device_module(device)
        # else unused: do not initialise a GPU that others may use
        if getattr(backend, "is_initialized", lambda: True)():
            state[str(device)] = backend.get_rng_state(device)
    return state


def find_wrong_rng(state: Mapping[str, Any]) -> str | None:
    """Say which of these states the generators of this process cannot take."""
    if missing := {"python", "cpu"} - state.keys():
        return f"rng lacks {' and '.join(sorted(missing))}"
    if odd := [name for name in state if not re.fullmatch(r"python|cpu|numpy|[a-z]{2,20}:\d{1,3}", name)]:
        return f"rng has {printable(odd[0], 100)}, which is not a generator"
    now = rng_state()
    if (python := state["python"]) and type(python) is dict and python.get("gauss") is not None:
        now["python"]["gauss"] = 0.0
    for name in state.keys() & now.keys():
        if wrong := difference(state[name], now[name], f"rng {name}"):
            return wrong
    if wrong := find_wrong_generator(state["cpu"], "rng cpu"):
        return wrong
    try:
        random.Random().setstate(_of_python(state["python"]))
    except (ValueError, TypeError, OverflowError) as error:
        return f"rng python: {error}"
    return None


def find_wrong_generator(state: Tensor, way: str) -> str | None:
    """Say what is wrong with the state of PyTorch's generator on the CPU; other generators check theirs.

    It keeps 624 numbers, how many of them are left, and which is next. PyTorch compares both with 624, but
    not their sum, and would read beyond its memory (ATen's ``MT19937RNGEngine.h``, `is_valid`).
    """
    if state.numel() != torch.get_rng_state().numel():
        return None
    left, seeded, following = struct.unpack_from("<iiQ", bytes(memory_of(state)), 8)
    if seeded != 1 or not 0 < left <= 624 or not 0 <= left + following <= 625:
        return f"{way}: there cannot be {left} numbers left from number {following} of 624 on"
    return None


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Set what `rng_state` collected; warn about generators that do not exist here."""
    random.setstate(_of_python(state["python"]))
    torch.set_rng_state(state["cpu"])
    if "numpy" in state and (numpy := sys.modules.get("numpy")):  # else nothing here draws from it
        key, *rest = (state["numpy"][name] for name in ("key", "pos", "has_gauss", "gauss"))
        numpy.random.set_state(("MT19937", key.numpy().astype("uint32"), *rest))
    devices = {str(device): device for device in _accelerators()}
    others = sorted(state.keys() - {"python", "numpy", "cpu"})
    for name in others:
        if name in devices:
            torch.get_device_module(name).set_rng_state(state[name], devices[name])
    if gone := [name for name in others if name not in devices]:
        names = ", ".join(gone)
        warnings.warn(f"no {names} here, whose random numbers the saved run may have used", stacklevel=3)


def _accelerators() -> list[torch.device]:
    kind = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count()
    return [] if kind is None else [torch.device(kind.type, index) for index in range(count)]


def _of_python(state: Mapping[str, Any]) -> tuple[Any, ...]:
    return state["version"], tuple(state["numbers"].tolist()), state["gauss"]
