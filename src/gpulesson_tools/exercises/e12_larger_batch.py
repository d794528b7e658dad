"""Exercise 12: the updates of an epoch, and a learning rate for a batch sixteen times as large."""

import math
from functools import cache

from gpulesson_tools.exercises.catalogue import find
from gpulesson_tools.exercises.contract import Task, kind_of, number_of

ROWS, HELD_OUT, SMALL, LARGE = 1200, 400, 32, 512
MIDDLE = 0.1
"""A rate that pays; one that does not is too low below it, and too high above it."""
MISTAKEN = {
    "dropped": "The last batch is shorter than the others, and it makes an update, too.",
    "fraction": "There is no part of an update: a shorter batch makes a whole one.",
    "held_out": "The held-out points are not trained on, so they make no updates.",
    "swapped": "The two have changed places: the larger the batch, the fewer updates.",
    "sizes": "Those are the sizes of the batches. An update is made once for each batch.",
    "epochs": "Those are the updates of all 20 epochs. Asked for are those of one.",
}


def updates(**mistakes):
    names = [*mistakes] or ["right"]
    return {SMALL: entries(SMALL)[names[0]], LARGE: entries(LARGE)[names[-1]]}


def entries(size):
    """Return the numbers that an entry may have, by what was done to get them."""
    return {
        "right": math.ceil(ROWS / size),
        "dropped": ROWS // size,
        "held_out": math.ceil((ROWS + HELD_OUT) / size),
        "swapped": math.ceil(ROWS / (SMALL + LARGE - size)),
        "sizes": size,
        "epochs": 20 * math.ceil(ROWS / size),
        "fraction": ROWS / size,
    }


def observe_updates(table, facts):
    facts["kind"], table = kind_of(table), table if isinstance(table, dict) else {}
    facts |= {"left": 0, **dict.fromkeys(MISTAKEN, False), "other": []}
    for size in (SMALL, LARGE):
        value, known = table.get(size, table.get(str(size), "?")), entries(size)
        if str(value).strip() in ("", "?", "None"):
            facts["left"] += 1
            continue
        number = number_of(value)
        names = [name for name, each in known.items() if number == each]
        if not names and number is not None and known["dropped"] < number < known["right"]:
            names = ["fraction"]  # rounded
        if not names:
            facts["other"].append(f"for batches of {size} you say {value} updates")
        elif names[0] != "right":
            facts[names[0]] = True


@cache
def epochs(batch_size, rate):
    """Count the epochs of three seeds, by the function of the starter."""
    starter = {"__name__": "starter"}
    exec(find(12).text(), starter)
    return [starter["epochs_needed"](seed, batch_size, rate) for seed in range(3)]


def best_rate(*, rate="right"):
    return {"right": MIDDLE, "low": 1e-3, "high": 2.0, "unchanged": 3e-3}[rate]


def observe_rate(rate, facts):
    facts["kind"], number = kind_of(rate), None if isinstance(rate, str | bool) else number_of(rate)
    if number is None:
        return
    facts["kind"], facts["positive"] = "a number", 0 < number < math.inf
    if facts["positive"]:
        needed, allowed = epochs(LARGE, number), int(1.5 * sum(epochs(SMALL, 3e-3)))
        unpaid = "unchanged" if number == 3e-3 else "too low" if number < MIDDLE else "too high"
        # All that pay are equally right, so the epochs are millionths: too small to make facts differ.
        facts["rate"] = ["right" if sum(needed) <= allowed else unpaid]
        facts["rate"] += [1 + each / 1e6 for each in (*needed, allowed)]


def say_epochs(found, _):
    *needed, allowed = (round(1e6 * (each - 1)) for each in found[1:])
    seeds = ", ".join(map(str, needed))
    return (
        f"the three seeds needed {seeds} epochs, {sum(needed)} in all (each stops at 20), "
        f"and {allowed} are allowed."
    )


OF_BEST_RATE = {
    "rate=unchanged": """RATE is 0.003 still, as for the small batch. The large batch makes few updates in an
        epoch, so each has to be longer.
        Fix: Change the number after RATE, above the functions. Double it until the starter prints that it
        pays.""",
    "rate=low": """The rate is too low. The large batch makes few updates in an epoch, and with this rate each
        is short.
        Fix: Take a higher rate. Double it until the starter prints that it pays.""",
    "rate=high": """The rate is too high. Each update goes too far, past the good weights.
        Fix: Take a lower rate. Halve it until the starter prints that it pays.""",
}

TASKS = (
    Task(
        value="UPDATES",
        does="says how many updates an epoch has, with either batch",
        reference=updates,
        observe=observe_updates,
        begin="Divide the rows by the size of a batch.",
        gpu=False,
        words={
            **dict.fromkeys(MISTAKEN, lambda *_: ""),
            "kind": "UPDATES",
            "left": "still to be filled in: {found} of 2. How many batches does it take until the model has "
            "seen each of the 1,200 points once?",
            "other": lambda found, _: (
                f"{' and '.join(found)}. How often do that many points fit into 1,200, rounded up?"
            ),
        },
        table={
            f"{name}=yes": f"{says} Fix: Divide the 1,200 points by the size of a batch, and round up."
            for name, says in MISTAKEN.items()
        },
    ),
    Task(
        value="RATE",
        does="is a learning rate with which the large batch pays",
        reference=best_rate,
        observe=observe_rate,
        begin="Write one number.",
        gpu=False,
        words={"kind": "RATE", "positive": "RATE is not greater than 0.", "rate": say_epochs},
        table=OF_BEST_RATE,
    ),
)
