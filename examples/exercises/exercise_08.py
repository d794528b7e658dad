"""Exercise 8: Write a stopwatch for a device with a queue.

Two functions are empty. Write them one after the other, and check whenever you like:

    python -m gpulesson check exercise_08.py
"""


class Machine:
    """A made-up device and its clock, in microseconds, the same on every computer.

    Use run(), synchronize() and now. The check has machines of its own, with the same
    three and other numbers.
    """

    def __init__(self, busy=0, slow=0, shared=False):
        self.now = 0.0  # the clock
        self._free_at = busy  # when it has done all that it was asked to do
        self._slow = slow  # so many runs are slow at first
        self._shared = shared  # other programs use the device, too
        self._runs = 0

    def run(self, work):
        """Ask for `work` microseconds of computing, and return at once."""
        if self._runs < self._slow:
            work += 30_000  # not warm yet
        elif self._shared:
            work += (2_000, 0, -20, 0, 2_000)[self._runs % 5]
        self._runs += 1
        self.now += 10  # asking takes 10
        self._free_at = max(self._free_at, self.now) + work

    def synchronize(self):
        """Wait until the device has done everything."""
        self.now = max(self.now, self._free_at)


def one_run(machine, work):
    """Return how many microseconds one run takes, from asking for it until it is done.

    The machine is warm, and nothing disturbs it. But it may be busy with older work,
    and that does not count.
    """


def stopwatch(machine, work):
    """Return the median of at least 20 runs, in microseconds, each timed for itself.

    The first runs of a machine, up to 20, are slow: leave them out. Later, too, up to
    two runs in five are disturbed and take longer, and some are a little faster. The
    machine may be busy with older work.
    """


def main():
    """Measure machines whose time is known: computing, and 10 for asking."""
    for work in (40, 400):
        for name, machine in (("idle", Machine()), ("busy", Machine(busy=5_000))):
            result = one_run(machine, work)
            print(f"one_run, {name}: {result} µs, {work + 10} is right")
    for name, busy, slow in (("idle, 12 slow runs", 0, 12), ("busy, 3", 5_000, 3)):
        result = stopwatch(Machine(busy, slow, shared=True), 400)
        print(f"stopwatch, {name}: {result} µs, 410 is right")


if __name__ == "__main__":
    main()
