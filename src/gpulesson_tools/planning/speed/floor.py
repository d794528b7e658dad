"""The least time that a recorded step can take on a GPU: a bound, never a promise.

A kernel takes at least as long as its arithmetic at the GPU's peak rate, and as its bytes at the peak
bandwidth. Kernels of one stream run one after the other, so that the larger of the two adds up over the
operators. The host takes its time to launch each kernel. A step takes at least the longer of both sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpulesson_tools.planning.hardware.gpus import Gpu
from gpulesson_tools.planning.recording.record import Operation, Record

ARITHMETIC, TRAFFIC, LAUNCHES = "arithmetic", "memory traffic", "launches"

LAUNCH_SECONDS = 1.5e-6
"""Host time of one launch: ``cuLaunchKernel`` alone took 1.57 µs with 16 arguments (RTX 4090, measured in
https://github.com/NVIDIA/cuda-python/pull/1959). PyTorch takes several times as long around it."""


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One operator of the step, with the seconds of its arithmetic and of its bytes at the GPU's peak."""

    operation: Operation
    arithmetic: float
    traffic: float

    @property
    def seconds(self) -> float:
        """The larger of both."""
        return max(self.arithmetic, self.traffic)


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time of one step on one GPU."""

    gpu: Gpu
    operators: tuple[OperatorTime, ...] = field(repr=False)  # in the order in which they ran

    @property
    def arithmetic(self) -> float:
        """Seconds of all arithmetic at the peak rate of its type."""
        return math.fsum(each.arithmetic for each in self.operators)

    @property
    def traffic(self) -> float:
        """Seconds of all bytes at the peak bandwidth."""
        return math.fsum(each.traffic for each in self.operators)

    @property
    def kernels(self) -> float:
        """Seconds of the operators one after the other, each by the larger of its two."""
        return math.fsum(each.seconds for each in self.operators)

    @property
    def launches(self) -> int:
        """Kernels that are launched at least."""
        return sum(each.operation.launches for each in self.operators)

    @property
    def launching(self) -> float:
        """Seconds that the host takes to launch them."""
        return self.launches * LAUNCH_SECONDS

    @property
    def seconds(self) -> float:
        """The least time of the step."""
        return max(self.kernels, self.launching)

    @property
    def bound(self) -> str:
        """Which of the three binds: ``"arithmetic"``, ``"memory traffic"`` or ``"launches"``."""
        if self.launching >= self.kernels:
            return LAUNCHES
        computing = math.fsum(each.seconds for each in self.operators if each.arithmetic > each.traffic)
        return ARITHMETIC if 2 * computing > self.kernels else TRAFFIC

    @property
    def conditions(self) -> tuple[str, ...]:
        """What has to hold for the bound, a sentence each."""
        return tuple(self._conditions())

    def _conditions(self) -> Iterator[str]:
        yield (
            "PyTorch runs the operators one by one on one stream: nothing is compiled (torch.compile), "
            "captured (CUDA graphs), or done by kernels that fuse several operators, as cuDNN's do for "
            "GRU and RNN layers."
        )
        yield (
            "The GPU reaches its published rates and bandwidth, and its clock is not above the published one "
            "(a GeForce card's may be)."
        )
        yield (
            "Only products of matrices, convolutions and attention count as arithmetic. Convolutions with "
            "stride 1 may take Winograd's algorithm (3×3: a quarter of the products), causal attention skips "
            "what is masked, and products of float16 are summed in float32."
        )
        yield (
            "Of each operator's bytes, as many as the last-level cache holds may be there already, and as "
            "many may stay there."
        )
        yield (
            f"The host takes {LAUNCH_SECONDS * 1e6:g} µs a launch. Its waits, data loading, Python and "
            "copies between host and GPU come on top."
        )
        if unseen := [name for name in self.gpu.unseen if name != "memory_gib"]:
            yield f"Of {self.gpu.name}, {', '.join(unseen)} were not seen in any document: check them."
        computed = {op.operation.dtype for op in self.operators if op.operation.flop}
        if unknown := [dtype for dtype in sorted(computed) if self.gpu.rate(dtype) is None]:
            yield f"Arithmetic in {', '.join(unknown)} is not counted: no rate is known."


def floor(record: Record, gpu: Gpu) -> Floor:
    """Return the least time of the last recorded step on a GPU.

    Raises
    ------
    ValueError
        If there is no step, or nothing ran on the device in it.

    Examples
    --------
    >>> from gpulesson_tools.planning.hardware import gpus
    >>> from gpulesson_tools.planning.recording.record import Operation, Place, Record
    >>> flop, nbytes = 2 * 4096**3, 3 * 4 * 4096**2
    >>> product = Operation("mm", "float32", flop, flop, nbytes, 1, 0, "forward", Place())
    >>> found = floor(Record(operations=[product], ends=[0]), gpus.find("T4"))
    >>> round(found.seconds * 1e3, 2), found.bound
    (16.97, 'arithmetic')
    """
    if not record.steps:
        raise ValueError("there is no step: the optimizer took none; record at least one whole step")
    last = record.steps - 1
    operators = tuple(_timed(each, gpu) for each in record.operations if each.step == last)
    if not operators:
        raise ValueError(
            f"no operator ran on the device in step {last}, so it has no time: move model and batch to "
            "the device"
        )
    return Floor(gpu, operators)


def _timed(operation: Operation, gpu: Gpu) -> OperatorTime:
    rate = gpu.rate(operation.dtype)
    # What a kernel reads may be in the cache since the kernel before, and what it writes may stay there for
    # the next: an in-place operator on a tensor of the cache's size reads and writes it without any traffic.
    nbytes = max(0, operation.nbytes - 2 * gpu.cache)
    return OperatorTime(operation, operation.least_flop / rate if rate else 0.0, nbytes / gpu.bandwidth)


def rounded_down(seconds: float) -> str:
    """Return a time with two digits that is not longer than it is: a bound must not grow by rounding."""
    if seconds <= 0:
        return "0 ms"
    factor, unit = next(
        pair for pair in ((1, "s"), (1e3, "ms"), (1e6, "µs")) if seconds * pair[0] >= 1 or pair[0] > 1e3
    )
    value = seconds * factor
    digits = 1 - math.floor(math.log10(value))
    return f"{math.floor(value * 10**digits) / 10**digits:g} {unit}"
