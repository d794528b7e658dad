"""Exercise 8."""

import statistics


def stopwatch(machine, work):
    for _ in range(15):
        machine.run(work)
    times = []
    for _ in range(20):
        machine.synchronize()
        machine.run(work)
        start = machine.now  # <- diagnosis: asking-left-out
        machine.synchronize()
        times.append(machine.now - start)
    return statistics.median(times)
