"""What a review needs to know of a run, noted as the script makes it: steps, waits, copies, graphs, loaders."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from gpulesson.porting.record import FACTORIES, RANDOM, Watch, _first, _Made, _tensors
from gpulesson.practice.device.events import is_ours

Place = tuple[str, int]
"""A file, seen from the script's folder, and a line."""
MADE = FACTORIES - {"tensor", "as_tensor"}  # these two copy what the host has
_READS = {"item": ".item()", "tolist": ".tolist()", "cpu": ".cpu()", "to": '.to("cpu")'}
_READS |= {"__float__": "float()", "__int__": "int()", "__repr__": "print", "__format__": "print"}
_WINDOW = 6
"""So many earlier calls of a line are looked at, to see whether their graphs are still there."""


@dataclass
class Feed:
    """A loader: its settings, the lines where a loop over it began, its batches, those that were trained on."""

    place: Place
    size: int
    batch: int
    drop_last: bool
    workers: int
    persistent: bool
    pinned: bool
    sequential: bool
    starts: list[Place] = field(default_factory=list)
    draws: int = 0
    labels: int = 0
    trained: set[int] = field(default_factory=set)


@dataclass
class Calls:
    """
    Calls of a model by one line: `tracked` ones made a graph, and a backward pass has `used` some of these.

    `quiet` ones made none, once the model had been trained, with `layers` that then have to be switched off;
    `calm` ones had no such layers. `fed`, `random`: what went in came from a loader, from random numbers.
    """

    model: str
    tracked: int = 0
    used: int = 0
    quiet: int = 0
    calm: int = 0
    layers: set[str] = field(default_factory=set)
    ticks: list[int] = field(default_factory=list)
    fed: bool = False
    random: bool = False


@dataclass
class Copies:
    """Copies to the GPU by one line, of batches of a loader or of what a factory of PyTorch has made."""

    ticks: list[int] = field(default_factory=list)
    nbytes: int = 0
    images: list[bool] = field(default_factory=list)


@dataclass
class Stepping:
    """An optimizer: its steps, those `without` any gradient, the dtypes of what it trains on the GPU."""

    place: Place
    name: str
    steps: int = 0
    without: int = 0
    dtypes: set[str] = field(default_factory=set)


@dataclass
class Kept:
    """Graphs of one line that stay alive: `alive` of so many, held by a name; its line, 0 if not known."""

    alive: int
    number: int
    name: str
    place: Place


@dataclass
class Evidence:
    """All of it; places are lines of the reader's files, ticks are moments in the order of the run."""

    steps: dict[Place, list[int]] = field(default_factory=dict)
    reads: dict[tuple[Place, str], list[int]] = field(default_factory=dict)
    copies: dict[tuple[Place, int | str], Copies] = field(default_factory=dict)
    calls: dict[Place, Calls] = field(default_factory=dict)
    feeds: list[Feed] = field(default_factory=list)
    optimizers: list[Stepping] = field(default_factory=list)
    kept: dict[Place, Kept] = field(default_factory=dict)
    plain: list[tuple[str, str, str, int]] = field(default_factory=list)
    means: set[Place] = field(default_factory=set)
    half: Place | None = None
    scaled: bool = False
    on_gpu: bool = False
    models: int = 0


@dataclass
class _Plain:
    """A tensor that is a plain attribute of a module, since before its first call."""

    name: str
    tensor: torch.Tensor
    version: int
    file: str
    owner: str
    uses: int = 0
    calls: int = 0


class _Token:
    """Hangs at a model's output: a backward pass that comes there calls it, and it dies with the graph."""

    def __init__(self, told: Callable[[_Token], None], **facts: Any) -> None:
        self.told: Callable[[_Token], None] | None = told
        self.facts = facts

    def __call__(self, _: Any) -> None:
        if self.told is not None:
            self.told(self)
            self.told = None


class Observer(Watch):
    """
    Notes what a review needs, too; leaves it in ``record.evidence``.

    Parameters
    ----------
    folder, seconds
        As :class:`Watch` has them.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder, seconds)
        self.record.evidence = self.evidence = Evidence()
        self._tick = functools.partial(next, itertools.count())
        self._feeds: weakref.WeakKeyDictionary[Any, Feed] = weakref.WeakKeyDictionary()
        self._sources: weakref.WeakKeyDictionary[_Made, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._optimizers: weakref.WeakKeyDictionary[Any, Stepping] = weakref.WeakKeyDictionary()
        self._attributes: weakref.WeakKeyDictionary[Any, list[_Plain]] = weakref.WeakKeyDictionary()
        self._plain: dict[int, _Plain] = {}
        self._graphs: dict[Place, deque[list[Any]]] = {}
        self._learners: weakref.WeakSet[Any] = weakref.WeakSet()
        self._layers: set[str] = set()
        self._half = False
        self._since = 99  # steps since a batch was drawn
        self._roots: set[int] = set()

    def __enter__(self) -> Observer:
        with ExitStack() as undo:
            for owner, name, replacement in (
                (DataLoader, "__iter__", self._start),
                (torch.amp.GradScaler, "scale", self._scale),
            ):
                original = getattr(owner, name)
                undo.enter_context(
                    mock.patch.object(owner, name, functools.wraps(original)(replacement(original)))
                )
            undo.callback(optimizers.register_optimizer_step_post_hook(self._stepped).remove)
            super().__enter__()
            self._undo_more = undo.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._undo_more.close()
        self.evidence.models = len(self._learners)
        for each in self._plain.values():
            if each.uses and each.calls >= 3:
                self.evidence.plain.append((each.file, each.owner, each.name, each.uses))

    def _place(self, frame: FrameType | None, direct: bool = False) -> Place | None:
        """Return the innermost line of the script; None if there is none, or it does not call `direct` itself."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self._folder):
                return name.removeprefix(self._folder).replace("\\", "/"), frame.f_lineno
            if direct and not (is_ours(name) or name == __file__ or name.endswith(_BETWEEN)):
                return None
            frame = frame.f_back
        return None

    # -- tensors

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if self._plain and self._inside and name != "__get__":
            for each in _tensors((args, kwargs)):
                if id(each) in self._plain:
                    self._plain[id(each)].uses += 1
        if isinstance(result, torch.Tensor) and result.is_cuda:
            self.evidence.on_gpu = True
            source = args[1] if name == "copy_" else first
            if name in ("to", "cuda", "copy_") and isinstance(source, torch.Tensor) and not source.is_cuda:
                self._copied(source)
            means = (kwargs or {}).get("reduction", "") == "mean" and not result.dim()
            if means and (place := self._place(sys._getframe(1))):
                self.evidence.means.add(place)
        elif name in _READS and isinstance(first, torch.Tensor) and first.is_cuda and torch.is_grad_enabled():
            self._read(first, name, kwargs or {})
        return result

    def _copied(self, source: torch.Tensor) -> None:
        made, place = self._of(source), self._place(sys._getframe(1))
        if made is None or place is None:
            return
        key = self._sources[made][0] if made in self._sources else made.by
        if isinstance(key, str) and key not in MADE:
            return
        copies = self.evidence.copies.setdefault((place, key), Copies())
        copies.ticks.append(self._tick())
        copies.nbytes += source.numel() * source.element_size()
        if len(copies.images) < 3:
            copies.images.append(_were_bytes(source))

    def _read(self, tensor: torch.Tensor, name: str, options: dict[str, Any]) -> None:
        made = self._of(tensor)
        fed = self._since <= 2 and not (made and made.by in ("to", "cuda"))
        with torch._C.DisableTorchFunction():
            loss = tensor.untyped_storage()._cdata in self._roots
        place = self._place(sys._getframe(2), direct=True)
        if place and (fed or loss) and not options.get("non_blocking"):
            self.evidence.reads.setdefault((place, _READS[name]), []).append(self._tick())

    # -- loaders

    def _start(self, original: Any) -> Any:
        def start(loader: Any) -> Any:
            iterator = original(loader)
            place = self._place(sys._getframe(1))
            plain = not isinstance(loader.dataset, IterableDataset) and loader.batch_size is not None
            if place and plain:
                if loader not in self._feeds:
                    feed = Feed(
                        place,
                        len(loader.dataset),
                        loader.batch_size,
                        loader.drop_last,
                        loader.num_workers,
                        loader.persistent_workers,
                        loader.pin_memory,
                        type(loader.sampler) is SequentialSampler,
                    )
                    self._feeds[loader] = feed
                    self.evidence.feeds.append(feed)
                self._feeds[loader].starts.append(place)
                iterator.__dict__["_review"] = self._feeds[loader]
            return iterator

        return start

    def _draw(self, original: Any) -> Any:
        watched = super()._draw(original)

        def draw(iterator: Any) -> Any:
            batch = watched(iterator)
            feed: Feed | None = getattr(iterator, "_review", None)
            self._since = 0
            if feed is not None:
                feed.draws += 1
                with torch._C.DisableTorchFunction():
                    tensors = _tensors(batch)
                    many = any(each.is_floating_point() and each.dim() > 1 for each in tensors)
                    classes = any(each.dtype == torch.int64 and each.dim() == 1 for each in tensors)
                    feed.labels += many and classes
                number = next(place for place, each in enumerate(self.evidence.feeds) if each is feed)
                for each in tensors:
                    if (made := self._of(each)) is not None:
                        self._sources[made] = number, feed.draws
            return batch

        return draw

    # -- models

    def _call(self, original: Any) -> Any:
        watched = super()._call(original)

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            place = None if self._inside else self._place(sys._getframe(1), direct=True)
            if not self._inside:
                self._layers, self._half = set(), False
            self._look_at(module)
            result = watched(module, *args, **kwargs)
            if place is not None:
                with torch._C.DisableTorchFunction():
                    self._called(module, place, (args, kwargs), result)
            return result

        return call

    def _look_at(self, module: nn.Module) -> None:
        if module.training:
            dropout = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
            dropout |= isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1
            norm = isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
            if dropout or norm:
                self._layers.add(type(module).__name__)
        if torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") is torch.float16:
            self._half = True
        code = getattr(type(module).forward, "__code__", None)
        if code is None or not code.co_filename.startswith(self._folder):
            return
        with torch._C.DisableTorchFunction():
            if module not in self._attributes:
                file = code.co_filename.removeprefix(self._folder).replace("\\", "/")
                self._attributes[module] = [
                    _Plain(name, value, value._version, file, type(module).__name__)
                    for name, value in vars(module).items()
                    if type(value) is torch.Tensor and value.is_leaf and not value.requires_grad
                ]
                self._plain.update((id(each.tensor), each) for each in self._attributes[module])
            for each in self._attributes[module]:
                each.calls += 1
                if vars(module).get(each.name) is not each.tensor or each.tensor._version != each.version:
                    self._plain.pop(id(each.tensor), None)  # it changes: it is a state

    def _called(self, module: nn.Module, place: Place, given: Any, result: Any) -> None:
        if not any(each.requires_grad for each in module.parameters()):
            return
        calls = self.evidence.calls.setdefault(place, Calls(type(module).__name__))
        outputs = [each for each in _tensors(result) if each.requires_grad and each.grad_fn is not None]
        made = self._lineage(given)
        sources = [self._sources[each] for each in made if each in self._sources]
        calls.random |= any(each.by.rstrip("_") in RANDOM for each in made)
        if torch.is_grad_enabled() and outputs:
            calls.tracked += 1
            calls.layers |= self._layers
            entry: list[Any] = [None, None]
            token = _Token(
                self._reached, calls=calls, entry=entry, sources=sources, place=self._half and place
            )
            token.facts["module"] = weakref.ref(module)
            entry[0] = weakref.ref(token)
            self._graphs.setdefault(place, deque(maxlen=40)).append(entry)
            for each in outputs:
                with suppress(RuntimeError):
                    each.register_hook(token)
                    each.grad_fn.metadata["gpulesson"] = token
        elif not torch.is_grad_enabled() and module in self._learners:
            calls.quiet += bool(self._layers)
            calls.calm += not self._layers
            calls.layers |= self._layers
            calls.fed |= bool(sources)
            calls.ticks.append(self._tick())

    def _lineage(self, given: Any) -> set[_Made]:
        """Return how all was made that a call is given, as far back as is known."""
        waiting = [made for each in _tensors(given) if (made := self._of(each)) is not None]
        seen: set[_Made] = set()
        while waiting and len(seen) < 60:
            made = waiting.pop(0)
            if made not in seen:
                seen.add(made)
                waiting += made.parents
        return seen

    def _reached(self, token: _Token) -> None:
        facts = token.facts
        facts["entry"][1] = self.passes
        facts["calls"].used += 1
        for feed, draw in facts["sources"]:
            self.evidence.feeds[feed].trained.add(draw)
        if (module := facts["module"]()) is not None:
            self._learners.add(module)
        if facts["place"] and self.evidence.half is None:
            self.evidence.half = facts["place"]

    # -- steps

    def _scale(self, original: Any) -> Any:
        def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self.evidence.scaled |= scaler.is_enabled()
            return original(scaler, *args, **kwargs)

        return scale

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        place = self._place(sys._getframe(1))
        if place is None:
            return
        with torch._C.DisableTorchFunction():
            facts = self._optimizers.get(optimizer)
            if facts is None:
                facts = self._optimizers[optimizer] = Stepping(place, type(optimizer).__name__)
                self.evidence.optimizers.append(facts)
            trained = [each for group in optimizer.param_groups for each in group["params"]]
            trained = [each for each in trained if each.grad is not None]
            facts.steps += 1
            facts.without += not trained
            facts.dtypes |= {str(each.dtype) for each in trained if each.is_cuda}
        self.evidence.steps.setdefault(place, []).append(self._tick())
        self._since += 1

    def _backward(self, original: Any) -> Any:
        watched = super()._backward(original)

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            with torch._C.DisableTorchFunction():
                self._find_kept(self._frames(sys._getframe(1)))
                self._roots = {each.untyped_storage()._cdata for each in _tensors(tensors)}
            return watched(tensors, *args, **kwargs)

        return backward

    def _find_kept(self, frames: list[FrameType]) -> None:
        """Look for graphs that are alive although their backward pass is two passes ago."""
        for place, entries in self._graphs.items():
            old = [ref for ref, passed in entries if passed is not None and self.passes - passed >= 2]
            old = old[-_WINDOW:]
            for collect in (lambda: None, gc.collect):
                collect()
                alive = {id(token) for ref in old if (token := ref()) is not None}
                if len(alive) < _WINDOW - 1 or place in self.evidence.kept:
                    break
            else:
                for frame in reversed(frames):
                    if held := self._holder(frame, alive):
                        self.evidence.kept[place] = Kept(len(alive), len(old), *held)
                        break

    def _holder(self, frame: FrameType, alive: set[int]) -> tuple[str, Place] | None:
        """Return the name in a frame of what holds graphs."""
        own = getattr(_first(frame), "__dict__", {})
        values = {**frame.f_locals, **{f"self.{name}": value for name, value in own.items()}}
        file = frame.f_code.co_filename.removeprefix(self._folder).replace("\\", "/")
        for name, value in values.items():
            if isinstance(value, torch.Tensor | list | tuple | dict | deque):
                leaves = [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]
                if len(_tokens(leaves[-50:]) & alive) >= _WINDOW - 1:
                    made = self._of(value) if isinstance(value, torch.Tensor) else None
                    spot = self._spot(*made.calls[-1]) if made and made.calls else None
                    return name, (spot.file, spot.line) if spot else (file, 0)
        return None


_BETWEEN = ("_tensor.py", "overrides.py", "_contextlib.py", "record.py")


def _tokens(tensors: list[torch.Tensor]) -> set[int]:
    """Return the tokens in the graphs of tensors."""
    waiting: list[Any] = [each.grad_fn for each in tensors if each.grad_fn is not None]
    seen, tokens = set(waiting), set()
    while waiting and len(seen) < 20_000:
        node = waiting.pop()
        tokens.add(id(node.metadata.get("gpulesson")))
        new = {below for below, _ in node.next_functions if below is not None} - seen
        seen |= new
        waiting += new
    return tokens


def _were_bytes(tensor: torch.Tensor) -> bool:
    """Return whether these are images whose values were bytes, divided by 255."""
    if tensor.dtype != torch.float32 or tensor.dim() != 4:
        return False
    values = tensor.double() * 255
    whole = (values - values.round()).abs().max() < 1e-3
    return bool(whole and values.min() >= 0 and 0 < values.max() < 256)


def memory(run: Callable[[], object]) -> str:
    """Return what a step needs in a line, "" if that cannot be said."""
    from gpulesson.planning import ProgramFailed
    from gpulesson.planning.memory.fitting import CONTEXT
    from gpulesson.planning.plan import plan
    from gpulesson.practice.sizes import format_size

    try:
        found = plan(run, steps=3)
    except (Exception, SystemExit, ProgramFailed):
        return ""
    if not found.record.steps or not found.record.batch_size:
        return ""
    fits = ", ".join(f"{each.gpu.name}: {each.verdict.answer}" for each in found.gpus)
    return (
        f"A step with a batch of {found.record.batch_size:,} needs {format_size(found.replay.peak_reserved)} "
        f"of GPU memory; CUDA itself takes {format_size(CONTEXT.least)} to {format_size(CONTEXT.most)} more. {fits}."
    )
