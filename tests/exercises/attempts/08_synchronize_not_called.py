"""Exercise 8."""

import statistics


def stopwatch(machine, work):
    for _ in range(15):
        machine.run(work)
    times = []
    for _ in range(20):
        machine.synchronize()
        start = machine.now
        machine.run(work)
        machine.synchronize  # <- diagnosis: not-called
        times.append(machine.now - start)
    return statistics.median(times)
