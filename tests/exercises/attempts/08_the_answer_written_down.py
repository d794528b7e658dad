"""Exercise 8."""


def stopwatch(machine, work):  # <- diagnosis: nothing-measured
    return work + 10


print("measured right")
