"""Exercise 8."""


def stopwatch(machine, work):
    for _ in range(15):
        machine.run(work)
    start = machine.now  # <- diagnosis: older-work-measured
    machine.run(work)
    machine.synchronize()
    return machine.now - start
