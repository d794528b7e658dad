"""Exercise 8: so many measurements that the slow ones are not in the middle."""


def stopwatch(machine, work):
    times = []
    for _ in range(101):
        machine.synchronize()
        before = machine.now
        machine.run(work)
        machine.synchronize()
        after = machine.now
        times.append(after - before)
    return sorted(times)[50]


print("done", end="")
