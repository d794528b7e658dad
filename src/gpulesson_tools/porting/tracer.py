"""Follows a script: what it trains, its losses, where each tensor comes from, what an error was about.

Tensors and modules are known by identity, under whatever names the frames of the script's own files have for
them, with the expression that made them.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset, dataloader
from torch.utils.weak import WeakIdKeyDictionary

from gpulesson_tools.planning.recording.dry import tensors_in
from gpulesson_tools.porting.facts import IN_FULL, Failure, Name, Run, Scene, Spot, Thing
from gpulesson_tools.programs.execution import Finished
from gpulesson_tools.programs.hooks import Call, caller
from practice_gpu.device.events import is_library, is_ours

_DRAWING = frozenset(("rand", "randint", "randn", "randperm"))
RANDOM = _DRAWING | {"normal", "bernoulli", "multinomial"}
FACTORIES = _DRAWING | {"arange", "empty", "eye", "full", "linspace", "logspace", "normal", "ones"}
FACTORIES |= {"tensor", "as_tensor", "zeros"}
"""Functions of :mod:`torch` that make a tensor, of no other, and take ``device=``."""
_Call = tuple[CodeType, int]
"""A place in compiled code: an instruction that was running."""
_WORK = frozenset(("linear", "matmul", "__matmul__", "__rmatmul__", "mm", "mv", "bmm", "addmm", "baddbmm"))
_WORK |= {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "lstm", "gru", "rnn_tanh"}
_WORK |= {"einsum", "embedding", "scaled_dot_product_attention", "multi_head_attention_forward"}
"""Functions that do what a GPU is for."""
_OFTEN = 3
"""A line that works this often on the CPU is a computation, not a preparation."""
_UNCOUNTED = frozenset(("to", "cpu", "cuda", "untyped_storage", "__get__"))
_BACK = 40
"""Of the tensors that a tensor was made of, this many are described at most."""
_PARENTS = 4
"""Of the tensors that go into one that is changed in place, this many are kept at most."""


@dataclass(eq=False)
class Origin:
    """How a tensor came to be; kept as long as something that was made of it is known."""

    calls: tuple[_Call, ...]
    by: str
    parents: tuple[Origin, ...] = ()
    drawn: bool = False
    fed: bool = False
    on_gpu: bool = False
    asks: bool = False
    passes: int = 0
    tensor: Callable[[], torch.Tensor | None] = lambda: None


class Tracer:
    """Notes in `run` what a script does, as a listener of :class:`~gpulesson_tools.programs.hooks.Hooks`.

    Parameters
    ----------
    folder : Path
        That of the script: code of files in it is the script's own.
    seconds : float
        After this time, or ``IN_FULL`` backward passes, the next one ends the script.
    rounds_up : bool
        Each product differs in its last digit, to tell how much the losses depend on rounding.
    """

    def __init__(self, folder: Path, seconds: float, rounds_up: bool = False) -> None:
        self.run = Run()
        self.passes = self.batches = 0  # backward passes; batches, and calls of models without gradients
        self._rounds_up = rounds_up
        self._folder = f"{folder}{os.sep}"
        self._end = time.monotonic() + seconds
        self._made: dict[int, Origin] = {}
        self._storages: dict[int, tuple[weakref.ref[Any], Origin]] = {}
        self._modules: Any = WeakIdKeyDictionary()
        self._failed: tuple[BaseException, list[torch.Tensor]] | None = None
        self.inside = 0  # modules that are being called, one within another
        self._drawing = self._in_grad = 0
        self._before = 0  # calls, when a loader was asked for a batch
        self._used: list[weakref.ref[Any]] = []
        self._calling: Any = WeakIdKeyDictionary()
        self._moves: dict[_Call, bool] = {}
        self._work: Counter[_Call] = Counter()
        self._worked: dict[_Call, Scene] = {}
        self._sent: set[_Call] = set()
        self._filled: set[_Call] = set()

    def finish(self) -> None:
        self.run.idle = [self.spot(*call) for call, moved in self._moves.items() if not moved]
        self.run.on_cpu = [seen for call, seen in self._worked.items() if call not in self._sent]

    # -- tensors

    def end_function(self, call: Call) -> None:
        """Count a function, and keep what it was given if it has failed."""
        self.run.calls += call.name not in _UNCOUNTED
        if call.error is not None:
            self._failed = call.error, tensors_in((call.args, call.kwargs))

    def after_function(self, call: Call) -> None:
        name, args, kwargs, result = call.name, call.args, call.kwargs, call.result
        if self._drawing:  # of what makes a batch, only the batch is noted
            return
        if name == "to" and (frame := next(self._own(sys._getframe()), None)) is not None:
            spot = _running(frame)
            self._moves[spot] = result is not args[0] or self._moves.get(spot, False)
        if name in ("to", "cuda") and isinstance(result, torch.Tensor) and result.is_cuda:
            sources = filter(None, map(self.origin, tensors_in(args[:1])))  # a preparation for the GPU
            for each in itertools.islice(lineage(sources), _BACK):
                self._sent |= {*each.calls[-1:]}
        if name == "__setitem__":
            result = args[0]
            self._fill(args[0], args[-1])
        if isinstance(result, torch.Tensor | tuple | list):
            self._note(result, name, (args, kwargs))
            if name in _WORK:
                self._works(tensors_in(result)[0], tensors_in((args, kwargs)))
                if self._rounds_up:
                    self._round_up(tensors_in(result), tensors_in((args, kwargs)))

    def _fill(self, tensor: torch.Tensor, value: Any) -> None:
        """Note a tensor on the CPU that gets results of the GPU which are trained."""
        if isinstance(value, torch.Tensor) and value.is_cuda and value.requires_grad and not tensor.is_cuda:
            frames = self.frames(sys._getframe())
            if frames and (call := _running(frames[-1])) not in self._filled:
                self._filled.add(call)
                self.run.filled.append(self._scene([tensor], frames))

    @staticmethod
    def _round_up(results: list[torch.Tensor], given: list[torch.Tensor]) -> None:
        """Change products as little as another order of their sums may, but not what they are views of."""
        with torch._C.DisableTorchFunction():
            known = {each.untyped_storage().data_ptr() for each in given if each.layout is torch.strided}
            for each in results:
                dense = each.is_floating_point() and each.layout is torch.strided
                if dense and each.untyped_storage().data_ptr() not in known:
                    each.data.mul_(1 + torch.finfo(each.dtype).eps)

    def _works(self, result: torch.Tensor, given: list[torch.Tensor]) -> None:
        """Note a line that computes on the CPU, and with nothing that came from the GPU."""
        made = self.origin(result)
        if made is not None and not any(each.on_gpu for each in itertools.islice(lineage([made]), _BACK)):
            self._stays(given, self.frames(sys._getframe()))

    def _stays(self, tensors: list[torch.Tensor], frames: list[FrameType]) -> None:
        if frames:
            call = _running(frames[-1])
            self._work[call] += 1
            if self._work[call] == _OFTEN:
                self._worked[call] = self._scene(tensors, frames)

    def _note(self, result: Any, by: str, given: Any) -> None:
        results = tensors_in(result)
        found = [each for each in results if self.origin(each) is None]
        if found:
            parents = tuple(map(self._noted, tensors_in(given)))
            drawn, calls = _in_dataset(sys._getframe()), self._calls(sys._getframe())
            for each in found:
                self._keep(each, Origin(calls, by, parents, drawn))
        elif by.endswith("_") and results and not results[0].requires_grad:  # what it is made of grows
            made, others = self._noted(results[0]), map(self._noted, tensors_in(given))
            if len(made.parents) < _PARENTS:
                made.parents += tuple(each for each in others if each not in (made, *made.parents))

    def _keep(self, tensor: torch.Tensor, made: Origin) -> None:
        key = id(tensor)
        made.tensor = weakref.ref(tensor, lambda _: self._made.pop(key, None))
        made.on_gpu, made.asks = tensor.is_cuda, tensor.requires_grad
        self._made[key] = made
        storage = address(tensor)
        known = self._storages.get(storage)
        if storage and (known is None or known[0]() is None):
            self._storages[storage] = weakref.ref(tensor.untyped_storage()), made

    def origin(self, tensor: torch.Tensor) -> Origin | None:
        """Return how a tensor came to be; None if it has not been seen."""
        return self._made.get(id(tensor))

    def _noted(self, tensor: torch.Tensor) -> Origin:
        """Return how a tensor came to be; note it if nothing is known but that it shares its memory."""
        made = self.origin(tensor)
        if made is None:
            known = self._storages.get(address(tensor))
            made = Origin((), "", () if known is None or known[0]() is None else (known[1],))
            self._keep(tensor, made)
        return made

    def _own(self, frame: FrameType) -> Iterator[FrameType]:
        """Yield the frames of the script's own files, innermost first."""
        return (each for each in outwards(frame) if each.f_code.co_filename.startswith(self._folder))

    def frames(self, frame: FrameType) -> list[FrameType]:
        return [*self._own(frame)][::-1]

    def _calls(self, frame: FrameType) -> tuple[_Call, ...]:
        return tuple(map(_running, self.frames(frame)))

    def after_from_numpy(self, call: Call) -> None:
        self._note(call.result, "from_numpy", ())

    def before_batch(self, call: Call) -> None:
        self._drawing += 1
        self._before = self.run.calls

    def end_batch(self, call: Call) -> None:
        self._drawing -= 1
        if isinstance(call.first, dataloader._MultiProcessingDataLoaderIter):
            self.run.calls = self._before  # how many batches its workers have sent by now is chance

    def after_batch(self, call: Call) -> None:
        self.batches += 1
        calls = self._calls(sys._getframe())
        for each in tensors_in(call.result):
            self._keep(each, Origin(calls, "DataLoader", drawn=True))

    def before_row(self, call: Call) -> None:
        """Note that a dataset takes its samples from its tensors."""
        for each in call.first.tensors:
            for made in itertools.islice(_line(self._noted(each)), _BACK):
                made.fed = True

    def after_load(self, call: Call) -> None:
        """Note a file that has brought tensors to the GPU because they were saved from there."""
        leaves = tree_leaves(
            [each.state_dict() if isinstance(each, nn.Module) else each for each in tree_leaves(call.result)]
        )
        on_gpu = any(isinstance(each, torch.Tensor) and each.is_cuda for each in leaves)
        calls = self._calls(sys._getframe())
        if on_gpu and len(call.args) < 2 and call.kwargs.get("map_location") is None and calls:
            self.run.loads.append(self.spot(*calls[-1]))

    # -- modules

    def after_new_module(self, call: Call) -> None:
        """Note where a module is made, outside of its own ``__init__``."""
        frame = caller()
        while frame.f_code.co_name == "__init__" and first_of(frame) is call.first and frame.f_back:
            frame = frame.f_back
        self._modules[call.first] = self._calls(frame)

    def before_module(self, call: Call) -> None:
        module: nn.Module = call.first
        self.inside += 1
        if self.inside == 1 and not self._drawing and module not in self._calling:
            self._calling[module] = True
            leaf = next(itertools.chain(module.parameters(), module.buffers()), None)
            if leaf is not None and not _in_dataset(sys._getframe()):
                self._uses(self._roots_of_modules()(leaf) or module, leaf, self.frames(sys._getframe()))

    def end_module(self, call: Call) -> None:
        self.inside -= 1
        if not self.inside and not torch.is_grad_enabled():
            self.batches += 1

    def _roots_of_modules(self) -> Callable[[torch.Tensor], nn.Module | None]:
        """Return what finds the outermost module that registers a tensor; of several, the one made first."""
        above: dict[int, nn.Module] = {}
        seen: set[nn.Module] = set()
        for module in (each for known in list(self._modules) for _, each in known.named_modules(seen)):
            for part in (module._parameters, module._buffers, module._modules):
                for each in part.values():
                    above.setdefault(id(each), module)
        above.pop(id(None), None)

        def root(tensor: torch.Tensor) -> nn.Module | None:
            found = above.get(id(tensor))
            while found is not None and id(found) in above:
                found = above[id(found)]
            return found

        return root

    # -- losses

    def before_backward(self, call: Call) -> None:
        self.run.made_text |= _by_exec(sys._getframe())
        self._find_trained(roots_of(call), self.frames(sys._getframe()))

    def after_backward(self, call: Call) -> None:
        """Note its loss; end the script if it has run for long enough."""
        self.passes += 1
        with torch._C.DisableTorchFunction(), torch.no_grad():
            value = sum(float(each.detach().double().sum().cpu()) for each in roots_of(call))
        self.run.losses.append(value)
        if time.monotonic() > self._end or self.passes > IN_FULL:
            raise Finished

    def before_grad(self, call: Call) -> None:
        """Count it as a backward pass, unless it is PyTorch's own second call, or a part of a loss."""
        self._in_grad += 1
        if self._in_grad == 1 and not call.kwargs.get("create_graph"):
            self.before_backward(call)

    def end_grad(self, call: Call) -> None:
        self._in_grad -= 1

    def after_grad(self, call: Call) -> None:
        if not (self._in_grad or call.kwargs.get("create_graph")):
            self.after_backward(call)

    def _find_trained(self, roots: list[torch.Tensor], frames: list[FrameType]) -> None:
        root = self._roots_of_modules()
        leaves = [node.variable for node in graph(roots) if hasattr(node, "variable")]
        if not any(each.is_cuda for each in leaves):
            self._stays(leaves, frames)
        for leaf in leaves:
            thing: Any = root(leaf)
            if thing is None:  # an input that asks for a gradient is there for one pass only
                made = self._noted(leaf)
                made.passes += 1
                if made.passes < 2 or any(each.drawn for each in itertools.islice(_line(made), _BACK)):
                    continue
                thing = leaf
            self._uses(thing, leaf, frames)

    def _uses(self, thing: Any, leaf: torch.Tensor, frames: list[FrameType]) -> None:
        if all(each() is not thing for each in self._used):
            self._used.append(weakref.ref(thing))
            self.run.used.append((self.describe(thing, frames, leaf), self._spots(map(_running, frames))))

    # -- what the run says of them

    def file(self, code: CodeType) -> str:
        """Return the script's file that has this code, as seen from its folder; "" if it is another's."""
        name = code.co_filename
        return name.removeprefix(self._folder).replace(os.sep, "/") if name.startswith(self._folder) else ""

    def spot(self, code: CodeType, at: int) -> Spot:
        places = next(itertools.islice(code.co_positions(), at // 2, None), (0, 0, 0, 0))
        line, end_line, column, end_column = (place or 0 for place in places)
        return Spot(self.file(code), code.co_name, line, column, end_line, end_column)

    def describe(self, thing: Any, frames: list[FrameType], leaf: Any = None) -> Thing:
        """Return what is known of a tensor or a module, with the names that these frames have for it."""
        names = tuple(_names(thing, frames))
        if isinstance(thing, nn.Module):
            calls = self._modules.get(thing, ())
            device = str(next(itertools.chain(thing.parameters(), thing.buffers()), leaf).device)
            return Thing(device, names, self._spots(calls), type(thing).__name__, is_module=True)
        line = itertools.islice(_line(self._noted(thing)), _BACK)
        first, *others = (self._described(each.tensor(), each, frames) for each in line)
        return replace(first, ancestors=tuple(others))

    def _described(self, tensor: torch.Tensor | None, made: Origin, frames: list[FrameType]) -> Thing:
        line = list(itertools.islice(_line(made), _BACK))
        owner = None if tensor is None else self._roots_of_modules()(tensor)
        leaf = tensor is not None and tensor.is_leaf and tensor.requires_grad
        leaf = leaf and not any(each.drawn for each in line)
        return Thing(
            "" if tensor is None else str(tensor.device),
            () if tensor is None else tuple(_names(tensor, frames)),
            self._spots(made.calls),
            made.by,
            factory=made.by in FACTORIES,
            random=any(each.by.rstrip("_") in RANDOM for each in line),
            drawn=made.drawn,
            fed=any(each.fed for each in line),
            leaf=leaf,
            ancestors=tuple(self._described(each.tensor(), each, frames) for each in line[1:] if leaf),
            asks=made.asks,
            owner=None if owner is None else self.describe(owner, frames, tensor),
            root=all(each.on_gpu != made.on_gpu for each in made.parents),
        )

    def _spots(self, calls: Iterable[_Call]) -> tuple[Spot, ...]:
        return tuple(self.spot(*call) for call in calls)

    def failure(self, error: BaseException) -> Failure:
        """Return what an error that ended the script was about; its `text` is for others to fill in."""
        frames, spots, entry = [], [], error.__traceback__
        tensors: list[torch.Tensor] = []
        while entry is not None:
            if entry.tb_frame.f_code.co_filename.startswith(self._folder):
                frames.append(entry.tb_frame)
                spots.append(self.spot(entry.tb_frame.f_code, entry.tb_lasti))
                tensors = []
            elif not tensors and is_ours(entry.tb_frame.f_code.co_filename):
                tensors = tensors_in(dict(entry.tb_frame.f_locals))
            entry = entry.tb_next
        if self._failed and self._failed[0] is error:
            tensors = self._failed[1]
        scene = replace(self._scene(tensors, frames), frames=tuple(spots))
        return Failure(**vars(scene), kind=type(error).__name__, message=str(error))

    def _scene(self, tensors: list[torch.Tensor], frames: list[FrameType]) -> Scene:
        """Describe tensors as some frames see them."""
        return Scene(
            self._spots(map(_running, frames)),
            tuple(self.describe(each, frames) for each in tensors),
            tuple(map(is_method, frames)),
            tuple(map(_where, frames)),
        )


def roots_of(call: Call) -> list[torch.Tensor]:
    """Return the tensors that a backward pass begins at."""
    of: Any = call.first if call.args else call.kwargs.get("tensors", call.kwargs.get("outputs"))
    return [of] if isinstance(of, torch.Tensor) else list(of)


def address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage; 0 if it has none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return 0


def _where(frame: FrameType) -> str:
    """Return ``x.device`` for a parameter of a module's method that is on the GPU, or ""."""
    if is_method(frame):
        for name in frame.f_code.co_varnames[1 : frame.f_code.co_argcount]:
            value = frame.f_locals.get(name)
            if isinstance(value, torch.Tensor) and value.is_cuda:
                return f"{name}.device"
    return ""


def _running(frame: FrameType) -> _Call:
    return frame.f_code, frame.f_lasti


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _by_exec(frame: FrameType) -> bool:
    """Return whether the innermost code that is not a library's has no file."""
    names = (each.f_code.co_filename for each in outwards(frame))
    return next((name.startswith("<") for name in names if not is_library(name)), False)


def is_method(frame: FrameType) -> bool:
    """Return whether a frame is of a module's own method."""
    return frame.f_code.co_varnames[:1] == ("self",) and isinstance(first_of(frame), nn.Module)


def _in_dataset(frame: FrameType) -> bool:
    frames = (each for each in outwards(frame) if each.f_code.co_name == "__getitem__")
    return any(isinstance(first_of(each), Dataset) for each in frames)


def attributes_of(thing: Any) -> dict[str, Any]:
    """Return what an object keeps; its own ``__getattr__`` is not asked."""
    try:
        return dict(object.__getattribute__(thing, "__dict__"))
    except AttributeError:
        return {}


def first_of(frame: FrameType) -> Any:
    """Return a function's first parameter."""
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _line(made: Origin) -> Iterator[Origin]:
    """Yield how a tensor was made, then those that it was made of on the same device, nearest first."""
    return lineage([made], lambda parent: parent.on_gpu == made.on_gpu)


def lineage(things: Iterable[Origin], wanted: Callable[[Origin], bool] = lambda _: True) -> Iterator[Origin]:
    """Yield how things were made, and what they were made of if it is wanted, nearest first."""
    waiting = list(things)
    seen = set()
    for each in waiting:
        if each not in seen:
            seen.add(each)
            waiting += filter(wanted, each.parents)
            yield each


def graph(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Yield the nodes of the graph that tensors hang in."""
    waiting: list[Any] = [each.grad_fn for each in tensors if each.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)


def _names(thing: Any, frames: list[FrameType]) -> Iterator[Name]:
    """Yield the names of a thing, those of the outermost frame first."""
    for number, frame in enumerate(frames):
        spaces = [(dict(frame.f_locals), False)]
        if frame.f_locals is not frame.f_globals and frame.f_globals is not frames[0].f_globals:
            spaces.append((frame.f_globals, True))
        for space, shared in spaces:
            for name, value in list(space.items()):
                if name.startswith("__"):
                    continue
                if value is thing:
                    yield Name(number, name, shared=shared)
                elif held := _holds(value, thing):
                    yield Name(number, name, *held, shared=shared)
        owner = first_of(frame)
        is_module = isinstance(owner, nn.Module)
        attributes = {**attributes_of(owner), **(owner._modules if is_module else {})}
        for name, value in attributes.items():
            if value is thing:
                yield Name(number, f"self.{name}", module=is_module)


def _holds(value: Any, thing: Any) -> tuple[str, str] | None:
    """Return what kind of container `value` is, and where in it `thing` is; None if it is not there."""
    try:
        path = _path(value, thing)
    except Exception:  # it is the script's own object, which may answer anything, or fail
        return None
    if path is None:
        return None
    if _has(value, "to") and not isinstance(value, tuple):
        return "other", path
    if path.count("[") > 1:
        return "nested", path
    within = value.values() if isinstance(value, Mapping) else value
    mixed = not all(isinstance(each, torch.Tensor) for each in within)
    kind = type(value).__name__ if type(value) in (list, tuple, dict) else "nested"
    return f"{'mixed ' * mixed}{kind}", path


def _has(value: Any, method: str) -> bool:
    """Return whether the class of a value has a method; the value itself is not asked."""
    return inspect.getattr_static(type(value), method, None) is not None


def _path(value: Any, thing: Any, depth: int = 2) -> str | None:
    if isinstance(value, list | tuple) and len(value) < 10_000:
        pairs: Any = enumerate(value)
    elif isinstance(value, Mapping) and len(value) < 1_000:
        pairs = value.items()
    elif _has(value, "to_dict") and _has(value, "to"):
        return next((f".{key}" for key, each in value.to_dict().items() if each is thing), None)
    else:
        return None
    for key, each in pairs:
        if each is thing:
            return f"[{key!r}]"
        if depth and isinstance(each, list | tuple | Mapping):
            below = _path(each, thing, depth - 1)
            if below is not None:
                return f"[{key!r}]{below}"
    return None
