"""Exercise 8: the time of one run on a device with a queue, and a stopwatch that noise cannot mislead."""

import math
from itertools import pairwise, product
from statistics import fmean, median

from gpulesson_tools.exercises.contract import Task, kind_of, number_of
from gpulesson_tools.exercises.words import COMMON, ELSE

UNITS = {"microseconds": 1, "milliseconds": 1e3, "seconds": 1e6}
SUMMARIES = {
    "median": median,
    "mean": fmean,
    "fastest": min,
    "slowest": max,
    "last one": lambda times: times[-1],
    "unsorted middle": lambda times: times[len(times) // 2],
}
UNKNOWN = "another number"
WAYS = ("start", "last"), ("start", "first"), ("first", "last"), ("once", "last")
"""The looks at the clock that are subtracted: the last one before a run, the first or last one after it."""


class Machine:
    """Like the starter's. It notes whether it was idle before each run, and at each look at the clock."""

    def __init__(self, asking, slow, extra, busy):
        self._now, self._asking, self._slow, self._extra = 70_000.0, asking, slow, extra
        self._free_at, self.idle, self.looks = self._now + busy, [], [[]]

    def run(self, work):
        number = len(self.idle)
        late = 20 * (40 - number) ** 2 if number < self._slow else self._extra[number % len(self._extra)]
        late += number / 1e3 if late else number / 1e6  # no two are equal, the undisturbed ones nearly so
        self.idle.append(self._free_at <= self._now)
        self.looks.append([])
        self._now += self._asking + late / 100
        self._free_at = max(self._free_at, self._now) + work + late

    def synchronize(self):
        self._now = max(self._now, self._free_at)

    @property
    def now(self):
        self.looks[-1].append((self._now, self._free_at <= self._now))
        return self._now


def observe(function, facts, slow, extra):
    """Note what was measured, and how; a right time is asked for on another machine, too."""
    machine = Machine(10, slow, extra, busy=90_000)
    value = function(machine, 400)
    number = number_of(value)
    groups = [(0, machine.looks[0]), *((n, looks) for n, looks in enumerate(machine.looks) if n and looks)]
    timed = [
        {"runs": n - m, "before": m, "start": (a or [None])[-1], "first": b[0], "last": b[-1]}
        for (m, a), (n, b) in pairwise(groups)
    ]
    timed = [t for t in timed if t["start"] or t["first"] is not t["last"]]  # between two looks
    timed = [t for t in timed if t["runs"] == 1] or timed
    timed = [t | {"once": timed[0]["start"]} for t in timed]
    if not timed:
        looks = sum(map(len, machine.looks))
        facts["measured"] = "no run" if not machine.idle else "one look" if looks else "no clock"
        return
    right = number is not None and math.isclose(number, 410, rel_tol=1e-6)
    some, unit, (start, end), summary = _meaning(number, timed, sum(t["before"] < slow for t in timed))
    if right and timed[0]["before"] < 3:  # the slow ones were timed, too, and left out afterwards
        some = slice(sum(t["before"] < slow for t in timed), None)
    kept = [t for t in timed[some] if t[start]] or timed[-1:]
    first, together = kept[0]["before"], kept[0]["runs"] > 1
    done = all(t[end][1] for t in kept)
    first_ones = kept if done else timed[:1]  # without the wait after a run, the next one finds it busy
    idle = [
        machine.idle[t["before"]] and (start == "first" or not t[start] or t[start][1]) for t in first_ones
    ]
    facts["measured"] = "together" if together else "alone"
    only = first < slow and some.stop and len(timed) > some.stop
    if first >= slow or summary == UNKNOWN:  # unknown, too, is which of the timed ones count
        facts["warm-up"] = "left out"
    else:
        facts["warm-up"] = "kept" if only else "too short" if first else "timed, too"
    facts["start"] = start
    facts["at the start"] = "idle" if all(idle) else "busy"
    facts["at the end"] = "done" if done else "at work"
    if slow:
        facts["times"] = "enough" if len(kept) >= 20 or together else "one" if len(kept) == 1 else "too few"
    facts["kind"] = kind_of(value) if number is None else "a number"
    facts["summary"], facts["unit"] = summary, "right" if unit == "microseconds" else "another one"
    phases = [extra[n:] + extra[:n] for n in range(len(extra))] if right and len(kept) >= 20 else []
    others = [function(Machine(25, slow // 3, phase, busy=0), 9_000) for phase in phases]
    facts["elsewhere"] = all(math.isclose(number_of(each) or 0, 9_025, rel_tol=1e-6) for each in others)


def _meaning(number, timed, slow):
    """Say how a number comes from the looks: of which times, unit, which looks, what is made of the times.

    Of several answers, one that leaves the slow runs out comes first.
    """
    parts = [slice(slow, None), slice(20), *(slice(n, None) for n in range(min(40, len(timed))))]
    for some, unit, (start, end) in product(parts, UNITS, WAYS) if number is not None else ():
        kept = [each for each in timed[some] if each[start]]
        whole = [each[end][0] - each[start][0] for each in kept]
        times = [time / each["runs"] for time, each in zip(whole, kept, strict=True)]
        found = {name: make(times) for name, make in SUMMARIES.items() if times} | {"sum": sum(whole)}
        for name, known in found.items() if times else ():
            by_chance = name == "unsorted middle" and math.isclose(known, 410, rel_tol=1e-6)
            if not by_chance and math.isclose(known, number * UNITS[unit], rel_tol=1e-6, abs_tol=1e-9):
                return some, unit, (start, end), name
    one_look = timed[-1]["first"] is timed[-1]["last"]
    return slice(None), "microseconds", WAYS[1 if one_look else 2], UNKNOWN


def one_run(
    machine, work,
    *, before="waits", start="before", after="waits", returns="time", unit="right",
    runs=1, begin=None,
):  # fmt: skip
    if before == "waits":
        machine.synchronize()
    begin = machine.now if begin is None else begin
    for _ in range(runs):
        machine.run(work)
    if start == "after":
        begin = machine.now
    if after == "waits":
        machine.synchronize()
    found = (machine.now - begin) / (1e3 if unit == "other" else 1)
    return None if returns == "nothing" else found


def stopwatch(
    machine, work,
    *, warm="enough", measured="alone", start="before", times="enough", summary="median", unit="right",
    returns="number", **how,
):  # fmt: skip
    for _ in range({"none": 0, "kept": 0, "short": 10}.get(warm, 20)):
        machine.run(work)
    if start == "once":
        if how.get("before") != "no":
            machine.synchronize()
        how["begin"] = machine.now
    if measured == "together":
        found = [one_run(machine, work, runs=30, **how) / 30]
    else:
        number = {"one": 1, "few": 8}.get(times, 30)
        found = [one_run(machine, work, start=start, **how) for _ in range(number)]
    found = found[:20] if warm == "kept" else found
    return None if returns == "nothing" else (SUMMARIES[summary](found) / (1e3 if unit == "other" else 1))


KNOWN = ("mean", "fastest", "last one")  # what a single time does not equal by chance
WORDS = {
    "measured": {
        "no run": "the machine was not asked to do the work.",
        "no clock": "machine.now was not read, and your computer's clock knows nothing of the machine.",
        "one look": "machine.now was not read both before and after a run.",
        ELSE: "there were several runs between two looks at the clock.",
    },
    "warm-up": {
        "timed, too": "slow runs were timed.",
        "kept": "the result comes from the first 20 times.",
        ELSE: "slow runs were left after the warm-up.",
    },
    "start": {
        "first": "the clock started after the run.",
        ELSE: "the clock started once, before the run.",
    },
    "at the start": "the machine was still busy when the clock started.",
    "at the end": "the machine was still at work when the clock stopped.",
    "times": {"one": "it comes from one run.", ELSE: "it comes from fewer than 20 runs."},
    "summary": dict.fromkeys(KNOWN, "the result is not the median of the times, but the {found}.")
    | {ELSE: "the result is not the median of the times."},
    "unit": "the result is not in microseconds.",
    "elsewhere": "the result is right here, and wrong on a machine with other numbers.",
}
OWN = COMMON | {
    "warm=none, short, kept": """The first 20 runs are slow, and they count in the result.
        Fix: Run the work 20 times before you measure.""",
    "measured=together": """Several runs were timed with one start and one stop. They overlap, and no median
        can leave out disturbed ones.
        Fix: Start and stop the clock for each run, and keep each time in a list.""",
    "start=once": """The clock started once, before all runs, so each time contains those before it.
        Fix: Start the clock in the loop, before each run.""",
    "before=no": """The machine was not idle when the clock started, so older work was measured, too.
        Fix: First wait for the machine (a call has brackets), and read the clock after that.""",
    "start=after": """The clock started after run(), so the time that it takes to ask for the work is missing.
        Fix: Read the clock before you ask for the work.""",
    "after=no": """run() returns at once, and the machine still works. This is the time of asking for the
        work, not of doing it.
        Fix: Wait for the machine before you read the clock again.""",
    "times=one, few": """Too few runs count in the result: by chance, most of them can be disturbed.
        Fix: Measure at least 20 runs after the warm-up. A return inside the loop ends it early.""",
    "summary=mean, fastest, unsorted middle": """The result is not the median. A median stays the same while
        fewer than half of the runs are disturbed; it is the middle of the times in their order.
        Fix: Take the median of all times after the warm-up. statistics.median sorts them.""",
    "unit=other": """The clock counts microseconds, and the result is to be in microseconds, too.
        Fix: Take the conversion away.""",
}

TASKS = (
    Task(
        does="returns the time of one run",
        reference=one_run,
        observe=lambda function, facts: observe(function, facts, slow=0, extra=(0,)),
        begin="Look at the clock, ask for the work, look at the clock again. Where do you have to wait?",
        words=WORDS | {"summary": "the result is not the time between the two looks at the clock."},
        gpu=False,
        table=OWN,
        only="before; start=after; after; unit; returns=nothing",
    ),
    Task(
        does="returns the median of many runs, after a warm-up",
        reference=stopwatch,
        observe=lambda function, facts: observe(function, facts, slow=20, extra=(2_000, 0, -40, 0, 2_600)),
        begin="First warm up: run the work without a clock. Then put the times of many runs into a list.",
        words=WORDS,
        gpu=False,
        table=OWN,
        only="warm; measured; start; before; after; times; summary; unit; returns=nothing",
    ),
)
