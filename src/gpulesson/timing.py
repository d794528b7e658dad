"""Time work on a device correctly."""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from gpulesson._arguments import refuse, whole_number
from gpulesson.device import choose_device, device_name, named_device


def synchronize(device: torch.device | str) -> None:
    """Wait until the device has done all work queued so far; on the CPU there is nothing to wait for.

    A GPU works through a queue while Python runs ahead: a clock read without this call times the queueing.

    Examples
    --------
    >>> synchronize("cpu")
    """
    device = named_device(device)
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one piece of work, and what they were taken on.

    Attributes
    ----------
    median : float
        Seconds.
    quartiles : tuple of (float, float)
        Seconds; half of the runs lie between them.
    times : tuple of float
        Seconds, one number a run, in the order of the runs.
    device : torch.device
    device_name : str
    torch_version : str
    threads : int
        CPU threads that torch uses for one operator.
    """

    median: float
    quartiles: tuple[float, float]
    times: tuple[float, ...]
    device: torch.device
    device_name: str
    torch_version: str
    threads: int

    def __str__(self) -> str:
        scale, unit = (1.0, "s") if self.median >= 1 else (1e3, "ms") if self.median >= 1e-3 else (1e6, "µs")
        middle, low, high = (f"{seconds * scale:.3g}" for seconds in (self.median, *self.quartiles))
        return (
            f"{middle} {unit} (half of {len(self.times)} runs took {low} to {high} {unit}) on {self.device}: "
            f"{self.device_name}, torch {self.torch_version}, {self.threads} CPU threads"
        )


def measure(
    fn: Callable[[], object], *, device: torch.device | str, warmup: int = 3, repeats: int = 20
) -> Timing:
    """Time `fn` the way a GPU needs it: warm up, wait before and after each run, repeat.

    Parameters
    ----------
    fn : callable without arguments
        The work. What it returns is thrown away.
    device : torch.device or str
        The device that does the work; each run waits for it.
    warmup : int
        Runs before the clock starts: they load kernels, fill caches and let clock rates rise.
    repeats : int
        Runs that are timed, at least 1.

    Returns
    -------
    Timing
        Median and quartiles, in seconds: a busy machine makes some runs slower and none faster, so a mean
        would measure the other programs, too.

    Raises
    ------
    DeviceError
        The device does not exist.
    ValueError
        `repeats` is below 1, or `warmup` negative.

    Examples
    --------
    >>> timing = measure(lambda: torch.ones(10).sum(), device="cpu", repeats=5)
    >>> len(timing.times)
    5
    """
    if not _takes_nothing(fn):
        refuse(
            "fn", fn, "a function without arguments", "give the work, not its result: lambda: model(inputs)"
        )
    repeats = whole_number("repeats", repeats, 1, "need at least 1 repeat, such as repeats=20")
    warmup = whole_number("warmup", warmup, 0, "need 0 or more warm-up runs, such as warmup=3")
    device = choose_device(device)
    for _ in range(warmup):
        fn()
    times = []
    for _ in range(repeats):
        synchronize(device)  # the CPU waits: earlier work must not count
        start = time.perf_counter()
        fn()
        synchronize(device)  # the CPU waits until the work is done, not only queued
        times.append(time.perf_counter() - start)
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive") if repeats > 1 else times * 3
    return Timing(
        median=middle,
        quartiles=(low, high),
        times=tuple(times),
        device=device,
        device_name=device_name(device),
        torch_version=torch.__version__,
        threads=torch.get_num_threads(),
    )


def _takes_nothing(fn: object) -> bool:
    if not callable(fn) or isinstance(fn, type | nn.Module):
        return False
    try:
        inspect.signature(fn).bind()
    except TypeError:  # an argument is missing
        return False
    except ValueError:  # a C function without a signature
        pass
    return True
