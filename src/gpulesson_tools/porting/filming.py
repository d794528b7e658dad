"""Films a script: what each of its lines copies, sends to the GPU and waits for, and what is where then."""

from __future__ import annotations

import ast
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import decode_source
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any

import numpy
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from gpulesson_tools.planning.recording.cost import cost
from gpulesson_tools.planning.recording.dry import tensors_in
from gpulesson_tools.porting.facts import Run
from gpulesson_tools.porting.tracer import outwards
from gpulesson_tools.programs.hooks import Call
from practice_gpu.device.events import TO_DEVICE, TO_HOST
from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.device.ledger import address_of

_CLOCK = re.compile(r"\b(?:time\.time|perf_counter|monotonic|process_time)(?:_ns)?\(\)")
TURNS = {True: 2, False: 1}
"""How often a line is shown, with gradients and without."""


@dataclass(frozen=True)
class Thing:
    """What a name holds on one side.

    Attributes
    ----------
    name : str
        ``"x"``, ``"self.mask"``; several names of one thing in a row: ``"x, inputs"``.
    kind : str
        ``"tensor"``, ``"array"``, ``"model"``, ``"optimizer"``, or ``"tensors"`` of a list.
    on_gpu : bool
    shape : str
        ``"100 × 2"``, ``"4 tensors"``.
    nbytes : int
        Of the tensors themselves.
    gradients : int
        Bytes of the parameters' gradients.
    where, slopes : tuple of int
        The addresses of its storages, and of its gradients'.
    written : int
        How often its tensors were written to.
    """

    name: str
    kind: str
    on_gpu: bool
    shape: str
    nbytes: int
    gradients: int = 0
    where: tuple[int, ...] = ()
    slopes: tuple[int, ...] = ()
    written: int = 0

    @property
    def content(self) -> tuple[Any, ...]:
        """What makes it another thing; its name does not."""
        return self.kind, self.on_gpu, self.nbytes, self.gradients, self.where

    @property
    def memory(self) -> set[Any]:
        """Where it and its gradients are; a view is told apart from the tensor that it shows."""
        places = {(self.on_gpu, where) for where in (*self.where, *self.slopes)}
        return places | {self.content} if ", part of " in self.shape else places


@dataclass
class Stop:
    """What one line did.

    Attributes
    ----------
    file : str
        Seen from the folder of the script.
    line, last : int
        The first and the last line of the statement.
    to_gpu, to_host : list of int
        Bytes of each copy.
    waits : list of str
        The calls in which Python waited for the GPU.
    waited : int
        Kernels that it waited for.
    sent : int
        Kernels that were sent to the GPU.
    queue : int
        Kernels that were sent and not waited for, at the end of the line.
    before, things : list of Thing
        What is where before the line, and after it; the innermost function's first.
    unnamed : int
        Bytes in the GPU's memory that no name leads to, such as what is kept for a backward pass.
    more : bool
        The line, or one after it, runs more often than it is shown.
    clock : bool
        The line looks at the clock.
    error : str
        That ended the script here.
    """

    file: str
    line: int
    last: int
    to_gpu: list[int] = field(default_factory=list)
    to_host: list[int] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    waited: int = 0
    sent: int = 0
    queue: int = 0
    before: list[Thing] = field(default_factory=list)
    things: list[Thing] = field(default_factory=list)
    unnamed: int = 0
    more: bool = False
    clock: bool = False
    error: str = ""

    @property
    def acts(self) -> bool:
        """Whether the line copied, sent or waited."""
        return bool(self.to_gpu or self.to_host or self.waits or self.sent)

    def add(self, other: Stop) -> None:
        """Let what another line did be done by this one, which called it."""
        for name in ("to_gpu", "to_host", "waits", "waited", "sent"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class _Place:
    """Where a frame is: a statement, in a turn that is shown or not."""

    begun: int  # stops that there were before the frame
    spot: tuple[int, int] = (0, 0)
    shown: bool = False
    now: Stop | None = None  # the statement, as long as no line is shown of a function that it calls
    before: list[Thing] = field(default_factory=list)
    acts: bool = False  # a line of the frame did something with the GPU, or of one that it called
    hidden: Stop = field(default_factory=lambda: Stop("", 0, 0))  # what its lines did that are not shown


class Filming:
    """While open, notes in `stops` what the lines of a script do on a practice GPU.

    Lines that change nothing on either side are left out, and what other threads do. `texts` has the source
    of each file, by the name that the stops give it.

    Parameters
    ----------
    folder : Path
        Code of files in it is the script's own.
    gpu : PracticeGPU
    run : Run
        Whose evidence it is, both `stops` and `texts`.
    """

    def __init__(self, folder: Path, gpu: PracticeGPU, run: Run) -> None:
        self._run = run
        self.stops: list[Stop] = []
        self.texts: dict[str, str] = {}
        self._folder, self._gpu = f"{folder}{os.sep}", gpu
        self._thread = threading.get_ident()
        self._places: dict[FrameType, _Place] = {}
        self._frame: FrameType | None = None
        self._turns: Counter[Any] = Counter()
        self._writes: Counter[int] = Counter()  # to each address
        self._deaf = self._unwinding = False  # while the tracer reads a loss; while an error is on its way
        self._queue = 0
        self._undo = ExitStack()

    def __enter__(self) -> Filming:
        self._undo.enter_context(_Operators(self._gpu, self._send, self._writes))
        self._gpu.log.listener = self._hear
        sys.settrace(lambda frame, *_: self._follow if self._follows(frame) else None)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        sys.settrace(None)
        own = [(frame, line) for frame, line in walk_tb(traceback) if self._is_own(frame.f_code.co_filename)]
        if isinstance(error, Exception) and own:
            frame, line = own[-1]
            self._places[frame] = _Place(0, self._spot(frame, line), shown=True)
            self._open(frame).error = f"{type(error).__name__}: {error}"
            self._close(frame)
        self._gpu.log.listener = None
        self._undo.close()

    def finish(self) -> None:
        self._run.evidence = self.stops, self.texts

    # -- what lines do

    def before_backward(self, _: Call) -> None:
        self._deaf = False

    def end_backward(self, _: Call) -> None:
        """Stop listening: the tracer, a listener before this one, reads the loss now."""
        self._deaf = True

    after_backward = before_grad = after_grad = before_backward
    end_grad = end_backward

    def _hear(self, kind: str, call: str, nbytes: int, waits: bool) -> None:
        if self._deaf or threading.get_ident() != self._thread:
            return
        before, self._queue = self._queue, 0 if waits else self._queue
        if now := self._now():
            if kind == TO_DEVICE:
                now.to_gpu.append(nbytes)
            elif kind == TO_HOST:
                now.to_host.append(nbytes)
            if waits:
                now.waits.append(call)
                now.waited += before

    def _send(self, kernels: int) -> None:
        if self._deaf or threading.get_ident() != self._thread:
            return
        self._queue += kernels
        if now := self._now():
            now.sent += kernels

    def _now(self) -> Stop | None:
        return self._places[self._frame].now if self._frame in self._places else None

    # -- which line it is

    def _follows(self, frame: FrameType) -> bool:
        """Return whether a frame is the script's own; what a lambda does, the line does that calls it."""
        name = frame.f_code.co_name
        return self._is_own(frame.f_code.co_filename) and (name == "<module>" or not name.startswith("<"))

    def _follow(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self._deaf = self._unwinding = False
            place, spot = self._places.get(frame), self._spot(frame, frame.f_lineno)
            if place is None:
                place = self._places[frame] = _Place(len(self.stops))
            elif frame is self._frame and spot == place.spot:
                return self._follow
            self._close(frame)
            turn = frame.f_code, spot, torch.is_grad_enabled()
            place.spot, place.shown = spot, self._turns[turn] < TURNS[turn[-1]]
            self._turns[turn] += 1
            self._open(frame)
        elif event == "exception":
            self._unwinding = True
        elif event == "return":
            self._close(frame)
            place = self._places.pop(frame, None)
            self._frame = next(self._callers(frame), None)
            if place is not None and self._frame is not None:
                self._return(place, self._frame)
        return self._follow

    def _return(self, place: _Place, frame: FrameType) -> None:
        """Go on in the caller of a function; if nothing of that is shown, its work is its caller's."""
        caller = self._places[frame]
        caller.acts |= place.acts
        if not (place.acts or self._unwinding):
            del self.stops[place.begun :]
        alone = len(self.stops) == place.begun
        if caller.now is None and not self._unwinding:
            before = caller.before
            self._open(frame)
            caller.before = before if alone else caller.before
        if caller.now is not None and alone:
            caller.now.add(place.hidden)

    def _callers(self, frame: FrameType) -> Iterator[FrameType]:
        """Yield the frames of the script that called this one, the nearest first."""
        return (each for each in outwards(frame) if each is not frame and each in self._places)

    def _spot(self, frame: FrameType, line: int) -> tuple[int, int]:
        return _statements(frame.f_code.co_filename).get(line, (line, line))

    def _open(self, frame: FrameType) -> Stop:
        path, place = frame.f_code.co_filename, self._places[frame]
        file = path.removeprefix(self._folder).replace(os.sep, "/")
        if file not in self.texts:
            self.texts[file] = decode_source(Path(path).read_bytes())
        if place.shown:
            for each in reversed([each for each in self._callers(frame) if self._places[each].shown]):
                self._close(each)
            place.before = self._gather(frame)
        self._frame, place.now = frame, Stop(file, *place.spot)
        return place.now

    def _close(self, frame: FrameType) -> None:
        place = self._places.get(frame)
        if place is None or place.now is None:
            return
        now, place.now = place.now, None
        place.acts |= now.acts
        if not place.shown:
            place.hidden.add(now)
            if now.acts and len(self.stops) > place.begun:
                self.stops[-1].more = True
            return
        now.queue, now.before, now.things = self._queue, place.before, self._gather(frame)
        place.before = now.things
        before, after = (set().union(*(each.memory for each in side)) for side in (now.before, now.things))
        code = self.texts[now.file].split("\n")[now.line - 1 : now.last]
        now.clock = any(map(_CLOCK.search, code))
        if now.acts or now.error or now.clock or before != after:
            blocks = {each: size for thing in now.things for each, size in self._blocks(thing)}
            if place.hidden.acts and len(self.stops) == place.begun > 0:
                self.stops[-1].more = True
            now.unnamed = max(0, self._gpu.memory().allocated - sum(blocks.values()))
            self.stops.append(now)

    def _gather(self, frame: FrameType) -> list[Thing]:
        with torch._C.DisableTorchFunction(), self._gpu.let_pass():
            return list(_together(self._things(frame)))

    # -- what is where

    def _blocks(self, thing: Thing) -> Iterator[tuple[int, int]]:
        for address in (*thing.where, *thing.slopes) if thing.on_gpu else ():
            block = self._gpu.ledger.blocks.get(address)
            if block is not None:
                yield address, block.size

    def _things(self, frame: FrameType) -> Iterator[Thing]:
        """Yield what the names of a frame hold, then those of the frames that called it, and the globals."""
        seen: set[tuple[str, int]] = set()
        taken: set[str] = set()
        frames = [each for each in outwards(frame) if self._follows(each)]
        spaces = [(_function(each.f_code), each.f_locals) for each in frames]
        for function, space in [*spaces, (Path(frame.f_code.co_filename).name, frame.f_globals)]:
            used = set()
            for name, value in list(space.items()):
                if name != "_" and not name.startswith("__") and (name, id(value)) not in seen:
                    seen.add((name, id(value)))
                    for each in self._held(name, value):
                        used.add(name)
                        yield replace(each, name=f"{each.name} in {function}") if name in taken else each
            taken |= used

    def _held(self, name: str, value: Any, *, inside: bool = False) -> Iterator[Thing]:
        """Yield what a name holds; of an object of the script's own class, `inside` it, its attributes."""
        if isinstance(value, torch.Tensor):
            yield from self._tensors(name, "tensor", [value], _shape(value))
        elif isinstance(value, nn.Module):
            yield from self._model(name, value)
        elif isinstance(value, Optimizer):
            held = [each for each in tensors_in([*value.state.values()]) if each.dim()]
            yield from self._tensors(name, "optimizer", held, "state")
        elif isinstance(value, numpy.ndarray):
            where = (value.__array_interface__["data"][0],)
            yield Thing(name, "array", False, _shape(value), value.nbytes, where=where)
        elif isinstance(value, list | tuple | dict):
            parts = list(value.values()) if isinstance(value, dict) else value
            yield from self._tensors(name, "tensors", [e for e in parts if isinstance(e, torch.Tensor)])
        elif not inside and self._is_own(_file_of(value if isinstance(value, type) else type(value))):
            for attribute, held in list(getattr(value, "__dict__", {}).items()):
                if not attribute.startswith("__"):
                    yield from self._held(f"{name}.{attribute}", held, inside=True)

    def _is_own(self, file: str) -> bool:
        return file.startswith(self._folder)

    def _model(self, name: str, model: nn.Module) -> Iterator[Thing]:
        if "_parameters" not in model.__dict__:  # it is being made
            return
        yield from self._tensors(name, "model", [*model.parameters(), *model.buffers()])
        for path, module in model.named_modules():
            for attribute, held in module.__dict__.items():
                if isinstance(held, torch.Tensor):
                    full = ".".join(filter(None, (name, path, attribute)))
                    yield from self._tensors(full, "tensor", [held], _shape(held))

    def _tensors(self, name: str, kind: str, tensors: list[Any], shape: str = "") -> Iterator[Thing]:
        """Yield a thing of one or several tensors, once for each side on which it has some."""
        for on_gpu in (False, True):
            part = [each for each in tensors if (self._gpu.ledger.index(each) >= 0) == on_gpu]
            if part:
                slopes = [each.grad for each in part if each.is_leaf and each.grad is not None]
                held = shape or f"{len(part)} tensor{'s' * (len(part) != 1)}"
                where, beside = _addresses(part), _addresses(slopes)
                written = sum(self._writes[each] for each in (*where, *beside))
                yield Thing(name, kind, on_gpu, held, _nbytes(part), _nbytes(slopes), where, beside, written)


_ATEN = torch.ops.aten
_COPIES = _ATEN.copy_.default, _ATEN._to_copy.default, _ATEN.clone.default
"""Operators that take a tensor from one side to the other, if it is not on the same one."""


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells how many kernels each operator on the GPU takes at least, as plans count them; counts writes."""

    def __init__(self, gpu: PracticeGPU, send: Any, writes: Counter[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._gpu, self._send, self._writes = gpu, send, writes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        copies = func in _COPIES  # a number of the host is an argument of a kernel, but of a copy an end
        given = self._sides((args, kwargs), copies)  # before: what a copy fills may be elsewhere after it
        result = func(*args, **kwargs)
        sides = given | self._sides(result, copies)
        if True in sides and not (False in sides and copies):
            self._send(cost(func, args, kwargs, result).launches)
        self._writes.update(_addresses(tensors_in([args[at] for at in _written(func) if at < len(args)])))
        return result

    def _sides(self, value: Any, numbers: bool) -> set[bool]:
        places = [(each, self._gpu.ledger.index(each) >= 0) for each in tensors_in(value)]
        return {on_gpu for each, on_gpu in places if on_gpu or each.dim() or numbers}


@cache
def _written(func: Any) -> list[int]:
    """Return which arguments an operator writes to."""
    aliases = [argument.alias_info for argument in func._schema.arguments]
    views = func._schema.name == "aten::set_"  # of a storage, which stays as it is
    return [at for at, alias in enumerate(aliases) if alias is not None and alias.is_write and not views]


def _addresses(tensors: list[Any]) -> tuple[int, ...]:
    """Return where their storages are; some tensors have none, such as sparse ones."""
    found = []
    for each in tensors:
        with suppress(NotImplementedError, RuntimeError):
            found.append(address_of(each))
    return tuple(found)


def _nbytes(tensors: list[Any]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _shape(array: Any) -> str:
    try:
        return " × ".join(map(str, array.shape)) or "one number"
    except RuntimeError:  # a nested tensor has several
        return "several shapes"


def _together(things: Iterator[Thing]) -> Iterator[Thing]:
    """Join the names of one thing, and say of a view what it is a part of."""
    found: dict[Any, Thing] = {}
    wholes: dict[Any, Thing] = {}
    for each in things:
        key, place = (each.kind, each.on_gpu, each.shape, each.where), (each.kind, each.on_gpu, each.where)
        if known := found.get(key):
            names = [*dict.fromkeys((*known.name.split(", "), each.name))]
            clear = [name for name in names if " in " not in name] or names[:1]
            found[key] = replace(known, name=", ".join(clear))
            continue
        whole = wholes.setdefault(place, each)
        part = whole is not each and each.kind == "tensor"
        found[key] = replace(each, shape=f"{each.shape}, part of {whole.name}") if part else each
    yield from found.values()


def _function(code: CodeType) -> str:
    """Return the name of a function; outside of all, that of the file."""
    whole = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    return Path(code.co_filename).name if whole == "<module>" else whole


def _file_of(kind: type) -> str:
    """Return the file that a class is in, if there is one."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or ""


@cache
def _statements(path: str) -> dict[int, tuple[int, int]]:
    """Return first and last line of the statement that each line belongs to; of a block, of its head."""
    spots: dict[int, tuple[int, int]] = {}
    for node in ast.walk(ast.parse(Path(path).read_bytes())):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = node.end_lineno or node.lineno
            if isinstance(body, list):
                last = max(node.lineno, body[0].lineno - 1)
            for line in range(node.lineno, last + 1):
                spots[line] = node.lineno, last
    return spots
