"""Exercise 8: a stopwatch for a device with a queue."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulesson.exercises import calls
from gpulesson.exercises.exercise import Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural
from gpulesson.exercises.rules import called, definitions, source_text
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NOTHING_MEASURED = Diagnosis(
    "nothing-measured",
    "A stopwatch has to run the work on the device that it gets, and read that device's clock.",
    "Inside the function, use its arguments: machine.run(work) and machine.now.",
)
OTHER_CLOCK = Diagnosis(
    "other-clock",
    "The made-up device has its own clock, machine.now. Your computer's clock knows nothing of it.",
    "Read machine.now before and after the work, and subtract.",
)
NO_NUMBER = Diagnosis(
    "no-number",
    "A stopwatch has to return one number, in microseconds. (A function without a return gives None.)",
    "Return the median of your measurements: return statistics.median(times).",
)
NOT_WAITED_FOR = Diagnosis(
    "not-waited-for",
    "run() returns as soon as it has handed over the work. Read the clock when the work is done.",
    "Call machine.synchronize() after run(), before you read the clock again.",
)
MANY_CALLS_ONE_WAIT = Diagnosis(
    "many-calls-one-wait",
    "With one wait for many calls, the CPU asks for the next call while the device still works. So the "
    "times overlap, and this is not the time of one call.",
    "Move the clock and both waits into the loop: one measurement for each call.",
)
OLDER_WORK_MEASURED = Diagnosis(
    "older-work-measured",
    "The device was still busy with earlier work when the clock started, so that work was measured, too.",
    "Call machine.synchronize() before you start the clock, too.",
)
STARTED_ONCE = Diagnosis(
    "started-once",
    "The clock started once, so each measurement contains all those before it.",
    "Move start = machine.now into the loop, in front of machine.run(work).",
)
RETURNED_TOO_EARLY = Diagnosis(
    "returned-too-early",
    "A return inside the loop ends it after the first measurement.",
    "Move the return out of the loop: indent it less.",
)
ASKING_LEFT_OUT = Diagnosis(
    "asking-left-out",
    "Asking for the work takes time, too (10 µs here). So the clock has to start before run().",
    "Read machine.now before you call machine.run(work).",
)
SUM_RETURNED = Diagnosis(
    "sum-returned",
    "This is the time of all calls together. Wanted is the time of one call.",
    "Keep the measurements in a list, and return their median: statistics.median(times).",
)
BACKWARDS = Diagnosis(
    "backwards",
    "A time is the later reading of the clock minus the earlier one.",
    "Swap the two: machine.now - start.",
)
WRONG_TIME = Diagnosis(
    "wrong-time",
    "Nothing disturbs this device, so the time of a call is known exactly: asking plus computing.",
    "Write down what machine.now is after each of your lines, and compare.",
)
DIVIDED_AGAIN = Diagnosis(
    "divided-again",
    "Each measurement is the time of one call, and so is their median. There is nothing left to divide.",
    "Take this division away: return statistics.median(times).",
)
OTHER_UNIT = Diagnosis(
    "other-unit",
    "machine.now counts microseconds. The time is wanted in microseconds, too.",
    "Take this conversion away: return statistics.median(times).",
)
NOT_WARMED_UP = Diagnosis(
    "not-warmed-up",
    "The first calls are slow: the device also does work that is needed only once.",
    "Call machine.run(work) several times before you measure. How many calls does this device need?",
)
WARMED_ANOTHER = Diagnosis(
    "warmed-another",
    "Every device needs its own warm-up. This one stays cold, and its first calls are slow.",
    "Warm up the device that stopwatch gets. A function that does it needs that device as an argument: "
    "warm_up(machine, work).",
)
NEIGHBOUR_MEASURED = Diagnosis(
    "neighbour-measured",
    "Some calls take longer because another program uses the device, too. One of them can spoil a mean or a "
    "single measurement, but not a median.",
    "Measure many times, and return the median: statistics.median(times).",
)

LUCKIEST_MEASURED = Diagnosis(
    "luckiest-measured",
    "The smallest time is that of the luckiest call, and says little about the others. The median is the "
    "time of a usual call.",
    "Keep all measurements in a list, and return their median: statistics.median(times).",
)

_ASKING, _WORK = 10, 400
_IDLE = "an undisturbed device"
_DEVICES = {
    OLDER_WORK_MEASURED: "a device that was still busy",
    NOT_WARMED_UP: "a device with a slow start",
    NEIGHBOUR_MEASURED: "a shared device",
    LUCKIEST_MEASURED: "a device on which every fifth call is faster",
}


class Look(NamedTuple):
    """One look at the clock."""

    line: int
    runs: int
    """Calls of `run` since the last look."""
    busy: bool
    """The device had not done all its work."""


def stopwatch(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what the stopwatch measures besides the work, or instead of it."""
    facts = trace.facts
    if called.failed(trace):
        return
    if "measured" not in facts:
        yield source.failure(NOTHING_MEASURED, 0, "The check could not call stopwatch.")
        return
    line = definitions.line(source.lines, "stopwatch")
    idle = facts["idle"]
    for value, asking, work, runs, looks in idle:
        fault = _fault(value, asking, work, runs, [Look(*look) for look in looks])
        if fault is not None:
            diagnosis, place, found = fault
            what = f"On {_IDLE} {found}; expected {asking + work} µs."
            if diagnosis in (NO_NUMBER, SUM_RETURNED, WRONG_TIME) and value is not None:
                place = _return_line(source)
            if diagnosis is WRONG_TIME and (divided := _divided(source, value, asking + work)):
                place, by = divided
                diagnosis = OTHER_UNIT if by in _UNITS else DIVIDED_AGAIN
                what = f"{what} That is {by:,} times too small."
            yield source.failure(diagnosis, place or line, what)
            return  # the others cannot be told while this is wrong
    for diagnosis, device in _DEVICES.items():
        if diagnosis.kind in facts["measured"]:
            value, truth, start = facts["measured"][diagnosis.kind]
            if diagnosis is LUCKIEST_MEASURED and NEIGHBOUR_MEASURED.kind in facts["measured"]:
                continue  # a mean is spoiled by both
            of_result = _return_line(source)
            place = {
                OLDER_WORK_MEASURED: start,
                NEIGHBOUR_MEASURED: of_result,
                LUCKIEST_MEASURED: of_result,
            }.get(diagnosis, line)
            what = f"On {device} it measured {value:,.0f} µs; expected {truth} µs."
            if diagnosis is NOT_WARMED_UP:
                loop = _warm_up(source)
                if loop is not None and (other := _another_device(source, loop)):
                    place, diagnosis = loop.lineno, WARMED_ANOTHER
                    named = "" if other.startswith("Machine(") else f", here called “{other}”"
                    what = f"This warm-up runs on a new Machine(){named}. {what}"
                elif short := _too_short(source, loop, facts):
                    place, calls = short
                    counted = f"{plural(calls, 'call')}, too few" if calls else "too few calls"
                    what = f"This warm-up leaves out {counted}. {what}"
            if diagnosis is NEIGHBOUR_MEASURED and (early := _return_in_a_loop(source)):
                diagnosis, place = RETURNED_TOO_EARLY, early
            yield source.failure(diagnosis, place or line, what)


def _fault(
    value: Any, asking: int, work: int, runs: int, looks: list[Look]
) -> tuple[Diagnosis, int, str] | None:
    """Say what is wrong with a measurement that nothing has disturbed; None if it is right."""
    truth = asking + work
    if isinstance(value, str) or value is None:
        found = "it returned nothing (None)" if value is None else f"it returned {value}, not a number"
        return NO_NUMBER, 0, found
    found = f"it measured {value:,.6g} µs"
    if not runs:
        return NOTHING_MEASURED, 0, f"{found} without calling machine.run"
    if not looks:
        return OTHER_CLOCK, 0, f"{found} without reading machine.now"
    if _right(value, truth):
        return None
    if _right(value, work):
        return ASKING_LEFT_OUT, next((look.line for look in looks if look.busy), looks[0].line), found
    timed = [(first, then) for first, then in pairwise(looks) if then.runs]
    if not timed and looks[-1].busy:
        return NOT_WAITED_FOR, looks[-1].line, found
    if any(then.busy for _, then in timed):
        return NOT_WAITED_FOR, next(then.line for _, then in timed if then.busy), found
    if value < 0:
        return BACKWARDS, looks[-1].line, found
    crowded = [then for _, then in timed if then.runs > 1]
    many = f"{found} with {crowded[0].runs} calls and one wait" if crowded else ""
    if any(_right(value, (asking + then.runs * work) / part) for then in crowded for part in (1, then.runs)):
        return MANY_CALLS_ONE_WAIT, crowded[0].line, many
    if any(first.busy for first, _ in timed):
        return OLDER_WORK_MEASURED, next(first.line for first, _ in timed if first.busy), found
    if len(timed) > 1 and all(look.runs for look in looks[1:]):
        return STARTED_ONCE, looks[0].line, found
    if crowded:
        return MANY_CALLS_ONE_WAIT, crowded[0].line, many
    if len(timed) > 1 and _right(value, truth * len(timed)):
        return SUM_RETURNED, 0, f"{found} in {len(timed)} calls"
    return WRONG_TIME, 0, found


def _right(value: float, truth: float) -> bool:
    return math.isclose(value, truth, rel_tol=1e-9, abs_tol=1e-6)


def _return_line(source: Source) -> int:
    """Return the line on which the measurements become one number: a mean, a sum; else the last return."""
    inside = definitions.nodes(source.lines, "stopwatch")
    returns = [node for node in inside if isinstance(node, ast.Return) and node.value is not None]
    if not returns:
        return 0
    value = returns[-1].value
    for node in reversed(inside):  # the value may have a name
        is_value = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == ast.unparse(value)  # type: ignore[arg-type]
        if is_value and any(source_text.called(part) for part in ast.walk(node)):
            return int(node.lineno)  # type: ignore[attr-defined]
    return returns[-1].lineno


def _divided(source: Source, value: float, truth: float) -> tuple[int, int] | None:
    """Return the line that divides the right time once more, and by what; None if none does."""
    by = round(truth / value) if value > 0 else 0
    if by < 2 or not _right(value * by, truth):
        return None
    inside = [node for node in definitions.nodes(source.lines, "stopwatch") if isinstance(node, _WITH_OP)]
    scaled = [node for node in inside if isinstance(node.op, ast.Div | ast.Mult)]
    numbers = [ast.unparse(node.value if isinstance(node, ast.AugAssign) else node.right) for node in scaled]
    exact = [node for node, text in zip(scaled, numbers, strict=True) if _is_number(text, by)]
    divided = exact or [node for node in scaled if isinstance(node.op, ast.Div)]
    return (divided[-1].lineno, by) if divided else None


_WITH_OP = ast.BinOp | ast.AugAssign
_UNITS = (10**3, 10**6)
"""From microseconds to milliseconds, and to seconds."""


def _is_number(text: str, by: int) -> bool:
    """Tell whether a text is the number by which something was divided, or its inverse."""
    try:
        return _right(float(text), by) or _right(float(text) * by, 1)
    except ValueError:
        return False


def _warm_up(source: Source) -> ast.For | ast.While | ast.Expr | None:
    """Return the first loop of the stopwatch, or of a function that it calls, which keeps no result."""
    for node in _in_stopwatch(source):
        if isinstance(node, ast.For | ast.While):
            kept = [part for part in ast.walk(node) if _keeps(part)]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.ListComp):
            kept = []
        else:
            continue
        names = {source_text.called(part) for part in ast.walk(node)}
        if not kept and names - {"", "synchronize", "print", "range"}:
            return node
    return None


def _too_short(source: Source, loop: ast.AST | None, facts: dict[str, Any]) -> tuple[int, int] | None:
    """Return the line of a warm-up, and how many calls it leaves out; None if there is none."""
    before, first_run = facts["warm_up"]
    if loop is not None:
        return loop.lineno, before  # type: ignore[attr-defined]
    if left_out := _left_out(source):
        return left_out
    return (first_run, before) if before else None


def _left_out(source: Source) -> tuple[int, int] | None:
    """Return the line that says how many measurements are left out, and how many; None if none are."""
    inside, constants = _in_stopwatch(source), _constants(source)

    def number(node: ast.expr | None) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        return constants.get(node.id, (0, 0))[1] if isinstance(node, ast.Name) else 0

    for node in inside:
        found: ast.expr | None = None
        more = 0
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            deleted = isinstance(node.ctx, ast.Del)
            found = node.slice.upper if deleted else node.slice.lower
        elif isinstance(node, ast.If | ast.IfExp | ast.comprehension):
            tests = node.ifs if isinstance(node, ast.comprehension) else [node.test]
            for test in tests:
                if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name):
                    found, more = test.comparators[0], isinstance(test.ops[0], ast.Gt | ast.LtE)
        elif source_text.called(node) == "islice" and len(node.args) > 2:  # type: ignore[attr-defined]
            found = node.args[1]  # type: ignore[attr-defined]
        if found is not None and number(found) > 0:
            line = constants[found.id][0] if isinstance(found, ast.Name) else found.lineno
            return line, number(found) + more
    return None


def _constants(source: Source) -> dict[str, tuple[int, int]]:
    """Return the names that stand for a whole number: their line and the number."""
    found: dict[str, tuple[int, int]] = {}
    for node in source_text.all_nodes(source.lines):
        pairs: list[tuple[Any, Any]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign):
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.arguments):
            some = [*node.posonlyargs, *node.args]
            pairs = list(zip(some[len(some) - len(node.defaults) :], node.defaults, strict=True))
            pairs += list(zip(node.kwonlyargs, node.kw_defaults, strict=True))
        for target, value in pairs:
            name = getattr(target, "id", getattr(target, "arg", ""))
            if name and isinstance(value, ast.Constant) and type(value.value) is int:
                found[name] = value.lineno, value.value
    return found


def _in_stopwatch(source: Source) -> list[ast.AST]:
    """Return the nodes of the stopwatch, then those of the functions and classes that it calls."""
    inside = definitions.nodes(source.lines, "stopwatch")
    names = dict.fromkeys(source_text.called(node) for node in inside)
    others = [definitions.find(source.lines, name) for name in names if name and name != "Machine"]
    return inside + [node for other in others if other is not None for node in ast.walk(other)]


def _keeps(node: ast.AST) -> bool:
    """Tell whether a node of a loop measures, or keeps a measurement."""
    if isinstance(node, ast.AugAssign | ast.Return | ast.Yield):
        return True
    if isinstance(node, ast.Attribute) and node.attr in ("now", "free_at"):
        return True
    if isinstance(node, ast.Assign) and any(isinstance(target, ast.Subscript) for target in node.targets):
        return True
    return source_text.called(node) in ("append", "insert", "add", "extend")


def _another_device(source: Source, loop: ast.AST) -> str:
    """Return the name of a device on which a loop runs, if the stopwatch has made it; else an empty text."""
    made = {
        ast.unparse(node.targets[0])
        for node in _in_stopwatch(source)
        if isinstance(node, ast.Assign) and source_text.called(node.value) == "Machine"
    }
    runs = [
        node.func
        for node in ast.walk(loop)
        if isinstance(node, ast.Call) and source_text.called(node) == "run"
    ]
    names = [ast.unparse(part.value) for part in runs if isinstance(part, ast.Attribute)]
    return next((name for name in names if name in made or name.startswith("Machine(")), "")


def _return_in_a_loop(source: Source) -> int:
    """Return the line of a return inside the loop that measures."""
    for loop in definitions.nodes(source.lines, "stopwatch"):
        if isinstance(loop, ast.For | ast.While):
            inside = list(ast.walk(loop))
            if any(source_text.called(node) == "append" for node in inside):
                return next((node.lineno for node in inside if isinstance(node, ast.Return)), 0)
    return 0


class Device:
    """A device and a clock like the starter's, with one difficulty at a time.

    Parameters
    ----------
    asking : int
        Microseconds that a call of `run` takes.
    cold : int
        So many calls are slow at first.
    neighbour : int
        Every fourth call is slow, beginning with this one; 0: none.
    lucky : int
        Every fifth call is fast, beginning with this one; 0: none.
    busy : float
        Microseconds of older work.
    """

    def __init__(
        self, asking: int = _ASKING, cold: int = 0, neighbour: int = 0, lucky: int = 0, busy: float = 0.0
    ) -> None:
        self._now, self._free_at, self.calls = 0.0, busy, 0
        self._asking, self._cold, self._neighbour, self._lucky = asking, cold, neighbour, lucky
        self.first_run = 0
        self._fresh = 0
        self.looks: list[Look] = []

    def run(self, work: float) -> None:
        from gpulesson.exercises.watch import frames

        self.calls += 1
        self._fresh += 1
        disturbed = self._neighbour and self.calls % 4 == self._neighbour % 4
        if self.calls == 1:
            self.first_run = frames.here().line
        work *= 0.75 if self._lucky and self.calls % 5 == self._lucky % 5 else 1
        work += 30_000 * (self.calls <= self._cold) + 2_000 * bool(disturbed)
        self._now += self._asking
        self._free_at = max(self._free_at, self._now) + work

    def synchronize(self) -> None:
        self._now = max(self._now, self._free_at)

    @property
    def now(self) -> float:
        self._look(busy=self._free_at > self._now)
        return self._now

    @now.setter
    def now(self, value: float) -> None:
        self._now = value

    @property
    def free_at(self) -> float:
        self._look(busy=False)  # who looks at this one knows when it will be done
        return self._free_at

    @free_at.setter
    def free_at(self, value: float) -> None:
        self._free_at = value

    def _look(self, busy: bool) -> None:
        from gpulesson.exercises.watch import frames

        if len(self.looks) < 10_000:
            self.looks.append(Look(frames.here().line, self._fresh, busy))
        self._fresh = 0


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Find out what the stopwatch says of devices whose time is known."""
    function = calls.find(trace, space, "stopwatch", Device(), _WORK)

    def measured(device: Device, work: int = _WORK) -> Any:
        return _plain(calls.call(trace, space, "stopwatch with a device of its own", function, device, work))

    idle = []
    for asking, work in ((_ASKING, _WORK), (7, 1300)):
        device = Device(asking)
        value = measured(device, work)
        idle.append([value, asking, work, device.calls, device.looks[:200]])
        warm_up = [device.looks[0].runs if device.looks else 0, device.first_run]
    wrong = {}
    for kind, devices in _difficult().items():
        for device in devices:
            value = measured(device)
            if isinstance(value, float) and not _right(value, _ASKING + _WORK):
                first = next((look.line for look in device.looks if look.busy), 0)
                wrong[kind] = [value, _ASKING + _WORK, first]
                break
    if NOT_WARMED_UP.kind not in wrong and NEIGHBOUR_MEASURED.kind not in wrong:
        value = measured(Device(cold=12, neighbour=4))  # slow calls of both kinds add up, as in the file
        if isinstance(value, float) and not _right(value, _ASKING + _WORK):
            wrong[NOT_WARMED_UP.kind] = [value, _ASKING + _WORK, 0]
    trace.facts |= {"idle": idle, "measured": wrong, "warm_up": warm_up}


def _difficult() -> dict[str, list[Device]]:
    return {
        OLDER_WORK_MEASURED.kind: [Device(busy=5_000.0)],
        NOT_WARMED_UP.kind: [Device(cold=12)],
        NEIGHBOUR_MEASURED.kind: [Device(neighbour=first) for first in (1, 2, 3, 4)],
        LUCKIEST_MEASURED.kind: [Device(lucky=first) for first in (1, 2, 3, 4, 5)],
    }


def _plain(value: Any) -> Any:
    """Return a number as a float, None as it is, and the name of anything else."""
    if value is None or isinstance(value, bool | str):
        return value if value is None else repr(value)[:40]
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        many = f" of {len(value)}" if hasattr(value, "__len__") else ""
        return f"a {type(value).__name__}{many}"


EXERCISE = Exercise(
    name="08_stopwatch",
    lesson="Was it faster?",
    title="Fix a stopwatch",
    demand="the stopwatch measures the time of one call",
    difficulty="medium",
    hint_for={
        "older-work-measured": 2,
        "not-warmed-up": 3,
        "warmed-another": 3,
        "neighbour-measured": 3,
        "luckiest-measured": 3,
        "many-calls-one-wait": 3,
        "sum-returned": 3,
        "divided-again": 3,
        "other-unit": 3,
    },
    hints=(
        "When run() returns, what has the device done?",
        "The device may be busy when you begin: wait before you look at the clock, and after.",
        "Fifteen calls to warm up, then twenty measurements, then statistics.median.",
    ),
    rules=(called.calls, stopwatch),
    probe=probe,
    function="stopwatch",
)
