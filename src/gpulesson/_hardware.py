"""The devices that torch can use here, and the GPUs that the NVIDIA driver sees."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

DRIVER_TIMEOUT = 20.0  # seconds; nvidia-smi takes several when it has to wake the GPU


@dataclass(frozen=True)
class DeviceInfo:
    """One device that torch can use.

    Attributes
    ----------
    device : torch.device
    name : str
    memory : int or None
        Bytes; None where the system does not say.
    capability : tuple of (int, int) or None
        CUDA compute capability (major, minor).
    has_kernels : bool or None
        Whether this build of torch contains code that this GPU can run; None where that does not apply.
    """

    device: torch.device
    name: str
    memory: int | None = None
    capability: tuple[int, int] | None = None
    has_kernels: bool | None = None

    def __str__(self) -> str:
        parts = [self.name]
        if self.memory is not None:
            parts.append(f"{self.memory / 2**30:.1f} GiB")
        if self.capability is not None:
            parts.append("compute capability {}.{}".format(*self.capability))
        if self.has_kernels is not None:
            parts.append(("has" if self.has_kernels else "has NO") + " kernels in this torch")
        return ", ".join(parts)


def device_name(device: torch.device | str) -> str:
    """Return the name of an existing device; see `gpulesson.device.device_name`."""
    device = torch.device(device)
    if device.type in ("cuda", "xpu"):
        return str(torch.get_device_module(device).get_device_name(device))
    if device.type == "mps":
        return "Apple GPU (Metal)"
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return found.group(1) if found else platform.processor() or platform.machine()


def runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Return whether code built for `arch` runs on a GPU of this compute capability.

    A binary (``sm_80``) runs within its major version, from its own minor version upwards: on 8.0, 8.6
    and 8.9. PTX (``compute_80``) is compiled by the driver for anything as new or newer. The suffix ``a``
    ties the code to exactly its own version, ``f`` to its family. Source: CUDA Programming Guide,
    section 1.3, https://docs.nvidia.com/cuda/cuda-programming-guide/01-introduction/cuda-platform.html.
    (Chips of the Jetson line have exceptions, which this rule leaves out.)

    Parameters
    ----------
    arch : str
        As in ``torch.cuda.get_arch_list()``.
    capability : tuple of (int, int)
        Major and minor version.

    Examples
    --------
    >>> runs_on("sm_80", (8, 6)), runs_on("sm_86", (8, 0)), runs_on("compute_80", (12, 0))
    (True, False, True)
    """
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
    if found is None:
        return False
    kind, suffix = found[1], found[4]
    built = (int(found[2]), int(found[3]))
    if suffix == "a":
        return built == capability
    if kind == "compute" and not suffix:
        return built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


def accelerators() -> list[DeviceInfo]:
    """Describe every accelerator that torch can use now."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return []
    module = torch.get_device_module(accelerator)
    found = []
    for index in range(module.device_count()):
        device = torch.device(accelerator.type, index)
        if accelerator.type == "mps":
            found.append(DeviceInfo(device, device_name(device), int(torch.mps.recommended_max_memory())))
            continue
        memory = int(module.get_device_properties(device).total_memory)
        capability = kernels = None
        if accelerator.type == "cuda" and torch.version.cuda:  # ROCm counts its GPUs differently
            capability = torch.cuda.get_device_capability(device)
            kernels = any(runs_on(arch, capability) for arch in torch.cuda.get_arch_list())
        found.append(DeviceInfo(device, device_name(device), memory, capability, kernels))
    return found


def cpu_memory() -> int | None:
    """Return the bytes of main memory, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return None


def nvidia_driver() -> tuple[str | None, tuple[str, ...]]:
    """Return the driver's version and its GPUs; torch itself only reports those that its build supports."""
    pairs = [line.split(", ", 1) for line in nvidia_smi("--query-gpu=driver_version,name") if ", " in line]
    return (pairs[0][0], tuple(name for _, name in pairs)) if pairs else (None, ())


def nvidia_smi(query: str) -> list[str]:
    """Return the lines with which the driver's program answers; none where it is missing or fails."""
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()
