"""The rounds of a port: run the script, fix what the error says, run it again; then compare with the CPU."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isnan
from pathlib import Path

from gpulesson.porting import reasons
from gpulesson.porting.child import NO_NETWORK
from gpulesson.porting.edits import DEVICE_LINE
from gpulesson.porting.facts import Failure, Record, Spot, Thing
from gpulesson.porting.reached import not_reached
from gpulesson.porting.reasons import Change, Files
from gpulesson.porting.run import Runs

ROUNDS, TRIES = 40, 6
ROUNDING = 1e-4
"""Losses that are no further apart, relative to the CPU's, differ by rounding."""
_MOVE = re.compile(r"\.to\([\w.]+\)|\.cpu\(\)|, device=[\w.]+")
_OPTION = re.compile(r"add_argument\(\s*['\"](--(?!no)[\w-]*(?:device|cuda|gpu)[\w-]*)['\"]")
_AWARE = (b"cuda", b"accelerator", b"gpu")
"""A script without these words cannot use a GPU yet."""


class NoPort(Exception):
    """There is nothing to change, or no way to try the script; the message says why."""


@dataclass
class Port:
    """
    What came of a port.

    Attributes
    ----------
    before, after : dict
        The texts of the files that change, by their path from the script's folder.
    changes : list of Change
        With the lines that they have in the files afterwards.
    cpu, gpu : Record
        The runs that are compared.
    stuck : str
        What could not be fixed; "" if nothing stops the script any more.
    runs : Runs
        What ran the script.
    in_full : str
        What is to be said of a run whose loops did not end early.
    repeats : bool
        The script has the same losses whenever it runs on the CPU.
    """

    before: dict[str, bytes]
    after: dict[str, bytes]
    changes: list[Change]
    cpu: Record
    gpu: Record
    stuck: str
    runs: Runs
    in_full: str = ""
    repeats: bool = True

    @property
    def steps(self) -> int:
        """How many losses are compared."""
        return min(len(self.cpu.losses), len(self.gpu.losses))

    @property
    def largest(self) -> float:
        """The largest difference between two losses, relative to the CPU's."""
        pairs = [(a, b) for (_, a), (_, b) in zip(self.cpu.losses, self.gpu.losses, strict=False)]
        apart = [abs(a - b) / max(abs(a), 1e-12) for a, b in pairs if a != b and not (isnan(a) and isnan(b))]
        return max((inf if isnan(each) else each for each in apart), default=0.0)

    @property
    def as_many(self) -> bool:
        """Whether both runs took as many steps, unless their time was over."""
        stopped = self.cpu.stopped or self.gpu.stopped
        return bool(stopped) or len(self.cpu.losses) == len(self.gpu.losses)

    @property
    def equal(self) -> bool:
        """Whether all losses are equal to the bit."""
        return self.steps > 0 and self.largest == 0

    @property
    def proved(self) -> bool:
        """Whether it learns the same, up to rounding."""
        return not self.stuck and self.steps > 0 and self.as_many and self.largest <= ROUNDING


def port(
    script: Path,
    arguments: tuple[str, ...],
    limit: float,
    tell: Callable[[str], None],
    text: bytes | None = None,
) -> Port:
    """
    Take a script to a GPU.

    Parameters
    ----------
    script : Path
    arguments : tuple of str
        What it finds in ``sys.argv[1:]``.
    limit : float
        Seconds for each run.
    tell : callable
        Gets a line on what is going on.
    text : bytes, optional
        That of the script, if it is no file.

    Raises
    ------
    NoPort
        If there is nothing to port, or nothing to try it with.
    """
    runs = Runs(script, arguments, limit, text)
    files = Files(runs.read)
    aware = any(word in text for text in runs.own_texts() for word in _AWARE)
    cpu = _on_cpu(runs, aware, tell)
    work = _Work(files, [])
    record = runs.run({}, gpu=True) if aware else cpu
    if aware and record.failure is None and not _on_the_cpu(record):
        raise NoPort("it trains on the GPU already, where there is one. Nothing has to be done.")
    if aware or b"device" in runs.read(runs.name):
        _try_its_option(runs)
    chosen = reasons.hard_coded(files, runs.name)
    if chosen is not None:
        work.take(chosen)
        record = runs.run(files.texts, gpu=True)
        if record.failure is None and _on_the_cpu(record):  # it is the device of something else
            work.restore(({}, []))
            record = cpu
    if record.failure is None:
        for change in _models(files, record):
            tell(f"{change.file}, line {change.line}: {change.what}")
            work.take(change)
        work.choose_devices()
        record = runs.run(files.texts, gpu=True)
    record, stuck = _rounds(runs, work, record, tell)
    in_full = ""
    if not stuck and record.shortened and _is_left(files, record):
        tell("once more with its loops in full, for the lines that were not reached")
        before = dict(files.texts)
        runs.short = False
        full, stuck = _rounds(runs, work, runs.run(files.texts, gpu=True), tell)
        runs.short = True
        until = ", until its time was over" if full.stopped else ""
        in_full = f"It also ran in full, for {len(full.losses)} steps{until}."
        if files.texts != before:
            record = runs.run(files.texts, gpu=True)
        for file, lines in full.lines.items():
            record.lines.setdefault(file, set()).update(lines)
    originals = {file: files.original(file) for file in files.texts}
    found = Port(originals, dict(files.texts), work.changes, cpu, record, stuck, runs, in_full)
    if not stuck and not found.equal:
        tell("the script as it is, once more: are its losses always the same?")
        found.repeats = runs.run({}, gpu=False).losses[: found.steps] == cpu.losses[: found.steps]
    return found


def _try_its_option(runs: Runs) -> None:
    """Raise if an option of the script takes it to the GPU."""
    for option in dict.fromkeys(_OPTION.findall(runs.read(runs.name).decode(errors="replace"))):
        for words in ((option, "cuda"), (option,)):
            record = runs.run({}, gpu=True, more=words)
            if record.failure is None and record.losses and not _on_the_cpu(record):
                raise NoPort(
                    f"it has an option for that, {' '.join(words)}, and trains on the GPU with it. "
                    "Nothing has to be changed."
                )


def _rounds(runs: Runs, work: _Work, record: Record, tell: Callable[[str], None]) -> tuple[Record, str]:
    """Change and run until nothing stops the script; return the last run, and what could not be fixed."""
    files = work.files
    for _ in range(ROUNDS):
        candidates = _candidates(files, record)
        if candidates is None:
            return record, ""
        for change in itertools.islice(candidates, TRIES):
            if change.text == files[change.file].text:
                continue
            before = work.copy()
            work.apply(change)
            new = runs.run(files.texts, gpu=True)
            if _further(record, new, before[0], files):
                tell(f"{change.file}, line {work.changes[-1].line}: {change.what}")
                record = new
                break
            work.restore(before)
        else:
            return record, _stuck(record)
    return record, f"after {ROUNDS} changes it is still not on the GPU"


def _is_left(files: Files, record: Record) -> bool:
    """Return whether there are statements that did not run."""
    return any(any(not_reached(files[file].text, ran)) for file, ran in record.lines.items())


def _on_cpu(runs: Runs, aware: bool, tell: Callable[[str], None]) -> Record:
    tell("the script as it is, on the CPU")
    cpu = runs.run({}, gpu=False)
    if (cpu.failure is not None and cpu.failure.kind != "NoInput") or not (cpu.losses or cpu.stopped):
        runs.short = False  # it may need its loops in full
        cpu = runs.run({}, gpu=False)
    if cpu.failure is not None:
        if aware and runs.run({}, gpu=True).failure is None:
            line = cpu.failure.frames[-1].line if cpu.failure.frames else 0
            raise NoPort(
                f"it trains on the GPU already, and cannot run without one: line {line} asks for it by name. "
                f"Nothing has to be done. With this line it would run anywhere:\n    {DEVICE_LINE}"
            )
        raise NoPort(_failed(cpu.failure))
    if cpu.stopped == "endless":
        raise NoPort("it did not end, nor come to a training step, within the time (--limit gives it more)")
    if not cpu.losses:
        raise NoPort(f"nothing was trained, for no loss went backward(). {cpu.stopped}".strip())
    if cpu.made_text:
        raise NoPort("its training is in text that is run by exec(), which cannot be changed here")
    return cpu


def _failed(failure: Failure) -> str:
    line = failure.frames[-1].line if failure.frames else 0
    if failure.kind == "NoInput":
        return (
            f"line {line} waits for input(). It is tried by itself: give the value as "
            "an argument of the script, or write it there"
        )
    if NO_NETWORK in failure.text:
        return (
            f"line {line} wants to download something, and it is tried without a network. Run it once as "
            "ever, so that its data are in its folder"
        )
    return "it fails on the CPU already. Fix that first:\n" + "\n".join(failure.text.splitlines()[-8:])


def _candidates(files: Files, record: Record) -> Iterator[Change] | None:
    """Return the changes that may come next, the best first; None if none is needed."""
    if record.failure is not None:
        return reasons.fix(files, record.failure)
    if _on_the_cpu(record):
        return _models(files, record)
    if record.loads:
        return filter(None, (reasons.loading(files, spot) for spot in record.loads))
    return None if record.losses else iter(())


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
    return [each for each in record.trained if each[0].device == "cpu"]


def _further(before: Record, after: Record, texts: dict[str, bytes], files: Files) -> bool:
    """Return whether a change has brought the script further."""
    failure, old = after.failure, before.failure
    if failure is None:
        left = [(len(_on_the_cpu(each)), len(each.loads)) for each in (before, after)]
        return bool(after.losses) and (old is not None or left[1] < left[0])
    if failure.kind in ("NameError", "UnboundLocalError", "AttributeError"):
        return False
    if old is None:
        return True
    was = Files(lambda file: texts.get(file) or files.original(file))
    places = [
        (each.file, _followed(each.line, _codes(was[each.file].text, files[each.file].text)))
        for each in old.frames
    ]
    same = places == [(each.file, each.line) for each in failure.frames] and _failing(was, old) == _failing(
        files, failure
    )
    again = (old.kind, old.message) == (failure.kind, failure.message)
    devices = [[thing.device for thing in each.things] for each in (old, failure)]
    return len(after.losses) >= len(before.losses) and not (same and again and devices[0] == devices[1])


def _failing(files: Files, failure: Failure) -> str:
    """Return the expression that fails, without moves that were put into it."""
    spot = failure.frames[-1] if failure.frames else None
    node = None if spot is None else files[spot.file].expression(spot)
    return "" if spot is None or node is None else _MOVE.sub("", files[spot.file].code(node))


def _stuck(record: Record) -> str:
    if record.failure is not None:
        where = record.failure.frames[-1] if record.failure.frames else None
        place = f"{where.file}, line {where.line}: " if where else ""
        return f"{place}{record.failure.kind}: {record.failure.message}"
    return record.stopped or "what is trained stays on the CPU"


@dataclass
class _Work:
    """The files by now, and the changes that were made in them."""

    files: Files
    changes: list[Change]

    def copy(self) -> tuple[dict[str, bytes], list[Change]]:
        return dict(self.files.texts), list(self.changes)

    def restore(self, before: tuple[dict[str, bytes], list[Change]]) -> None:
        self.files.texts, self.changes = before

    def apply(self, change: Change) -> None:
        """Take a change, and the lines that it needs."""
        self.take(change)
        self.choose_devices()

    def choose_devices(self) -> None:
        """In each file that names the device by now, add the line that chooses it."""
        for file, name in self.files.devices.items():
            source = self.files[file]
            if not source.binds(name) and name in source.names():
                self.take(
                    Change(file, source.with_device_line(name), 0, "the device", "is chosen once", "device")
                )

    def take(self, change: Change) -> None:
        codes = _codes(self.files[change.file].text, change.text)
        self.files.texts[change.file] = change.text
        for number, each in enumerate(self.changes):
            if each.file == change.file:
                self.changes[number] = each._replace(line=_followed(each.line, codes))
        new = [first + 1 for kind, _, _, first, _ in codes if kind != "equal"]
        self.changes.append(change._replace(line=new[0] + (change.lesson == "device")))


def _codes(before: bytes, after: bytes) -> Sequence[tuple[str, int, int, int, int]]:
    return difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), False).get_opcodes()


def _followed(line: int, codes: Sequence[tuple[str, int, int, int, int]]) -> int:
    """Return the number that a line has after a change."""
    for kind, first, last, new_first, _ in codes:
        if first <= line - 1 < last:
            return new_first + 1 + (line - 1 - first if kind == "equal" else 0)
    return line
