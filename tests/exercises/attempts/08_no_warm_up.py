"""Exercise 8."""

import statistics


def stopwatch(machine, work):  # <- diagnosis: not-warmed-up
    times = []
    for _ in range(9):
        machine.synchronize()
        start = machine.now
        machine.run(work)
        machine.synchronize()
        times.append(machine.now - start)
    return statistics.median(times)
