"""Records that are made by hand."""

from gpulesson_tools.planning.recording.record import Allocation, Operation, Place, Record


def allocation(nbytes, *, operator="empty", phase="forward", module="", filename="", line=0, kind=""):
    return Allocation(nbytes, 0, phase, operator, Place(module, filename, line), kind=kind)


def operation(operator, flop, nbytes, launches=1, least_flop=None):
    least = flop if least_flop is None else least_flop
    return Operation(
        operator, "float32", flop, least, nbytes, launches, 0, "forward", Place("fc", "train.py", 7)
    )


def record(allocations, events, **more):
    return Record(allocations, events, **more)


def random_record(chance, count):
    """Births of all sizes, and deaths; some live on."""
    allocations, events, alive = [], [], []
    for _ in range(count):
        if alive and chance.random() < 0.48:
            events.append(~alive.pop(chance.randrange(len(alive))))
        else:
            size = int(10 ** chance.uniform(0, 7.5))
            alive.append(len(allocations))
            events.append(len(allocations))
            kind, line = chance.choice(["parameters", "activations"]), chance.randrange(5)
            allocations.append(
                allocation(size, kind=kind, filename="train.py", line=line, module=f"m{line % 2}")
            )
    return record(allocations, events)
