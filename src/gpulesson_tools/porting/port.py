"""The rounds of a port: run the script, fix what the error says, run it again; then compare with the CPU."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from gpulesson_tools.porting import reasons
from gpulesson_tools.porting.child import WHOLE, Loops
from gpulesson_tools.porting.facts import (
    DEVICE_LINE,
    DIED,
    OPTION,
    OVER,
    Failure,
    Record,
    Spot,
    Thing,
    explained,
    where,
)
from gpulesson_tools.porting.instrument import not_reached, unlike
from gpulesson_tools.porting.reasons import Change, Files
from gpulesson_tools.porting.run import NoTrial, Runs

ROUNDS, TRIES = 40, 6
DEEPER, DEEPER_TRIES, STARTS = 2, 3, 2
"""A change that alone brings a script less far may be followed by `DEEPER` others, each chosen from
`DEEPER_TRIES`; `STARTS` such changes are followed outside of modules, and as many in them."""
SEARCH = 40
"""Runs for each change at most."""
LEFT_OUT = 4
"""At most this number of statements is left out because they fail where loops end early."""
STEPS = 3
"""Losses that are compared at least."""
ROUNDING = 10
"""Losses may differ by this many times what they differ by if the last digit of each product changes."""


@dataclass(frozen=True)
class Pair:
    """
    Runs of the same files on the same device.

    Attributes
    ----------
    run : Record
    whole : Record or None
        One with whole loops, where `run` ends them early and so leaves out lines that this one reaches.
    """

    run: Record
    whole: Record | None = None


@dataclass(frozen=True)
class State:
    """
    How far a port has come.

    Attributes
    ----------
    files : Files
        Before and after.
    gpu : Pair
        Runs of these files on the practice GPU.
    changes : tuple of Change
        With the lines that they have in the files afterwards.
    """

    files: Files
    gpu: Pair
    changes: tuple[Change, ...] = ()

    def put(self, change: Change) -> State:
        """Return the state after a change, in whose file the others may stand elsewhere."""
        codes = _codes(self.files[change.file].text, change.text)
        moved = (
            each._replace(line=_followed(each.line, codes)) if each.file == change.file else each
            for each in self.changes
        )
        lines = change.text.splitlines()
        written = [each for each in _written(codes) if lines[each].strip()]
        written = [each for each in written if not lines[each].startswith(b"import ")]
        last = change._replace(line=(written or [0])[0] + 1)
        files = self.files.changed(change.file, change.text)
        return replace(self, files=files, changes=(*moved, last))

    def choose_devices(self) -> State:
        """In each file that names the device by now, put the line that chooses it, if that is missing."""
        state = self
        for file, name in self.files.devices.items():
            source = state.files[file]
            if source.uses(name) and not source.binds(name):
                text = source.with_device_line(name)
                state = state.put(Change(file, text, "the device", "is chosen once", 1))
        return state

    def take(self, change: Change) -> State:
        """Put a change into its file, and the line that chooses the device above it if that is missing."""
        return self.put(change).choose_devices()


@dataclass(frozen=True)
class Port:
    """
    What came of a port.

    Attributes
    ----------
    state : State
        The files, the changes, and their runs on the practice GPU.
    before : Pair
        Runs of the files as they were, on the CPU: with these the others are compared.
    stuck : str
        What could not be fixed; "" if nothing stops the script any more.
    repeats : bool
        The script has the same losses whenever it runs on the CPU.
    rounded : Pair or None
        As `before`, with products that are rounded in another way, if losses differ.
    """

    state: State
    before: Pair
    stuck: str = ""
    repeats: bool = True
    rounded: Pair | None = None

    @property
    def files(self) -> Files:
        """Before and after."""
        return self.state.files

    @property
    def changes(self) -> tuple[Change, ...]:
        """With the lines that they have in the files afterwards."""
        return self.state.changes

    @property
    def cpu(self) -> Record:
        """The run on the CPU that is compared."""
        return self.before.run

    @property
    def gpu(self) -> Record:
        """The run on the practice GPU that is compared."""
        return self.state.gpu.run

    @property
    def wholes(self) -> tuple[Record, Record] | None:
        """Runs with whole loops on both, if short ones leave out lines."""
        cpu, gpu = self.before.whole, self.state.gpu.whole
        return None if cpu is None or gpu is None else (cpu, gpu)

    @property
    def steps(self) -> int:
        """How many losses are compared."""
        return min(len(self.cpu.losses), len(self.gpu.losses))

    @property
    def differing(self) -> list[int]:
        """The numbers of the steps whose losses are not equal to the bit, from 1."""
        return _differing(self.cpu, self.gpu) or (_differing(*self.wholes) if self.wholes else [])

    @property
    def as_many(self) -> bool:
        """Whether both runs ended in the same way, after as many steps, unless their time was over."""
        if OVER in (self.cpu.stopped, self.gpu.stopped):
            return True
        return (self.cpu.stopped, len(self.cpu.losses)) == (self.gpu.stopped, len(self.gpu.losses))

    @property
    def proved(self) -> bool:
        """Whether it learns the same."""
        return not self.stuck and self.steps >= STEPS and self.as_many and self.by_rounding

    @property
    def by_rounding(self) -> bool:
        """Whether no loss differs, or by no more than rounding explains."""
        rounded = self.rounded or Pair(Record())
        return _by_rounding(self.cpu, self.gpu, rounded.run) and (
            self.wholes is None or _by_rounding(*self.wholes, rounded.whole or Record())
        )

    @property
    def left(self) -> list[Spot]:
        """Where work is left on the CPU."""
        spots: dict[tuple[str, int], Spot] = {}
        for each in filter(None, (self.gpu, self.state.gpu.whole)):
            found = [seen.frames[-1] for seen in each.on_cpu]
            found += [frames[-1] for _, frames in _on_the_cpu(each) if frames]
            spots |= {(spot.file, spot.line): spot for spot in found}
        return [spots[place] for place in sorted(spots)]


def port(runs: Runs, tell: Callable[[str], None]) -> Port:
    """
    Take a script to a GPU.

    Parameters
    ----------
    runs : Runs
    tell : callable
        Gets a line on what is going on.

    Raises
    ------
    NoTrial
        If there is nothing to port, or no way to try it.
    """
    tell("the script as it is, on the CPU")
    whole = runs.run({}, gpu=False)
    before, loops = _shortened(runs, whole)
    cpu = before.run
    aware = any(word in text for text in runs.texts.values() for word in (b"cuda", b"accelerator", b"gpu"))
    gpu = runs.run({}, gpu=True, loops=loops) if aware else cpu
    if aware and gpu.losses and not gpu.failure and not _on_the_cpu(gpu):
        raise NoTrial(_on_the_gpu_already(cpu))
    _check(cpu)
    option = OPTION.search(runs.texts[runs.name].decode(errors="replace"))
    if option:
        raise NoTrial(
            f"it has an option {option[1]}, so it can choose its device already. Run it with that, here on "
            f"the practice GPU: python -m gpulesson practice {runs.name} …"
        )
    rounds = _Rounds(runs, loops, tell)
    state, stuck = rounds.go_on(rounds.begin(State(Files(runs.texts), Pair(gpu))))
    if loops.short and not whole.stopped:  # it comes to its end: so it is compared with whole loops
        loops = WHOLE
        rounds = _Rounds(runs, loops, tell)
        state, stuck = rounds.go_on(rounds.run(state))
    elif before.whole is not None and not stuck:
        rounds = _Rounds(runs, loops, tell, both=True)
        state, stuck = rounds.go_on(rounds.run(state))
    found = _compared(runs, Port(state, before, stuck), loops, tell)
    return replace(found, state=rounds.finish(found)) if found.proved else found


def _shortened(runs: Runs, whole: Record) -> tuple[Pair, Loops]:
    """Return what a script is compared with, and how its loops run: they end early if it can train so."""
    if not whole.losses or not whole.stopped:
        return Pair(whole), Loops(short=bool(whole.losses))
    loops = Loops(short=True)
    short = runs.run({}, gpu=False, loops=loops)
    while short.failure and len(loops.without) < LEFT_OUT and (text := unlike(short.failure, runs.texts)):
        loops = replace(loops, without=(*loops.without, text))
        short = runs.run({}, gpu=False, loops=loops)
    if len(short.losses) < STEPS or short.failure is not None:  # it needs them in full
        return Pair(whole), WHOLE
    leaves_out = any(whole.lines[file] - short.lines.get(file, set()) for file in whole.lines)
    return Pair(short, whole if leaves_out else None), loops


def _compared(runs: Runs, found: Port, loops: Loops, tell: Callable[[str], None]) -> Port:
    """If losses differ, say whether the script repeats them, and how much they depend on rounding."""
    if found.stuck or found.proved:
        return found
    tell("the script as it is, once more: are its losses always the same?")
    again = runs.run({}, gpu=False, loops=loops).losses[: found.steps]
    found = replace(found, repeats=again == found.cpu.losses[: found.steps])
    if not (found.differing and found.repeats):
        return found
    tell("the script as it is, rounded in another way: how much do its losses depend on that?")
    rounded = Pair(runs.run({}, gpu=False, loops=loops, rounds_up=True))
    if found.wholes is not None:
        rounded = replace(rounded, whole=runs.run({}, gpu=False, rounds_up=True))
    return replace(found, rounded=rounded)


def _on_the_gpu_already(cpu: Record) -> str:
    if cpu.failure is None:
        return "it trains on the GPU already, where there is one. Nothing has to be done."
    return (
        f"it trains on the GPU already, and cannot run without one: {where(cpu.failure)} asks for it by name."
        f" Nothing has to be done. With this line it would run anywhere:\n    {DEVICE_LINE}"
    )


def _check(cpu: Record) -> None:
    """Raise if a run on the CPU is nothing to compare with."""
    if cpu.failure is not None:
        raise NoTrial(explained(cpu.failure, "on the CPU already"))
    if cpu.stopped == "endless":
        raise NoTrial(
            "it neither finished nor reached a training step within the time limit: raise it with --limit"
        )
    if cpu.stopped.startswith(DIED):
        said = "\n".join(cpu.errors.splitlines()[-4:])
        raise NoTrial(
            f"its process ended before it could report, on the CPU already: {cpu.stopped}\n{said}".strip()
        )
    if not cpu.losses:
        said = "\n".join([cpu.stopped, *cpu.errors.splitlines()[-4:]])
        by_hand = (
            "If it computes its gradients itself, move data and weights as lesson 2 does, and try it: "
            "python -m gpulesson practice …"
        )
        raise NoTrial(
            f"no loss went backward(), so there is nothing to compare. {said if cpu.stopped else by_hand}"
        )
    if cpu.made_text:
        raise NoTrial("its training is in text that is run by exec(), which cannot be changed here")
    if len(cpu.losses) < STEPS:
        raise NoTrial(
            f"it took {len(cpu.losses)} training steps, too few to compare: {STEPS} are needed at least"
        )
    wrong = [number for number, loss in enumerate(cpu.losses, 1) if not isfinite(loss)]
    if wrong:
        raise NoTrial(
            f"its loss is not a number any more in step {wrong[0]}, on the CPU already. Fix that first."
        )


def _trained(record: Record) -> Iterator[tuple[Thing, tuple[Spot, ...]]]:
    """Yield what is trained on the CPU, the last line first: those above stay where they are."""
    seen = set()
    for thing, frames in sorted(
        _on_the_cpu(record), key=lambda each: [-spot.line for spot in each[0].made[-1:]]
    ):
        if not thing.made or thing.made not in seen:  # several are made by one line
            seen.add(thing.made)
            yield thing, frames


def _moved(files: Files, thing: Thing, frames: tuple[Spot, ...]) -> Change | None:
    """Return the change that moves what is trained, if it is not in the files yet."""
    change = reasons.trained(files, thing, frames)
    return None if change is None or change.text == files[change.file].text else change


def _on_the_cpu(record: Record) -> list[tuple[Thing, tuple[Spot, ...]]]:
    return [each for each in record.used if each[0].device == "cpu"]


_WHOLE = 1 << 40
"""Added to the calls of a run: it has come further than any whose whole loops fail."""


class _Rounds:
    """Changes a script and runs it, until nothing stops it."""

    def __init__(self, runs: Runs, loops: Loops, tell: Callable[[str], None], both: bool = False) -> None:
        self._runs, self._loops, self._tell, self._both = runs, loops, tell, both
        self._left = 0  # runs of the search

    def begin(self, state: State) -> State:
        """Make the first changes, without which there is no error yet."""
        gpu = state.gpu.run
        if chosen := reasons.hard_coded(state.files, self._runs.name):
            return self.run(state.take(chosen))
        if gpu.failure is not None:
            return state
        for thing, frames in _trained(gpu):
            if change := _moved(state.files, thing, frames):
                self._tell(f"{change.file}: {change.what}")
                state = state.put(change)
        return self.run(state.choose_devices())

    def go_on(self, state: State) -> tuple[State, str]:
        """Change the script until nothing stops it, or nothing brings it further; say what stops it then."""
        complete: State | None = None  # but for what the CPU computes by itself
        for _ in range(ROUNDS):
            record = state.gpu.run
            if self._candidates(state) is None:
                return state, ""
            if record.failure is None and record.on_cpu:
                complete = state
            self._left = SEARCH
            further = self._bring_further(state, record)
            if further is None:
                if complete is not None:  # what is left on the CPU is reported
                    return complete, ""
                failed = record.failure is not None or not record.losses or not state.changes
                return state, _stuck(record) if failed else ""
            state = further
        return state, f"after {ROUNDS} changes it is still not on the GPU"

    def run(self, state: State) -> State:
        """Return the state with runs of its files; first with whole loops, if both are wanted."""
        texts = state.files.texts
        whole = self._runs.run(texts, gpu=True) if self._both else None
        if whole is not None and whole.failure is not None:
            return replace(state, gpu=Pair(whole, whole))
        record = self._runs.run(texts, gpu=True, loops=self._loops)
        return replace(state, gpu=Pair(record if whole is None else _joined(record, whole), whole))

    def _bring_further(
        self, state: State, goal: Record, tries: int = TRIES, deeper: int = DEEPER
    ) -> State | None:
        """Return the state after the first change, or first few, with which the script gets further.

        Of tensors that meet, one that moves alone may bring it less far: then the others move as well. In a
        module's own methods tensors move only if that does not help.
        """
        starts: list[tuple[State, Change]] = []
        tried, outside = set[tuple[str, bytes]](), True
        for change in itertools.islice(self._candidates(state) or (), tries):
            if change.inside and outside:
                outside = False
                if further := self._go_on_from(starts, goal, deeper):
                    return further
            if change.text == state.files[change.file].text or (change.file, change.text) in tried:
                continue
            if not self._left:
                return None
            self._left -= 1
            tried.add((change.file, change.text))
            after = self.run(state.take(change))
            if _further(goal, after.gpu.run):
                self._tell(f"{change.file}: {change.what}")
                return after
            if deeper and len(starts) < STARTS and _meets_another(state.gpu.run, after.gpu.run):
                starts.append((after, change))
        return self._go_on_from(starts, goal, deeper)

    def _go_on_from(self, starts: list[tuple[State, Change]], goal: Record, deeper: int) -> State | None:
        """Try to get further from these states, and forget them."""
        for state, change in starts:
            if further := self._bring_further(state, goal, DEEPER_TRIES, deeper - 1):
                self._tell(f"{change.file}: {change.what}")
                return further
        starts.clear()
        return None

    def _candidates(self, state: State) -> Iterator[Change] | None:
        """Return the changes that may come next, the best first; None if none is needed."""
        files, record = state.files, state.gpu.run
        filled = itertools.chain.from_iterable(reasons.filled(files, each) for each in record.filled)
        if record.failure is not None:
            return itertools.chain(filled, reasons.fix(files, record.failure))
        if _on_the_cpu(record):
            return filter(None, (_moved(files, *each) for each in _trained(record)))
        if record.filled and (change := next(filled, None)):
            return itertools.chain([change], filled)
        if record.loads:
            return filter(None, (reasons.loading(files, spot) for spot in record.loads))
        if record.on_cpu:
            return (change for seen in record.on_cpu for change in reasons.to_device(files, seen))
        return None if record.losses else iter(())

    def finish(self, found: Port) -> State:
        """Return the state without moves that had nothing to do, and with loads that did not run mapped."""
        tidied = replace(found, state=self._tidied(found.state))
        failed = tidied.gpu.failure or _on_the_cpu(tidied.gpu) or not tidied.proved
        return self._loads_mapped(found.state if failed else tidied.state)

    def _tidied(self, state: State) -> State:
        """Take out the moves that had nothing to do, if no code that did not run may need them."""
        record, files = state.gpu.run, state.files
        silent = "\n".join(
            "\n".join(files[file].text.decode(errors="replace").splitlines()[first - 1 : last])
            for file, ran in record.lines.items()
            for first, last in not_reached(files[file].text, ran)
        )
        before, lines = state, set()
        for spot in sorted(record.idle, key=lambda spot: (spot.line, spot.column), reverse=True):
            called = spot.function == "forward" or re.search(rf"\b{re.escape(spot.function)}\b", silent)
            change = None if silent and called else reasons.without(state.files, spot)
            if change is not None:
                state = state.put(change)
                lines |= {(spot.file, line) for line in range(spot.line, spot.end_line + 1)}
        if not lines:
            return before
        kept: list[Change] = []
        for file, text in state.files.texts.items():
            written = _written(_codes(files.originals[file], text))
            own = [each for each in state.changes if each.file == file and each.verb]
            own = [each for each in own if (file, each.line) not in lines or each.line - 1 in written]
            if all(each.subject == "the device" for each in own):  # nothing uses it any more
                state = replace(state, files=state.files.changed(file, None))
            else:
                kept += own
        return self.run(replace(state, changes=tuple(kept)))

    def _loads_mapped(self, state: State) -> State:
        """Let weights go to the device that are loaded in lines which did not run."""
        before = state
        for file, ran in state.gpu.run.lines.items():
            while change := next(
                (each for _, each in reasons.silent_loads(state.files, file, ran) if each), None
            ):
                state = state.put(change)  # it adds no line
        return state if state is before else self.run(state.choose_devices())


def _joined(short: Record, whole: Record) -> Record:
    """Return a run with loops that end early, and what the one with whole loops has seen besides."""
    lines = {
        file: short.lines.get(file, set()) | whole.lines.get(file, set())
        for file in {**short.lines, **whole.lines}
    }
    return replace(
        short,
        calls=short.calls + _WHOLE,  # those of `whole` depend on when its time was over
        lines=lines,
        idle=[spot for spot in short.idle if spot in whole.idle],
        used=short.used + [each for each in _on_the_cpu(whole) if each not in short.used],
        loads=short.loads + [each for each in whole.loads if each not in short.loads],
        draws=short.draws + whole.draws,
    )


def _differing(cpu: Record, gpu: Record) -> list[int]:
    pairs = zip(cpu.losses, gpu.losses, strict=False)
    return [number for number, (a, b) in enumerate(pairs, 1) if a != b]


def _by_rounding(cpu: Record, gpu: Record, rounded: Record) -> bool:
    if not _differing(cpu, gpu):
        return True
    known = 0.0
    for one, other, close in zip(cpu.losses, gpu.losses, rounded.losses, strict=False):
        known = max(known, abs(one - close))
        if not abs(one - other) <= ROUNDING * known:
            return False
    return len(rounded.losses) >= min(len(cpu.losses), len(gpu.losses))


def _further(old: Record, new: Record) -> bool:
    """Return whether a change has brought the script further."""
    if new.failure is None:
        left = [
            (len(_on_the_cpu(each)), len(each.filled), len(each.loads), len(each.on_cpu))
            for each in (old, new)
        ]
        return bool(new.losses) and (old.failure is not None or left[1] < left[0])
    if new.failure.kind in ("NameError", "UnboundLocalError", "AttributeError"):
        return False
    if "expected TensorOptions" in new.failure.message:  # torch.LongTensor(x) wants it on the CPU
        return False
    if old.failure is None or new.calls > old.calls:
        return True
    devices = [sorted(thing.device for thing in each.things) for each in (old.failure, new.failure)]
    return new.calls == old.calls and devices[0] != devices[1]


def _meets_another(old: Record, new: Record) -> bool:
    """Return whether something that has moved now meets another tensor, which is on the CPU."""
    if new.failure is None or _where_it_stops(old) == _where_it_stops(new):
        return False
    return len({thing.device == "cpu" for thing in new.failure.things}) == 2


def _where_it_stops(record: Record) -> tuple[Any, ...]:
    failure = record.failure
    return record.calls, failure and (failure.message, sorted(thing.device for thing in failure.things))


def _stuck(record: Record) -> str:
    if record.failure is not None:
        place = f"{record.failure.frames[-1]}: " if record.failure.frames else ""
        return f"{place}{record.failure.kind}: {record.failure.message}{_met(record.failure)}"
    if record.errors:
        return f"{record.stopped}: {record.errors.splitlines()[-1]}"
    return record.stopped or "what is trained stays on the CPU"


def _met(failure: Failure) -> str:
    """Say which tensors met there, on which devices; "" if one of them has no name that a reader knows."""
    sides: dict[str, list[str]] = {}
    for thing in failure.things:
        names = sorted(thing.names, key=lambda each: (each.held == "", each.frame))  # the line's own are last
        sides.setdefault(thing.device, []).append(f"{names[-1].name}{names[-1].path}" if names else "")
    if len(sides) < 2 or not all(all(each) for each in sides.values()):
        return ""
    return "".join(f"\n  On {device}: {', '.join(dict.fromkeys(names))}" for device, names in sides.items())


def _codes(before: bytes, after: bytes) -> Sequence[tuple[str, int, int, int, int]]:
    return difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), False).get_opcodes()


def _written(codes: Sequence[tuple[str, int, int, int, int]]) -> list[int]:
    """Return the lines, from 0, that a change has put there."""
    return [line for kind, _, _, first, last in codes if kind != "equal" for line in range(first, last)]


def _followed(line: int, codes: Sequence[tuple[str, int, int, int, int]]) -> int:
    """Return the number that a line has after a change."""
    for kind, first, last, new_first, _ in codes:
        if first <= line - 1 < last:
            return new_first + 1 + (line - 1 - first if kind == "equal" else 0)
    return line
