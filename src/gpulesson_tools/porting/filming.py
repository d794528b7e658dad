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
TURNS = 2
"""How often a line is shown, for each place that calls its function."""


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
    """

    name: str
    kind: str
    on_gpu: bool
    shape: str
    nbytes: int
    gradients: int = 0
    where: tuple[int, ...] = ()
    slopes: tuple[int, ...] = ()

    @property
    def content(self) -> tuple[Any, ...]:
        """What makes it another thing; its name does not."""
        return self.kind, self.on_gpu, self.nbytes, self.gradients, self.where


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
        self._now: Stop | None = None
        self._frame: FrameType | None = None
        self._again = False  # the line goes on, after a function that it called
        self._spots: dict[FrameType, tuple[int, int]] = {}  # the statement that each frame is in
        self._turns: Counter[tuple[Any, ...]] = Counter()
        self._last: CodeType | None = None  # the code of the last stop that is shown
        self._deaf = self._unwinding = False  # while the tracer reads a loss; while an error is on its way
        self._before: list[Thing] | None = []  # None: lines were passed over since
        self._queue = 0
        self._undo = ExitStack()

    def __enter__(self) -> Filming:
        self._undo.enter_context(_Kernels(self._gpu, self._send))
        self._gpu.log.listener = self._hear
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        sys.settrace(None)
        self._close()
        own = [(frame, line) for frame, line in walk_tb(traceback) if self._is_own(frame.f_code.co_filename)]
        if isinstance(error, Exception) and own:
            frame, line = own[-1]
            self._spots[frame] = _statements(frame.f_code.co_filename).get(line, (line, line))
            self._open(frame).error = f"{type(error).__name__}: {error}"
            self._close()
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
        if (now := self._now) is not None:
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
        if self._now is not None:
            self._now.sent += kernels

    # -- which line it is

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """Follow a frame of the script's own code; what a lambda does belongs to the line that calls it."""
        code = frame.f_code
        if not self._is_own(code.co_filename):
            return None
        return self._follow if code.co_name == "<module>" or not code.co_name.startswith("<") else None

    def _follow(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self._deaf = self._unwinding = False
            spot = _statements(frame.f_code.co_filename).get(frame.f_lineno, (frame.f_lineno, frame.f_lineno))
            if frame is not self._frame or spot != self._spots.get(frame):
                self._close()
                self._spots[frame] = spot
                self._open(frame)
        elif event == "exception":
            self._unwinding = True
        elif event == "return":
            self._close()
            self._spots.pop(frame, None)
            if (caller := self._caller(frame)) is not None and not self._unwinding:
                self._open(caller, again=True)
        return self._follow

    def _caller(self, frame: FrameType) -> FrameType | None:
        """Return the nearest frame of the script that called this one."""
        return next((each for each in outwards(frame) if each is not frame and each in self._spots), None)

    def _open(self, frame: FrameType, *, again: bool = False) -> Stop:
        """Begin a stop; `again` if its line goes on after a function that it called."""
        path = frame.f_code.co_filename
        file = path.removeprefix(self._folder).replace(os.sep, "/")
        if file not in self.texts:
            self.texts[file] = decode_source(Path(path).read_bytes())
        now = Stop(file, *self._spots[frame])
        caller = self._caller(frame)
        turn = file, now.line, again, caller and (caller.f_code.co_filename, self._spots[caller])
        self._turns[turn] += 1
        self._now, self._frame, self._again = now, frame, again
        self._shown = self._turns[turn] <= TURNS
        if self._shown and self._before is None:
            self._before = self._gather(frame)
        return now

    def _close(self) -> None:
        now, frame = self._now, self._frame
        if now is None or frame is None:
            return
        self._now = self._frame = None
        if not (self._shown or now.error):
            self._before = None  # gathering it in each turn would take long
            if now.acts and frame.f_code is self._last:
                self.stops[-1].more = True
            return
        now.queue, now.before, now.things = self._queue, self._before or [], self._gather(frame)
        self._before = now.things
        old, new = ({each.content for each in side} for side in (now.before, now.things))
        code = self.texts[now.file].split("\n")[now.line - 1 : now.last]
        now.clock = any(map(_CLOCK.search, code))
        if now.acts or now.error or now.clock or new - old or (old - new and not self._again):
            blocks = {each: size for thing in now.things for each, size in self._blocks(thing)}
            now.unnamed = max(0, self._gpu.memory().allocated - sum(blocks.values()))
            self.stops.append(now)
            self._last = frame.f_code

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
        spaces = [each.f_locals for each in outwards(frame) if self._is_own(each.f_code.co_filename)]
        for space in [*spaces, frame.f_globals]:
            for name, value in list(space.items()):
                if name != "_" and not name.startswith("__") and (name, id(value)) not in seen:
                    seen.add((name, id(value)))
                    yield from self._held(name, value)

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
                yield Thing(name, kind, on_gpu, held, _nbytes(part), _nbytes(slopes), where, beside)


_ATEN = torch.ops.aten
_COPIES = _ATEN.copy_.default, _ATEN._to_copy.default, _ATEN.clone.default
"""Operators that take a tensor from one side to the other, if it is not on the same one."""


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells how many kernels each operator on the GPU takes at least, as a plan counts them."""

    def __init__(self, gpu: PracticeGPU, send: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._gpu, self._send = gpu, send

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        places = [(each, self._gpu.ledger.index(each) >= 0) for each in tensors_in((args, kwargs, result))]
        sides = {on_gpu for each, on_gpu in places if on_gpu or each.dim()}
        if True in sides and not (False in sides and func in _COPIES):
            self._send(cost(func, args, kwargs, result).launches)
        return result


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
            found[key] = replace(known, name=f"{known.name}, {each.name}")
            continue
        whole = wholes.setdefault(place, each)
        part = whole is not each and each.kind == "tensor"
        found[key] = replace(each, shape=f"{each.shape}, part of {whole.name}") if part else each
    yield from found.values()


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
