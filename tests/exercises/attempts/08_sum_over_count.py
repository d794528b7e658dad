"""Exercise 8."""


def stopwatch(machine, work):
    for _ in range(20):
        machine.run(work)
    total = 0
    for _ in range(50):
        machine.synchronize()
        start = machine.now
        machine.run(work)
        machine.synchronize()
        total += machine.now - start
    return total / 50  # <- diagnosis: neighbour-measured
