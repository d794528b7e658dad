"""Exercise 8."""


def stopwatch(machine, work):
    for _ in range(15):
        machine.run(work)
    machine.synchronize()
    start = machine.now
    for _ in range(20):
        machine.run(work)
    machine.synchronize()
    return (machine.now - start) / 20  # <- diagnosis: many-calls-one-wait
