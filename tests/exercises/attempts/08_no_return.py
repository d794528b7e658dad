"""Exercise 8."""

import statistics


def stopwatch(machine, work):  # <- diagnosis: no-number
    times = []
    for _ in range(35):
        machine.synchronize()
        start = machine.now
        machine.run(work)
        machine.synchronize()
        times.append(machine.now - start)
    statistics.median(times)
