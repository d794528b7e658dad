"""Exercise 8, an attempt: a single call to warm up."""

import statistics
import sys


class Machine:
    """A made-up device and its clock, in microseconds, the same on every computer."""

    def __init__(self):
        self.now = 0.0  # the clock
        self.free_at = 0.0  # when the device has done all that it was asked to do
        self.calls = 0

    def run(self, work):
        """Ask for `work` microseconds of computing, and return at once."""
        self.calls += 1
        if self.calls <= 12:
            work += 30_000  # not warm yet
        if self.calls % 4 == 0:
            work += 2_000  # somebody else uses the device, too
        self.now += 10  # asking takes 10
        self.free_at = max(self.free_at, self.now) + work

    def synchronize(self):
        """Wait until the device has done everything."""
        self.now = max(self.now, self.free_at)


def stopwatch(machine, work):
    """Return how many microseconds it takes to ask for `work` and have it done."""
    machine.run(work)  # <- diagnosis: not-warmed-up
    times = []
    for _ in range(9):
        machine.synchronize()  # nothing older may run into our time
        start = machine.now
        machine.run(work)
        machine.synchronize()  # done, not only asked for
        times.append(machine.now - start)
    return statistics.median(times)


truth = {"small": 40 + 10, "large": 400 + 10}  # computing, and asking for it
wrong = 0
for before in (0, 5_000):  # idle, or still busy with something older
    for name, work in (("small", 40), ("large", 400)):
        machine = Machine()
        machine.free_at = before
        found = stopwatch(machine, work)
        wrong += found != truth[name]
        print(f"{name}: {found:8.0f} µs measured, {truth[name]} µs is right")

print("measured right" if not wrong else f"{wrong} of 4 are wrong")
sys.exit(wrong > 0)
