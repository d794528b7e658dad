"""Exercise 8."""

import statistics


def stopwatch(machine, work):
    for _ in range(15):
        machine.run(work)
    machine.synchronize()
    start = machine.now  # <- diagnosis: started-once
    times = []
    for _ in range(20):
        machine.run(work)
        machine.synchronize()
        times.append(machine.now - start)
    return statistics.median(times)
