"""The least time that a recorded step can take on a GPU: a bound, never a promise.

A kernel takes at least as long as its arithmetic at the GPU's peak rate, and as its bytes at the peak
bandwidth. Kernels of one stream run one after the other, so that the larger of the two adds up over the
operators. The host takes its time to launch each kernel. A step takes at least the longer of both sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from gpulesson.planning.hardware.gpus import Gpu
from gpulesson.planning.recording.record import Operation, Record, Waits

ARITHMETIC, TRAFFIC, LAUNCHES = "arithmetic", "memory traffic", "launches"

LAUNCH_SECONDS = 1.5e-6
"""Host time of one launch: ``cuLaunchKernel`` alone took 1.57 µs with 16 arguments (RTX 4090, measured in
https://github.com/NVIDIA/cuda-python/pull/1959). PyTorch takes several times as long around it."""

_ADVICE = {
    ARITHMETIC: "bound by arithmetic: half precision (autocast) or fewer operations would help",
    TRAFFIC: "bound by memory traffic: half precision (autocast) or fused kernels (torch.compile) would help",
    LAUNCHES: "latency-bound: a larger batch or a captured step (CUDA graph) would help",
}
_TENSOR_CORES = {"tfloat32", "float16", "bfloat16"}
_FAST_ALREADY = "bound by arithmetic on tensor cores: fewer operations or a quicker GPU would help"


@dataclass(frozen=True, slots=True)
class Share:
    """
    The part of a step that one operator, module or line has.

    Attributes
    ----------
    name : str
    seconds : float
        The least time that it takes by itself.
    launches : int
        Kernels that it launches at least.
    """

    name: str
    seconds: float
    launches: int


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """
    One operator of the step, with the seconds of its arithmetic and of its bytes at the GPU's peak.

    Attributes
    ----------
    operation : Operation
    arithmetic, traffic : float
        Seconds.
    """

    operation: Operation
    arithmetic: float
    traffic: float

    @property
    def seconds(self) -> float:
        """The larger of both."""
        return max(self.arithmetic, self.traffic)


@dataclass(frozen=True, slots=True)
class Floor:
    """
    The least time of one step on one GPU. As text it is a sentence, with its conditions below.

    Attributes
    ----------
    gpu : Gpu
    step : int
        Number of the step, from 0.
    operators : tuple of OperatorTime
        In the order in which they ran.
    waits : tuple of Waits
        How often the host waited in this step, by line, the most frequent first. Waits are not in the time.
    """

    gpu: Gpu
    step: int
    operators: tuple[OperatorTime, ...] = field(repr=False)
    waits: tuple[Waits, ...]

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

    def most(self, by: Literal["operator", "module", "line"], count: int = 5) -> list[Share]:
        """
        Return the operators, modules or lines that take most, each by its own least time.

        Parameters
        ----------
        by : {"operator", "module", "line"}
        count : int, default 5
            How many at most.
        """
        groups: dict[str, list[OperatorTime]] = {}
        for each in self.operators:
            groups.setdefault(_NAMES[by](each.operation), []).append(each)
        shares = [_share(name, members) for name, members in groups.items()]
        return sorted(shares, key=lambda share: -share.seconds)[:count]

    @property
    def sentence(self) -> str:
        """The result for a person: *not faster than 1.9 ms a step on a T4; latency-bound: …*."""
        advice = _ADVICE[self.bound]
        if self.bound == ARITHMETIC and self.most_arithmetic() in _TENSOR_CORES & set(self.gpu.rates):
            advice = _FAST_ALREADY
        name = self.gpu.name
        return f"not faster than {rounded_down(self.seconds)} a step on {_article(name)} {name}; {advice}"

    def most_arithmetic(self) -> str:
        """Return the type in which most of the arithmetic's time is spent; "" if there is none."""
        times: dict[str, float] = {}
        for each in self.operators:
            times[each.operation.dtype] = times.get(each.operation.dtype, 0.0) + each.arithmetic
        return max(times, key=lambda dtype: times[dtype]) if any(times.values()) else ""

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
            yield f"Of {self.gpu.name}, {', '.join(unseen)} were seen in no document: check them."
        unknown = {op.operation.dtype for op in self.operators if op.operation.flop} - _rated(self.gpu)
        if unknown:
            yield f"Arithmetic in {', '.join(sorted(unknown))} is not counted: no rate is known."

    def __str__(self) -> str:
        return "\n".join([self.sentence, "This holds if:", *(f"- {each}" for each in self.conditions)])


def floor(record: Record, gpu: Gpu, step: int = -1) -> Floor:
    """
    Return the least time of one recorded step on a GPU.

    Parameters
    ----------
    record : Record
    gpu : Gpu
        From :func:`gpulesson.planning.hardware.gpus.find`.
    step : int, default -1
        Number of a step that the optimizer has ended; negative ones count from the last.

    Raises
    ------
    ValueError
        If there is no such step, or nothing ran on the device in it.

    Examples
    --------
    >>> from gpulesson.planning.hardware import gpus
    >>> from gpulesson.planning.recording.record import Operation, Place, Record
    >>> flop, nbytes = 2 * 4096**3, 3 * 4 * 4096**2
    >>> product = Operation("mm", "float32", flop, flop, nbytes, 1, 0, "forward", Place())
    >>> found = floor(Record(operations=[product], ends=[0]), gpus.find("T4"))
    >>> round(found.seconds * 1e3, 2), found.bound
    (16.97, 'arithmetic')
    """
    if not -record.steps <= step < record.steps:
        raise ValueError(
            f"there is no step {step}: the optimizer took {record.steps}; record at least one whole step"
        )
    step %= record.steps
    operators = tuple(_timed(each, gpu) for each in record.operations if each.step == step)
    if not operators:
        raise ValueError(
            f"no operator ran on the device in step {step}, so that there is no time to speak of: move model "
            "and batch to the device"
        )
    waits = sorted((each for each in record.waits if each.step == step), key=lambda each: -each.count)
    return Floor(gpu, step, operators, tuple(waits))


def _timed(operation: Operation, gpu: Gpu) -> OperatorTime:
    rate = gpu.rate(operation.dtype)
    # What a kernel reads may be in the cache since the kernel before, and what it writes may stay there for
    # the next: an in-place operator on a tensor of the cache's size reads and writes it without any traffic.
    nbytes = max(0, operation.nbytes - 2 * gpu.cache)
    return OperatorTime(operation, operation.least_flop / rate if rate else 0.0, nbytes / gpu.bandwidth)


def _share(name: str, members: list[OperatorTime]) -> Share:
    launches = sum(each.operation.launches for each in members)
    return Share(name, max(math.fsum(each.seconds for each in members), launches * LAUNCH_SECONDS), launches)


_NAMES: dict[str, Callable[[Operation], str]] = {
    "operator": lambda operation: operation.operator,
    "module": lambda operation: operation.place.module,
    "line": lambda operation: (
        f"{operation.place.filename}:{operation.place.line}" if operation.place.filename else ""
    ),
}


def _rated(gpu: Gpu) -> set[str]:
    return {*gpu.rates, "float64", "tfloat32", "float16", "bfloat16"}


def _article(name: str) -> str:
    """Return "a" or "an": an RTX 3090, a T4."""
    spelled = not name[1:2].islower()
    return "an" if name[0].upper() in ("AEFHILMNORSX" if spelled else "AEIOU") else "a"


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
