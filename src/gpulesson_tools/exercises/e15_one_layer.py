"""Exercise 15: what a linear layer costs, and whether memory or arithmetic sets its time."""

from gpulesson_tools.exercises.contract import Task, kind_of, number_of

LAYERS = (1, 30, 70, 2), (16, 100, 40, 4)  # batch, inputs, outputs, bytes of a number
OPERATORS = (6e6, 2e6, 3e9, 4e9), (6e6, 2e6, 9e9, 2e9)  # FLOP, bytes and two rates: arithmetic, memory


def cost(
    batch, inputs, outputs, number_bytes,
    *, adds="yes", weights="once", rows="yes", results="yes", unit="bytes", returns="both",
):  # fmt: skip
    flop = (1 if adds == "no" else 2) * batch * inputs * outputs
    numbers = {"once": inputs * outputs, "each row": batch * inputs * outputs, "no": 0}[weights]
    numbers += batch * inputs * (rows == "yes") + batch * outputs * (results == "yes")
    moved = numbers * {"bytes": number_bytes, "numbers": 1, "four": 4}[unit]
    others = {"swapped": (moved, flop), "ratio": flop / moved, "nothing": None}
    return others.get(returns, (flop, moved))


def limit(
    flop, moved, flop_rate, byte_rate,
    *, time="longer", name="right", order="time first", returns="both",
):  # fmt: skip
    computing, moving = flop / flop_rate, moved / byte_rate
    seconds = {"sum": computing + moving, "shorter": min(computing, moving)}.get(time, max(computing, moving))
    by_memory = {"swapped": moving < computing, "counts": moved > flop}.get(name, moving > computing)
    pair = seconds, "memory" if by_memory else "arithmetic"
    others = {"time": pair[0], "name": pair[1], "nothing": None}
    return others.get(returns, pair[::-1] if order == "name first" else pair)


def pair_of(value, facts):
    """Return the two parts of what was returned, and note its kind."""
    parts = list(value) if isinstance(value, tuple | list) else []
    facts["kind"] = "a pair" if len(parts) == 2 else "a word" if isinstance(value, str) else kind_of(value)
    return parts if len(parts) == 2 else [None, None]


def observe_cost(function, facts):
    found = [pair_of(function(*layer), facts) for layer in LAYERS]
    if facts["kind"] == "a pair":
        facts["flop"], facts["bytes"] = (
            [number_of(each) for each in part] for part in zip(*found, strict=True)
        )


def observe_limit(function, facts):
    found = [pair_of(function(*operator), facts) for operator in OPERATORS]
    if facts["kind"] == "a pair":
        facts["order"] = "the name first" if isinstance(found[0][0], str) else "the time first"
        times, names = zip(*(pair[:: -1 if isinstance(pair[0], str) else 1] for pair in found), strict=True)
        facts["seconds"], facts["names"] = [number_of(each) for each in times], [str(each) for each in names]


def listed(what):
    """Return words for the numbers of the two calls, in the order in which they were made."""

    def words(found, expected):
        shown = [
            " and ".join("nothing" if e is None else f"{e:.4g}" for e in each) for each in (found, expected)
        ]
        return f"in two calls, {what} are {shown[0]}, expected {shown[1]}."

    return words


OF_COST = {
    "adds=no": """The FLOP are those of the multiplications alone: each product is also added to a sum.
        Fix: Count two for each weight and each row.""",
    "weights=each row": """The weights were counted once for each row of the batch. They are read once, and
        used for all rows: that is why a larger batch has more FLOP for each byte.
        Fix: Count inputs times outputs once.""",
    "weights=no": """The weights are missing from the bytes, and mostly they are the largest part.
        Fix: Add the bytes of inputs times outputs numbers.""",
    "rows=no": """The rows that the layer reads are missing from the bytes.
        Fix: Add batch times inputs numbers.""",
    "results=no": """The results that the layer writes are missing from the bytes.
        Fix: Add batch times outputs numbers.""",
    "unit=numbers": """The second value counts numbers, and not bytes.
        Fix: Multiply by the bytes of a number.""",
    "unit=four": """Each number was counted with four bytes, whatever number_bytes says.
        Fix: Use the parameter number_bytes.""",
    "returns=swapped": """The two values have changed places: the FLOP come first.
        Fix: Return the FLOP, then the bytes.""",
    "returns=ratio": """One number was returned, FLOP divided by bytes. Asked for are both of them.
        Fix: Return the FLOP and the bytes.""",
}
OF_LIMIT = {
    "time=sum": """The two times were added up. The machine computes and moves bytes at the same time.
        Fix: Take the longer of the two.""",
    "time=shorter": """The shorter of the two times was returned. The operator is done when both are.
        Fix: Take the longer of the two.""",
    "name=swapped": """The names have changed places: "memory" is for an operator whose bytes take longer.
        Fix: Compare the two times once more.""",
    "name=counts": """The name was found by comparing FLOP with bytes. Those are of different kinds: only
        times can be compared.
        Fix: Divide each by its rate first.""",
    "order=name first": """The name came first. The time does.
        Fix: Return the seconds, then the name.""",
    "returns=time": """Only the time was returned.
        Fix: Return the seconds and the name.""",
    "returns=name": """Only the name was returned.
        Fix: Return the seconds and the name.""",
}

TASKS = (
    Task(
        does="returns the FLOP and the bytes of a linear layer",
        reference=cost,
        observe=observe_cost,
        begin="Write down the shapes of the three matrices, and how many numbers each has. Then count what "
        "is done with one weight and one row.",
        words={"flop": listed("the FLOP"), "bytes": listed("the bytes")},
        table=OF_COST,
        gpu=False,
    ),
    Task(
        does="returns the least time of an operator, and what sets it",
        reference=limit,
        observe=observe_limit,
        begin="Compute two times: that of the arithmetic, and that of the bytes.",
        words={
            "order": "the name comes before the time.",
            "seconds": listed("the seconds"),
            "names": lambda found, expected: (
                f"the names are {' and '.join(found)}, expected {' and '.join(expected)}."
            ),
        },
        table=OF_LIMIT,
        gpu=False,
    ),
)
