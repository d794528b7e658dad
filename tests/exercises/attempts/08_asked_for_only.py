"""Exercise 8."""

import statistics


def stopwatch(machine, work):
    for _ in range(15):
        machine.run(work)
    machine.synchronize()
    times = []
    for _ in range(20):
        start = machine.now
        machine.run(work)
        times.append(machine.now - start)  # <- diagnosis: not-waited-for
    return statistics.median(times)
