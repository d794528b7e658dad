"""Exercise 8."""

import statistics
import time


def stopwatch(machine, work):  # <- diagnosis: other-clock
    times = []
    for _ in range(35):
        machine.synchronize()
        start = time.perf_counter()
        machine.run(work)
        machine.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)
