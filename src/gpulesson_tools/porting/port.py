"""The rounds of a port: run the script, fix what the error says, run it again; then compare with the CPU."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from gpulesson_tools.porting import reasons
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
DEEPER, DEEPER_TRIES, BEGUN = 2, 3, 2
"""A change that alone brings a script less far may be followed by so many others, each one of so many tried;
so many such beginnings are followed outside of modules, and as many in them."""
SEARCH = 40
"""So many runs for each change at most."""
LEFT_OUT = 4
"""At most this number of statements is left out because they fail where loops end early."""
STEPS = 3
"""So many losses are compared at least."""
ROUNDING = 10
"""Losses may differ by so many times what they differ by if the last digit of each product changes."""


@dataclass
class Port:
    """
    What came of a port.

    Attributes
    ----------
    files : Files
        Before and after.
    changes : list of Change
        With the lines that they have in the files afterwards.
    cpu, gpu : Record
        The runs that are compared.
    stuck : str
        What could not be fixed; "" if nothing stops the script any more.
    repeats : bool
        The script has the same losses whenever it runs on the CPU.
    cpu_whole, gpu_whole : Record or None
        Runs with whole loops, where short ones leave out some of the lines that these reach.
    rounded, rounded_whole : Record or None
        Runs on the CPU with products that are rounded in another way, if losses differ.
    """

    files: Files
    cpu: Record
    gpu: Record
    changes: list[Change] = field(default_factory=list)
    stuck: str = ""
    repeats: bool = True
    cpu_whole: Record | None = None
    gpu_whole: Record | None = None
    rounded: Record | None = None
    rounded_whole: Record | None = None

    @property
    def steps(self) -> int:
        """How many losses are compared."""
        return min(len(self.cpu.losses), len(self.gpu.losses))

    @property
    def differing(self) -> list[int]:
        """The numbers of the steps whose losses are not equal to the bit, from 1."""
        return _differing(self.cpu, self.gpu) or _differing(self.cpu_whole, self.gpu_whole)

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
        whole = self.cpu_whole, self.gpu_whole, self.rounded_whole
        return all(map(_by_rounding, *zip((self.cpu, self.gpu, self.rounded), whole, strict=True)))

    @property
    def left(self) -> list[Spot]:
        """Where work is left on the CPU."""
        spots: dict[tuple[str, int], Spot] = {}
        for each in filter(None, (self.gpu, self.gpu_whole)):
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
    files = Files(runs.texts)
    tell("the script as it is, on the CPU")
    cpu = full = runs.run({}, gpu=False)
    in_full, leaves_out = not cpu.stopped, False
    runs.short = bool(cpu.losses)
    if cpu.losses and cpu.stopped:
        short = runs.run({}, gpu=False)
        while short.failure and len(runs.without) < LEFT_OUT and (text := unlike(short.failure, runs.texts)):
            runs.without.append(text)
            short = runs.run({}, gpu=False)
        runs.short = len(short.losses) >= STEPS and short.failure is None  # else it needs them in full
        leaves_out = any(full.lines[file] - short.lines.get(file, set()) for file in full.lines)
        cpu = short if runs.short else cpu
    aware = any(word in text for text in runs.texts.values() for word in (b"cuda", b"accelerator", b"gpu"))
    gpu = runs.run({}, gpu=True) if aware else cpu
    if aware and gpu.losses and not gpu.failure and not _on_the_cpu(gpu):
        raise NoTrial(_on_the_gpu_already(cpu))
    _check(cpu)
    option = OPTION.search(runs.texts[runs.name].decode(errors="replace"))
    if option:
        raise NoTrial(
            f"it has an option {option[1]}, so it can choose its device already. Run it with that, here on "
            f"the practice GPU: python -m gpulesson practice {runs.name} …"
        )
    work = Port(files, cpu, gpu)
    rounds = _Rounds(runs, work, tell)
    if chosen := reasons.hard_coded(files, runs.name):
        rounds.take(chosen)
        work.gpu = rounds.run()
    elif work.gpu.failure is None:
        for change in _models(files, work.gpu):
            tell(f"{change.file}: {change.what}")
            rounds.put(change)
        rounds.choose_devices()
        work.gpu = rounds.run()
    rounds.go_on()
    if in_full and runs.short:
        runs.short, work.stuck = False, ""
        work.gpu = rounds.run()
        rounds.go_on()
    elif leaves_out and runs.short and not work.stuck:
        work.cpu_whole = full
        work.gpu = rounds.run()
        rounds.go_on()
    if not work.stuck and not work.proved:
        tell("the script as it is, once more: are its losses always the same?")
        work.repeats = runs.run({}, gpu=False).losses[: work.steps] == cpu.losses[: work.steps]
        if work.differing and work.repeats:
            tell("the script as it is, rounded in another way: how much do its losses depend on that?")
            work.rounded = runs.run({}, gpu=False, rounds_up=True)
            if work.cpu_whole is not None:
                runs.short = False
                work.rounded_whole = runs.run({}, gpu=False, rounds_up=True)
                runs.short = True
    if work.proved:
        rounds.tidy()
        rounds.map_loads()
    return work


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
        raise NoTrial("it did not end, nor come to a training step, within the time (--limit gives it more)")
    if cpu.stopped.startswith(DIED):
        said = "\n".join(cpu.errors.splitlines()[-4:])
        raise NoTrial(f"it cannot be told what it did, on the CPU already: {cpu.stopped}\n{said}".strip())
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
            f"its loss is no number any more in step {wrong[0]}, on the CPU already. Fix that first."
        )


def _models(files: Files, record: Record) -> Iterator[Change]:
    """Yield the moves of what is trained on the CPU, the last line first: those above stay where they are."""
    seen = set()
    for thing, frames in sorted(
        _on_the_cpu(record), key=lambda each: [-spot.line for spot in each[0].made[-1:]]
    ):
        if thing.made and thing.made in seen:  # several are made by one line
            continue
        seen.add(thing.made)
        change = reasons.trained(files, thing, frames)
        if change is not None and change.text != files[change.file].text:
            yield change


def _on_the_cpu(record: Record) -> list[tuple[Thing, tuple[Spot, ...]]]:
    return [each for each in record.used if each[0].device == "cpu"]


_WHOLE = 1 << 40
"""A run that gets so many calls more has come further than any whose whole loops fail."""
_State = tuple[dict[str, bytes], list[Change], Record, Record | None]
"""The files, the changes in them, and what came of the run, and of the one with whole loops."""


class _Rounds:
    """Changes a script and runs it, until nothing stops it."""

    def __init__(self, runs: Runs, work: Port, tell: Callable[[str], None]) -> None:
        self._runs, self._work, self._tell, self._files = runs, work, tell, work.files
        self._left = 0  # runs of the search

    def go_on(self) -> None:
        """Change the script until nothing stops it any more, or nothing brings it further."""
        whole: _State | None = None  # but for what the CPU computes by itself
        for _ in range(ROUNDS):
            if self._candidates(self._work.gpu) is None:
                return
            if self._work.gpu.failure is None and self._work.gpu.on_cpu:
                whole = self._state()
            self._left = SEARCH
            if not self._bring_further(record := self._work.gpu):
                if record.failure is not None or not record.losses or not self._work.changes:
                    self._work.stuck = _stuck(record)
                if whole is not None:  # what is left on the CPU is said
                    self._work.stuck = ""
                    self._set_back(whole)
                return
        self._work.stuck = f"after {ROUNDS} changes it is still not on the GPU"

    def run(self) -> Record:
        """Run the script as it is by now; before, with whole loops, if short ones leave out some lines."""
        whole = None
        if self._work.cpu_whole is not None:
            self._runs.short = False
            self._work.gpu_whole = whole = self._runs.run(self._files.texts, gpu=True)
            self._runs.short = True
            if whole.failure is not None:
                return whole
        record = self._runs.run(self._files.texts, gpu=True)
        if whole is not None:
            record.calls += _WHOLE  # those of `whole` depend on when its time was over
            for file, lines in whole.lines.items():
                record.lines.setdefault(file, set()).update(lines)
            record.idle = [spot for spot in record.idle if spot in whole.idle]
            record.used += [each for each in _on_the_cpu(whole) if each not in record.used]
            record.loads += [each for each in whole.loads if each not in record.loads]
            record.draws += whole.draws
        return record

    def _bring_further(self, goal: Record, tries: int = TRIES, deeper: int = DEEPER) -> bool:
        """Make the first change, or the first few, with which the script comes further than `goal` did.

        Of tensors that meet, one that moves alone may bring it less far: then the others move as well. In a
        module's own methods tensors move only if that does not help.
        """
        before = self._state()
        begun: list[tuple[_State, Change]] = []
        tried, outside = set[tuple[str, bytes]](), True
        for change in itertools.islice(self._candidates(self._work.gpu) or (), tries):
            if change.inside and outside:
                outside = False
                if self._go_on_from(begun, goal, deeper):
                    return True
            if change.text == self._files[change.file].text or (change.file, change.text) in tried:
                continue
            if not self._left:
                return False
            self._left -= 1
            tried.add((change.file, change.text))
            self.take(change)
            self._work.gpu = self.run()
            if _further(goal, self._work.gpu):
                self._tell(f"{change.file}: {change.what}")
                return True
            if deeper and len(begun) < BEGUN and _meets_another(before[2], self._work.gpu):
                begun.append((self._state(), change))
            self._set_back(before)
        return self._go_on_from(begun, goal, deeper)

    def _go_on_from(self, begun: list[tuple[_State, Change]], goal: Record, deeper: int) -> bool:
        """Try to go on from these states, and forget them."""
        before = self._state()
        for state, change in begun:
            self._set_back(state)
            if self._bring_further(goal, DEEPER_TRIES, deeper - 1):
                self._tell(f"{change.file}: {change.what}")
                return True
        begun.clear()
        self._set_back(before)
        return False

    def _state(self) -> _State:
        work = self._work
        return dict(self._files.texts), list(work.changes), work.gpu, work.gpu_whole

    def _set_back(self, state: _State) -> None:
        texts, changes, self._work.gpu, self._work.gpu_whole = state
        self._files.texts, self._work.changes = dict(texts), list(changes)

    def _candidates(self, record: Record) -> Iterator[Change] | None:
        """Return the changes that may come next, the best first; None if none is needed."""
        filled = itertools.chain.from_iterable(reasons.filled(self._files, each) for each in record.filled)
        if record.failure is not None:
            return itertools.chain(filled, reasons.fix(self._files, record.failure))
        if _on_the_cpu(record):
            return _models(self._files, record)
        if record.filled and (change := next(filled, None)):
            return itertools.chain([change], filled)
        if record.loads:
            return filter(None, (reasons.loading(self._files, spot) for spot in record.loads))
        if record.on_cpu:
            return (change for seen in record.on_cpu for change in reasons.to_device(self._files, seen))
        return None if record.losses else iter(())

    def take(self, change: Change) -> None:
        """Put a change into its file, and the line that chooses the device above it if that is missing."""
        self.put(change)
        self.choose_devices()

    def choose_devices(self) -> None:
        """In each file that names the device by now, put the line that chooses it, if that is missing."""
        for file, name in self._files.devices.items():
            source = self._files[file]
            if source.uses(name) and not source.binds(name):
                text = source.with_device_line(name)
                self.put(Change(file, text, "the device", "is chosen once", 1))

    def tidy(self) -> None:
        """Take out the moves that had nothing to do, if no code that did not run may need them."""
        before = self._state()
        silent = "\n".join(
            "\n".join(self._files[file].text.decode(errors="replace").splitlines()[first - 1 : last])
            for file, ran in before[2].lines.items()
            for first, last in not_reached(self._files[file].text, ran)
        )
        lines = set()
        for spot in sorted(before[2].idle, key=lambda spot: (spot.line, spot.column), reverse=True):
            called = spot.function == "forward" or re.search(rf"\b{re.escape(spot.function)}\b", silent)
            change = None if silent and called else reasons.without(self._files, spot)
            if change is not None:
                self.put(change)
                lines |= {(spot.file, line) for line in range(spot.line, spot.end_line + 1)}
        if not lines:
            return
        kept = []
        for file, text in dict(self._files.texts).items():
            written = _written(_codes(self._files.originals[file], text))
            own = [each for each in self._work.changes if each.file == file and each.verb]
            own = [each for each in own if (file, each.line) not in lines or each.line - 1 in written]
            if all(each.subject == "the device" for each in own):  # nothing uses it any more
                del self._files.texts[file]
            else:
                kept += own
        self._work.changes = kept
        self._work.gpu = self.run()
        if not self._work.proved or self._work.gpu.failure or _on_the_cpu(self._work.gpu):
            self._set_back(before)

    def map_loads(self) -> None:
        """Let weights go to the device that are loaded in lines which did not run."""
        before = len(self._work.changes)
        for file, ran in self._work.gpu.lines.items():
            while change := next(
                (each for _, each in reasons.silent_loads(self._files, file, ran) if each), None
            ):
                self.put(change)  # it adds no line
        if len(self._work.changes) > before:
            self.choose_devices()
            self._work.gpu = self.run()

    def put(self, change: Change) -> None:
        """Put a change into its file, and follow where the others stand by then."""
        codes = _codes(self._files[change.file].text, change.text)
        self._files.texts[change.file] = change.text
        for number, each in enumerate(self._work.changes):
            if each.file == change.file:
                self._work.changes[number] = each._replace(line=_followed(each.line, codes))
        lines = change.text.splitlines()
        written = [each for each in _written(codes) if lines[each].strip()]
        written = [each for each in written if not lines[each].startswith(b"import ")]
        self._work.changes.append(change._replace(line=(written or [0])[0] + 1))


def _differing(cpu: Record | None, gpu: Record | None) -> list[int]:
    if cpu is None or gpu is None:
        return []
    pairs = zip(cpu.losses, gpu.losses, strict=False)
    return [number for number, (a, b) in enumerate(pairs, 1) if a != b]


def _by_rounding(cpu: Record | None, gpu: Record | None, rounded: Record | None) -> bool:
    if not _differing(cpu, gpu):
        return True
    if cpu is None or gpu is None or rounded is None:
        return False
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
