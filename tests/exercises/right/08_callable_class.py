"""Exercise 8: an object that can be called."""

from statistics import median


class Stopwatch:
    def __init__(self, warm_up: int, repeats: int) -> None:
        self.warm_up, self.repeats = warm_up, repeats

    def once(self, machine, work) -> float:
        machine.synchronize()
        start = machine.now
        machine.run(work)
        machine.synchronize()
        return machine.now - start

    def __call__(self, machine, work):
        for _ in range(self.warm_up):
            self.once(machine, work)
        return median(self.once(machine, work) for _ in range(self.repeats))


stopwatch = Stopwatch(warm_up=12, repeats=9)
