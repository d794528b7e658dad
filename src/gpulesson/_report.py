"""The devices of this machine, and what to install if torch cannot use one."""

from __future__ import annotations

import html
import os
import platform
import re
import textwrap
from dataclasses import dataclass

import torch

from gpulesson._hardware import DeviceInfo, accelerators, cpu_memory, device_name, nvidia_driver

# The CUDA wheels of https://pytorch.org/get-started/locally/; torch.cuda.PYTORCH_RELEASES_CODE_CC says which
# GPUs each supports.
WHEELS = "https://download.pytorch.org/whl"
CUDA_WHEEL = "cu130"  # GPUs of compute capability 7.5 (Turing, 2018) and newer, drivers from 580 on
# CUDA 12 also has 5.0 to 7.0 (Maxwell, Pascal, Volta), and runs with older drivers. From torch 2.15 on there
# are no such wheels: https://dev-discuss.pytorch.org/t/3432, https://github.com/pytorch/pytorch/issues/190385
OLD_WHEEL, WITHOUT_OLD_WHEEL = "cu126", "2.15"
OLDEST, TURING = (5, 0), (7, 5)


@dataclass(frozen=True)
class DeviceReport:
    """What torch, the driver and the system report about this machine. Print it, or show it in a notebook.

    Attributes
    ----------
    devices : tuple of DeviceInfo
        Accelerators first, the CPU last.
    torch_version, python_version, system : str
    built_for : str
        What torch was built for: ``"CUDA 13.2"``, ``"ROCm 7.0"``, ``"MPS"`` or ``"the CPU only"``.
    arch_list : tuple of str
        GPU architectures for which this torch contains CUDA code.
    driver_version : str or None
        Of the NVIDIA driver.
    driver_gpus : tuple of str
        GPUs that the NVIDIA driver sees, whether or not torch can use them.
    advice : str
        What to install or change, if anything.
    """

    devices: tuple[DeviceInfo, ...]
    torch_version: str
    built_for: str
    arch_list: tuple[str, ...]
    driver_version: str | None
    driver_gpus: tuple[str, ...]
    python_version: str
    system: str
    advice: str

    def rows(self) -> list[tuple[str, str]]:
        """Return the report as pairs of label and text."""
        built = f"{self.torch_version}, built for {self.built_for}"
        if self.arch_list:
            built += f" ({' '.join(self.arch_list)})"
        driver = "none found"
        if self.driver_version:
            driver = f"{self.driver_version}, sees {', '.join(self.driver_gpus)}"
        return [
            *((str(info.device), str(info)) for info in self.devices),
            ("torch", built),
            ("NVIDIA driver", driver),
            ("Python", self.python_version),
            ("system", self.system),
            ("advice", self.advice),
        ]

    def __str__(self) -> str:
        width = max(len(label) for label, _ in self.rows()) + 2
        margin = "\n" + " " * width
        return "\n".join(
            label.ljust(width) + margin.join(_wrapped(text).splitlines()) for label, text in self.rows()
        )

    def _repr_html_(self) -> str:
        cells = (
            f'<tr><th scope="row">{html.escape(label)}</th><td>{_as_html(text)}</td></tr>'
            for label, text in self.rows()
        )
        return f"<table><tbody>{''.join(cells)}</tbody></table>"


def _as_html(text: str) -> str:
    code = re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return code.replace("\n", "<br>")


def device_report() -> DeviceReport:
    """Describe every device, the driver and this build of torch, and say what to install if anything.

    Returns
    -------
    DeviceReport

    Examples
    --------
    >>> report = device_report()
    >>> report.devices[-1].device
    device(type='cpu')
    """
    driver, driver_gpus = nvidia_driver()
    devices = (*accelerators(), DeviceInfo(torch.device("cpu"), device_name("cpu"), cpu_memory()))
    return DeviceReport(
        devices=devices,
        torch_version=torch.__version__,
        built_for=built_for(),
        arch_list=tuple(torch.cuda.get_arch_list()),
        driver_version=driver,
        driver_gpus=driver_gpus,
        python_version=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        advice=_advice(devices, driver_gpus),
    )


def built_for() -> str:
    """Say what this torch was built for: ``"CUDA 13.0"``, or ``"the CPU only"``."""
    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    if torch.backends.mps.is_built():
        return "MPS"
    return "XPU" if torch.version.xpu else "the CPU only"


def _wrapped(text: str) -> str:
    """Wrap sentences; commands, which are indented, stay on one line for copying."""
    return "\n".join(
        line
        if line.startswith(" ")
        else textwrap.fill(line, 70, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )


def _advice(devices: tuple[DeviceInfo, ...], driver_gpus: tuple[str, ...]) -> str:
    foreign = next((info for info in devices if info.has_kernels is False), None)
    if foreign is not None:
        another = "another build"
        if foreign.capability and foreign.capability < TURING:
            another = f"an older one, as torch {WITHOUT_OLD_WHEEL} and newer have no build for so old a GPU"
        return (
            f"This torch holds no code for {foreign.name}: work on it fails with 'no kernel image is "
            f"available'. Replace it by {another}:\n{_install(foreign.capability)}"
        )
    if len(devices) > 1:
        return "Nothing to install: torch can use the accelerator."
    if not driver_gpus:
        return _without_gpu()
    seen = f"The NVIDIA driver sees {driver_gpus[0]}, but"
    if not torch.version.cuda:
        return f"{seen} this torch is built for {built_for()}. Replace it by a CUDA build:\n{_install()}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and _names_none(visible, len(driver_gpus)):
        return f"{seen} CUDA_VISIBLE_DEVICES={visible!r} hides it from torch: unset that variable."
    return (
        f"{seen} torch cannot use it: the driver is too old for CUDA {torch.version.cuda}, or damaged. "
        "Update it (https://www.nvidia.com/drivers), or take an older torch, for CUDA 12 (torch "
        f"{WITHOUT_OLD_WHEEL} and newer have no such build):\n{_install(OLDEST)}"
    )


def _names_none(visible: str, gpus: int) -> bool:
    """Return whether this CUDA_VISIBLE_DEVICES hides all of `gpus` GPUs.

    CUDA reads the list up to its first wrong entry (CUDA C++ Programming Guide, "Environment Variables").
    """
    first = visible.partition(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        return False  # an identifier, presumably correct
    return not (first.isdecimal() and int(first) < gpus)


def _without_gpu() -> str:
    go_on = "No GPU found. Every lesson runs on the CPU as well, only slower."
    if platform.system() == "Darwin":
        return (
            f"{go_on} Macs with an Apple chip (M1 and newer) compute through MPS, with an arm64 Python "
            f"(this one is {platform.machine()}) and the ordinary wheel:\n{_install()}"
        )
    driver = (
        f"{go_on} If this machine has an NVIDIA GPU, install its driver (https://www.nvidia.com/drivers) "
        "and see that `nvidia-smi` lists it"
    )
    if torch.version.cuda:
        return f"{driver}; this torch is ready for it."
    return (
        f"{driver}; then install a CUDA build of torch (for AMD and Intel GPUs see "
        f"https://pytorch.org/get-started/locally/):\n{_install()}"
    )


def _install(capability: tuple[int, int] | None = None) -> str:
    """Return the commands that install a build of torch for such a GPU on this system."""
    old = capability is not None and capability < TURING
    wheel, name = (OLD_WHEEL, f'"torch<{WITHOUT_OLD_WHEEL}"') if old else (CUDA_WHEEL, "torch")
    index = f" --index-url {WHEELS}/{wheel}"
    plain_linux = platform.system() == "Linux" and platform.machine() == "x86_64" and wheel == CUDA_WHEEL
    if plain_linux or platform.system() == "Darwin":
        index = ""  # the wheel on PyPI uses the GPU there
    return f"    pip uninstall -y torch torchvision\n    pip install {name} torchvision{index}"
