"""Exercise 8: what is to be done around a measurement, in a decorator."""

import functools
import statistics
from collections.abc import Callable


def carefully(measure: Callable[..., float]) -> Callable[..., float]:
    @functools.wraps(measure)
    def wrapped(machine, work: float, repeats: int = 25) -> float:
        while machine.calls < 12:
            machine.run(work)
        return statistics.median([measure(machine, work) for _ in range(repeats)])

    return wrapped


@carefully
def stopwatch(machine, work: float) -> float:
    machine.synchronize()
    start: float = -machine.now
    machine.run(work)
    machine.synchronize()
    return start + machine.now
