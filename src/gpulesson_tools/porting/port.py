"""The rounds of a port: run the script, fix what the error says, run it again; then compare with the CPU."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from gpulesson_tools.porting import reasons
from gpulesson_tools.porting.child import WHOLE, Loops
from gpulesson_tools.porting.facts import (
    DEVICE_LINE,
    DIED,
    OPTION,
    OVER,
    Failure,
    Run,
    Spot,
    Thing,
    explained,
    where,
)
from gpulesson_tools.porting.instrument import not_reached, unlike
from gpulesson_tools.porting.reasons import CHOSEN, Change, Files
from gpulesson_tools.porting.run import NoTrial, Runs

ROUNDS, TRIES = 40, 6
DEPTH, DEEPER_TRIES, UNFINISHED = 2, 3, 2
"""A change that alone brings a script less far may be followed by `DEPTH` others, each chosen from
`DEEPER_TRIES`; `UNFINISHED` such changes are followed outside of modules, and as many in them."""
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
    """Runs of the same files on the same device."""

    run: Run
    whole: Run | None = None  # with whole loops, where `run` ends them early and leaves out lines of this one

    @property
    def reach(self) -> tuple[bool, int]:
        """How far the script came: whether its whole loops ran, and then the calls of PyTorch."""
        return self.whole is not None, self.run.calls


class Trials:
    """How a script is tried on both devices: with whole loops, with loops that end early, or with both."""

    def __init__(self, runs: Runs, loops: Loops, both: bool = False) -> None:
        self.loops, self.both = loops, both
        self._runs = runs

    def on_cpu(self, rounds_up: bool = False) -> Pair:
        """Run the script as it is, without the GPU."""
        run = self._runs.run({}, gpu=False, loops=self.loops, rounds_up=rounds_up)
        return Pair(run, self._runs.run({}, gpu=False, rounds_up=rounds_up) if self.both else None)

    def losses_again(self) -> list[float]:
        """Return the losses of one more run of the script as it is."""
        return self._runs.run({}, gpu=False, loops=self.loops).losses

    def on_gpu(self, texts: Mapping[str, bytes]) -> Pair:
        """Run changed files on the practice GPU; with whole loops first, if both are wanted."""
        whole = self._runs.run(texts, gpu=True) if self.both else None
        if whole is not None and whole.failure is not None:
            return Pair(whole)
        run = self._runs.run(texts, gpu=True, loops=self.loops)
        return Pair(run if whole is None else _joined(run, whole), whole)


@dataclass(frozen=True)
class State:
    """How far a port has come: files, their runs on the practice GPU, changes with their current lines."""

    files: Files
    gpu: Pair
    changes: tuple[Change, ...] = ()

    def with_text(self, file: str, text: bytes) -> State:
        """Return the state after a file has got another text, in which the changes may stand elsewhere."""
        codes = _codes(self.files[file].text, text)
        changes = (
            each._replace(line=_followed(each.line, codes)) if each.file == file else each
            for each in self.changes
        )
        return replace(self, files=self.files.changed(file, text), changes=tuple(changes))

    def put(self, change: Change) -> State:
        lines = change.text.splitlines()
        written = _written(_codes(self.files[change.file].text, change.text))
        written = [each for each in written if lines[each].strip()]
        written = [each for each in written if not lines[each].startswith(b"import ")]
        after = self.with_text(change.file, change.text)
        return replace(after, changes=(*after.changes, change._replace(line=(written or [0])[0] + 1)))

    def choose_devices(self) -> State:
        """Return the state in which each file that names the device by now has the line that chooses it."""
        state = self
        for file, name in self.files.devices.items():
            source = state.files[file]
            if source.uses(name) and not source.binds(name):
                state = state.put(Change(file, source.with_device_line(name), ("the device",), CHOSEN, 1))
        return state


@dataclass(frozen=True)
class Port:
    state: State
    before: Pair  # the files as they were, on the CPU: with these runs the others are compared
    stuck: str = ""  # what could not be fixed; "" if nothing stops the script any more
    repeats: bool = True  # the script has the same losses whenever it runs on the CPU
    rounded: Pair | None = None  # as `before`, with products rounded in another way, if losses differ

    @property
    def files(self) -> Files:
        return self.state.files

    @property
    def changes(self) -> tuple[Change, ...]:
        """With the lines that they have in the files afterwards."""
        return self.state.changes

    @property
    def cpu(self) -> Run:
        return self.before.run

    @property
    def gpu(self) -> Run:
        return self.state.gpu.run

    @property
    def wholes(self) -> tuple[Run, Run] | None:
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
        """Whether it learns the same: no loss differs, or by no more than rounding explains."""
        rounded = self.rounded or Pair(Run())
        alike = _by_rounding(self.cpu, self.gpu, rounded.run) and (
            self.wholes is None or _by_rounding(*self.wholes, rounded.whole or Run())
        )
        return not self.stuck and self.steps >= STEPS and self.as_many and alike

    @property
    def left(self) -> list[Spot]:
        """Where work is left on the CPU."""
        spots: dict[tuple[str, int], Spot] = {}
        for each in filter(None, (self.gpu, self.state.gpu.whole)):
            found = [scene.frames[-1] for scene in each.on_cpu]
            found += [frames[-1] for _, frames in _on_the_cpu(each) if frames]
            spots |= {(spot.file, spot.line): spot for spot in found}
        return [spots[place] for place in sorted(spots)]


def port(runs: Runs, tell: Callable[[str], None]) -> Port:
    """Take a script to a GPU; `tell` gets a line on what is going on.

    Raises
    ------
    NoTrial
        If there is nothing to port, or no way to try it.
    """
    tell("the script as it is, on the CPU")
    before, quick, final = _tried_on_the_cpu(runs)
    gpu = Pair(before.run)
    if any(word in text for text in runs.texts.values() for word in (b"cuda", b"accelerator", b"gpu")):
        gpu = quick.on_gpu({})
        if gpu.run.losses and not gpu.run.failure and not _on_the_cpu(gpu.run):
            raise NoTrial(_on_the_gpu_already(before.run))
    _check(before.run)
    option = OPTION.search(runs.texts[runs.name].decode(errors="replace"))
    if option:
        raise NoTrial(
            f"it has an option {option[1]}, so it can choose its device already. Run it with that, here on "
            f"the practice GPU: python -m gpulesson practice {runs.name} …"
        )
    rounds = _Rounds(quick, tell)
    state, stuck = rounds.go_on(rounds.begin(State(Files(runs.texts), gpu), runs.name))
    if final is not quick and not (final.both and stuck):
        rounds = _Rounds(final, tell)
        state, stuck = rounds.go_on(rounds.run(state))
    found = _compared(Port(state, before, stuck), final, tell)
    return replace(found, state=_tidy(found, rounds)) if found.proved else found


def _tried_on_the_cpu(runs: Runs) -> tuple[Pair, Trials, Trials]:
    """Return what a script is compared with, how it is tried while it is changed, and how in the end."""
    whole = runs.run({}, gpu=False)
    in_full = Trials(runs, WHOLE)
    if not whole.losses:
        return Pair(whole), in_full, in_full
    loops = Loops(short=True)
    if not whole.stopped:  # it comes to its end: so it is compared with whole loops
        return Pair(whole), Trials(runs, loops), in_full
    short = runs.run({}, gpu=False, loops=loops)
    while short.failure and len(loops.without) < LEFT_OUT and (text := unlike(short.failure, runs.texts)):
        loops = replace(loops, without=(*loops.without, text))
        short = runs.run({}, gpu=False, loops=loops)
    if len(short.losses) < STEPS or short.failure is not None:  # it needs them in full
        return Pair(whole), in_full, in_full
    quick = Trials(runs, loops)
    if any(whole.lines[file] - short.lines.get(file, set()) for file in whole.lines):
        return Pair(short, whole), quick, Trials(runs, loops, both=True)
    return Pair(short), quick, quick


def _compared(found: Port, trials: Trials, tell: Callable[[str], None]) -> Port:
    """If losses differ, find out whether the script repeats them, and how much they depend on rounding."""
    if found.stuck or found.proved:
        return found
    tell("the script as it is, once more: are its losses always the same?")
    again = trials.losses_again()[: found.steps]
    found = replace(found, repeats=again == found.cpu.losses[: found.steps])
    if not (found.differing and found.repeats):
        return found
    tell("the script as it is, rounded in another way: how much do its losses depend on that?")
    return replace(found, rounded=trials.on_cpu(rounds_up=True))


def _on_the_gpu_already(cpu: Run) -> str:
    if cpu.failure is None:
        return "it trains on the GPU already, where there is one. Nothing has to be done."
    return (
        f"it trains on the GPU already, and cannot run without one: {where(cpu.failure)} asks for it by name."
        f" Nothing has to be done. With this line it would run anywhere:\n    {DEVICE_LINE}"
    )


def _check(cpu: Run) -> None:
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
            f"backward() was never called, so there is nothing to compare. {said if cpu.stopped else by_hand}"
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


def _trained(run: Run) -> Iterator[tuple[Thing, tuple[Spot, ...]]]:
    """Yield what is trained on the CPU, the last line first: those above stay where they are."""
    seen = set()
    for thing, frames in sorted(
        _on_the_cpu(run), key=lambda each: [-spot.line for spot in each[0].made[-1:]]
    ):
        if not thing.made or thing.made not in seen:  # several are made by one line
            seen.add(thing.made)
            yield thing, frames


def _moved(files: Files, thing: Thing, frames: tuple[Spot, ...]) -> Change | None:
    """Return the change that moves what is trained, if it is not in the files yet."""
    change = reasons.trained(files, thing, frames)
    return None if change is None or change.text == files[change.file].text else change


def _on_the_cpu(run: Run) -> list[tuple[Thing, tuple[Spot, ...]]]:
    return [each for each in run.used if each[0].device == "cpu"]


class _Rounds:
    """Changes a script and runs it, until nothing stops it."""

    def __init__(self, trials: Trials, tell: Callable[[str], None]) -> None:
        self._trials, self._tell = trials, tell
        self._left = 0  # runs of the search for the next change

    def run(self, state: State) -> State:
        return replace(state, gpu=self._trials.on_gpu(state.files.texts))

    def begin(self, state: State, script: str) -> State:
        """Make the first changes, without which there is no error yet."""
        if chosen := reasons.hard_coded(state.files, script):
            return self.run(state.put(chosen).choose_devices())
        if state.gpu.run.failure is not None:
            return state
        for thing, frames in _trained(state.gpu.run):
            if change := _moved(state.files, thing, frames):
                self._tell(f"{change.file}: {change.what}")
                state = state.put(change)
        return self.run(state.choose_devices())

    def go_on(self, state: State) -> tuple[State, str]:
        """Change the script until nothing stops it, or nothing brings it further; return what stops it."""
        complete: State | None = None  # but for what the CPU computes by itself
        for _ in range(ROUNDS):
            run = state.gpu.run
            if _candidates(state) is None:
                return state, ""
            if run.failure is None and run.on_cpu:
                complete = state
            self._left = SEARCH
            further = self._bring_further(state, state.gpu)
            if further is None:
                if complete is not None:  # what is left on the CPU is reported
                    return complete, ""
                failed = run.failure is not None or not run.losses or not state.changes
                return state, _stuck(run) if failed else ""
            state = further
        return state, f"after {ROUNDS} changes it is still not on the GPU"

    def _bring_further(
        self, state: State, best: Pair, tries: int = TRIES, depth: int = DEPTH
    ) -> State | None:
        """Return the state after the first change, or few, with which the script gets further than `best`.

        Of tensors that meet, one that moves alone may bring it less far: then the others move as well. In a
        module's own methods tensors move only if that does not help.
        """
        unfinished: list[tuple[State, Change]] = []
        tried, outside = set[tuple[str, bytes]](), True
        for change in itertools.islice(_candidates(state) or (), tries):
            if change.inside and outside:
                outside = False
                if further := self._finish(unfinished, best, depth):
                    return further
                unfinished = []
            if change.text == state.files[change.file].text or (change.file, change.text) in tried:
                continue
            if not self._left:
                return None
            self._left -= 1
            tried.add((change.file, change.text))
            after = self.run(state.put(change).choose_devices())
            if _is_further(best, after.gpu):
                self._tell(f"{change.file}: {change.what}")
                return after
            if depth and len(unfinished) < UNFINISHED and _others_must_move(state.gpu.run, after.gpu.run):
                unfinished.append((after, change))
        return self._finish(unfinished, best, depth)

    def _finish(self, unfinished: list[tuple[State, Change]], best: Pair, depth: int) -> State | None:
        """Try to get further from states in which one of several tensors has moved."""
        for state, change in unfinished:
            if further := self._bring_further(state, best, DEEPER_TRIES, depth - 1):
                self._tell(f"{change.file}: {change.what}")
                return further
        return None


def _candidates(state: State) -> Iterator[Change] | None:
    """Return the changes that may come next, the best first; None if none is needed."""
    files, run = state.files, state.gpu.run
    filled = itertools.chain.from_iterable(reasons.filled(files, each) for each in run.filled)
    if run.failure is not None:
        return itertools.chain(filled, reasons.fix(files, run.failure))
    if _on_the_cpu(run):
        return filter(None, (_moved(files, *each) for each in _trained(run)))
    if run.filled and (change := next(filled, None)):
        return itertools.chain([change], filled)
    if run.loads:
        return filter(None, (reasons.loading(files, spot) for spot in run.loads))
    if run.on_cpu:
        return (change for scene in run.on_cpu for change in reasons.to_device(files, scene))
    return None if run.losses else iter(())


def _tidy(found: Port, rounds: _Rounds) -> State:
    """Return the state without moves that had nothing to do, and with loads that did not run mapped."""
    state = _without_idle_moves(found.state)
    if state is not found.state:
        state = rounds.run(state)
        if state.gpu.run.failure or _on_the_cpu(state.gpu.run) or not replace(found, state=state).proved:
            state = found.state
    before = state
    for file, ran in state.gpu.run.lines.items():
        while change := next(
            (each for _, each in reasons.silent_loads(state.files, file, ran) if each), None
        ):
            state = state.put(change)  # it adds no line
    return state if state is before else rounds.run(state.choose_devices())


def _without_idle_moves(state: State) -> State:
    """Take out the moves that had nothing to do, if no code that did not run may need them."""
    run, files = state.gpu.run, state.files
    silent = "\n".join(
        "\n".join(files[file].text.decode(errors="replace").splitlines()[first - 1 : last])
        for file, ran in run.lines.items()
        for first, last in not_reached(files[file].text, ran)
    )
    after, lines = state, set()
    for spot in sorted(run.idle, key=lambda spot: (spot.line, spot.column), reverse=True):
        called = spot.function == "forward" or re.search(rf"\b{re.escape(spot.function)}\b", silent)
        text = None if silent and called else reasons.without(after.files, spot)
        if text is not None:
            after = after.with_text(spot.file, text)
            lines |= {(spot.file, line) for line in range(spot.line, spot.end_line + 1)}
    if not lines:
        return state
    kept: list[Change] = []
    for file, text in after.files.texts.items():
        written = _written(_codes(files.originals[file], text))
        own = [each for each in after.changes if each.file == file]
        own = [each for each in own if (file, each.line) not in lines or each.line - 1 in written]
        if all(each.verb is CHOSEN for each in own):  # nothing uses the device any more
            after = replace(after, files=after.files.changed(file, None))
        else:
            kept += own
    return replace(after, changes=tuple(kept))


def _joined(short: Run, whole: Run) -> Run:
    """Return a run with loops that end early, and what the one with whole loops has seen besides."""
    lines = {
        file: short.lines.get(file, set()) | whole.lines.get(file, set())
        for file in {**short.lines, **whole.lines}
    }
    return replace(  # its calls stay: those of `whole` depend on when its time was over
        short,
        lines=lines,
        idle=[spot for spot in short.idle if spot in whole.idle],
        used=short.used + [each for each in _on_the_cpu(whole) if each not in short.used],
        loads=short.loads + [each for each in whole.loads if each not in short.loads],
        draws=short.draws + whole.draws,
    )


def _differing(cpu: Run, gpu: Run) -> list[int]:
    pairs = zip(cpu.losses, gpu.losses, strict=False)
    return [number for number, (a, b) in enumerate(pairs, 1) if a != b]


def _by_rounding(cpu: Run, gpu: Run, rounded: Run) -> bool:
    if not _differing(cpu, gpu):
        return True
    known = 0.0
    for one, other, close in zip(cpu.losses, gpu.losses, rounded.losses, strict=False):
        known = max(known, abs(one - close))
        if not abs(one - other) <= ROUNDING * known:
            return False
    return len(rounded.losses) >= min(len(cpu.losses), len(gpu.losses))


def _is_further(old: Pair, new: Pair) -> bool:
    """Return whether a change has brought the script further."""
    before, after = old.run, new.run
    if after.failure is None:
        left = [
            (len(_on_the_cpu(run)), len(run.filled), len(run.loads), len(run.on_cpu))
            for run in (before, after)
        ]
        return bool(after.losses) and (before.failure is not None or left[1] < left[0])
    if after.failure.kind in ("NameError", "UnboundLocalError", "AttributeError"):
        return False
    if "expected TensorOptions" in after.failure.message:  # torch.LongTensor(x) wants it on the CPU
        return False
    if before.failure is None or new.reach > old.reach:
        return True
    return new.reach == old.reach and _devices(before.failure) != _devices(after.failure)


def _others_must_move(old: Run, new: Run) -> bool:
    """Return whether what has moved now meets another tensor, which is on the CPU."""
    if new.failure is None:
        return False
    stops = [(run.calls, run.failure and (run.failure.message, _devices(run.failure))) for run in (old, new)]
    return stops[0] != stops[1] and len({device == "cpu" for device in _devices(new.failure)}) == 2


def _devices(failure: Failure) -> list[str]:
    return sorted(thing.device for thing in failure.things)


def _stuck(run: Run) -> str:
    if run.failure is not None:
        place = f"{run.failure.frames[-1]}: " if run.failure.frames else ""
        return f"{place}{run.failure.kind}: {run.failure.message}{_met(run.failure)}"
    if run.errors:
        return f"{run.stopped}: {run.errors.splitlines()[-1]}"
    return run.stopped or "what is trained stays on the CPU"


def _met(failure: Failure) -> str:
    """Return which tensors met there, on which devices; "" if one of them has no name that a reader knows."""
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
