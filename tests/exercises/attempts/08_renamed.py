"""Exercise 8."""

import statistics


def my_stopwatch(machine, work):  # <- diagnosis: no-function (no line)
    times = []
    for _ in range(35):
        machine.synchronize()
        start = machine.now
        machine.run(work)
        machine.synchronize()
        times.append(machine.now - start)
    return statistics.median(times)
