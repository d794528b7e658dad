"""Exercise 8, solved: warm up, wait before and after each run, take the median."""

import statistics


def one_run(machine, work):
    machine.synchronize()  # nothing older may run into our time
    start = machine.now
    machine.run(work)
    machine.synchronize()  # done, not only asked for
    return machine.now - start


def stopwatch(machine, work):
    for _ in range(20):  # warm up
        machine.run(work)
    times = [one_run(machine, work) for _ in range(20)]
    return statistics.median(times)
