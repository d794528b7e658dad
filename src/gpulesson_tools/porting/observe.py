"""What a review needs to know of a run, counted while the script runs: steps, waits, copies, graphs."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn
from torch.utils.data import IterableDataset, SequentialSampler

from gpulesson_tools.planning.recording.dry import tensors_in
from gpulesson_tools.porting.facts import LESSONS
from gpulesson_tools.porting.tracer import (
    FACTORIES,
    RANDOM,
    Tracer,
    address,
    attributes_of,
    first_of,
    graph,
    is_method,
    lineage,
    outwards,
    roots_of,
)
from gpulesson_tools.programs.hooks import Call

Place = tuple[str, int]
"""A file, seen from the script's folder, and a line."""
_OURS = frozenset(("gpulesson", "gpulesson_tools", "practice_gpu"))
_BETWEEN = ("_tensor.py", "overrides.py", "_contextlib.py")
_MADE = FACTORIES - {"tensor", "as_tensor"}  # these two copy what the host has
_READS = {"item": ".item()", "tolist": ".tolist()", "cpu": ".cpu()", "to": '.to("cpu")'}
_SETTINGS = ("batch_size", "drop_last", "num_workers", "persistent_workers", "pin_memory")
_READS |= {"__float__": "float()", "__int__": "int()", "__repr__": "print", "__format__": "print"}
_WINDOW = 6
"""Earlier calls of a line that are looked at, to see whether their graphs are still there."""


@dataclass
class Calls:
    """Calls of a model at one line."""

    model: str
    ticks: list[int] = field(default_factory=list)  # when: moments of the run are numbered
    layers: set[str] = field(default_factory=set)  # in training mode, and computing something else in it
    tracked: int = 0  # with a history
    used: int = 0  # of these, those of which a backward pass used some
    tests_training: int = 0  # without a history, of a model that has been trained, with such layers
    tests_evaluating: int = 0  # the same, without such layers
    random: int = 0  # with random inputs
    again: int = 0  # without a history, with the same input as the time before


@dataclass
class Copies:
    """Copies to the GPU at one line, of batches of one loader, or of what one factory made."""

    ticks: list[int] = field(default_factory=list)
    nbytes: int = 0
    waits: int = 0
    images: int = 0  # that were looked at
    were_bytes: int = 0  # of these, those that were bytes divided by 255


@dataclass
class Feed:
    """A loader, as it was set when it last began an epoch."""

    built: Place
    batch_size: int = 0
    drop_last: bool = False
    num_workers: int = 0
    persistent_workers: bool = False
    pin_memory: bool = False
    samples: int = 0
    in_order: bool = False
    draws_all: bool = False
    starts: list[Place] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)  # the sum of each epoch's first batch
    data: set[tuple[Any, ...]] = field(default_factory=set)  # what its dataset held
    draws: int = 0
    labelled: int = 0  # batches of inputs with classes
    trained: set[int] = field(default_factory=set)  # numbers of the batches that were trained on


@dataclass
class Steps:
    """Steps of one optimizer."""

    optimizer: str
    built: Place
    place: Place  # of the last step
    steps: int = 0
    idle: int = 0  # without a gradient
    dtypes: set[str] = field(default_factory=set)


@dataclass
class Kept:
    """What holds old histories: a name, and how many of the last results still have theirs."""

    name: str
    file: str
    line: int  # 0 if it is not known
    alive: int
    results: int


@dataclass
class Constant:
    """A constant tensor that is a plain attribute of a module."""

    file: str
    owner: str
    name: str
    calls: int = 0  # of the module
    uses: int = 0


@dataclass
class Gradients:
    """What became of gradients for one optimizer: a step used them, or they were cleared before it."""

    optimizer: str
    used: int = 0
    wasted: int = 0


@dataclass
class Evidence:
    """What was noted of a run, mostly by line."""

    calls: dict[Place, Calls] = field(default_factory=dict)
    reads: dict[tuple[Place, str], list[int]] = field(default_factory=dict)  # ticks, by what reads
    copies: dict[tuple[Place, int | str], Copies] = field(default_factory=dict)
    steps: dict[Place, list[int]] = field(default_factory=dict)  # ticks
    feeds: dict[int, Feed] = field(default_factory=dict)
    optimizers: dict[int, Steps] = field(default_factory=dict)
    kept: dict[Place, Kept] = field(default_factory=dict)  # by the line of the model's call
    constants: list[Constant] = field(default_factory=list)
    gradients: dict[tuple[Place, int], Gradients] = field(default_factory=dict)
    """Of backward passes, by optimizer; 0 if nothing that another one needs depends on what it trains."""
    parallel: set[Place] = field(default_factory=set)  # where models were spread over one GPU
    means: set[Place] = field(default_factory=set)  # where means over a batch are taken
    half: set[Place] = field(default_factory=set)  # where models are trained in float16
    scaled: bool = False  # a loss was multiplied
    on_gpu: bool = False  # something was on the GPU
    models: int = 0  # that were trained


class Observer:
    """Notes what a review needs, as a listener of ``Hooks`` behind a tracer, in whose run the evidence is."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        tracer.run.evidence = self.evidence = Evidence()
        self._tick = functools.partial(next, itertools.count(1))
        self._built: Any = WeakKeyDictionary()  # of loaders and optimizers: where they were made
        self._numbers: Any = WeakKeyDictionary()  # of loaders and optimizers
        self._sources: Any = WeakKeyDictionary()  # of tensors: number of the loader, and of its batch
        self._constants: Any = WeakKeyDictionary()  # of modules: their constants
        self._by_tensor: dict[int, Constant] = {}
        self._graphs: dict[Place, deque[_Tracked]] = {}
        self._inputs: dict[Place, torch.Tensor | None] = {}  # of the last call without a history
        self._learners: WeakSet[nn.Module] = WeakSet()
        self._layers: set[str] = set()
        self._called_at: Place | None = None  # the line that calls the outermost module
        self._half = self._learning = False
        self._since = 99  # steps since a batch was drawn
        self._roots: set[int] = set()
        self._early: list[tuple[tuple[Place, str], int]] = []  # reads of a batch that may yet be trained on
        self._optimizers: WeakSet[Any] = WeakSet()
        self._needed: dict[Any, bool] = {}  # optimizers for which the backward pass makes gradients
        self._gradients: Any = WeakKeyDictionary()  # of optimizers: the backward passes that made them

    def finish(self) -> None:
        self.evidence.models = len(self._learners)
        found = {(each.file, each.owner, each.name): each for each in self._by_tensor.values()}
        self.evidence.constants = [*found.values()]

    def _place(self, direct: bool = False, outside: bool = False) -> Place | None:
        """Return the script's innermost line, or that outside of modules' methods that has called them.

        None if there is none, or if a library stands between and may not.
        """
        place = None
        for frame in outwards(sys._getframe()):
            name, package = frame.f_code.co_filename, frame.f_globals.get("__name__", "").partition(".")[0]
            if file := self._tracer.file(frame.f_code):
                place = file, frame.f_lineno
                if not (outside and is_method(frame)):
                    break
            elif (direct or place) and package not in _OURS and not name.endswith(_BETWEEN):
                break
        return place

    # -- tensors

    def after_function(self, call: Call) -> None:
        """Note a read, a copy, a mean, the use of a constant."""
        name, args, options, first, result = call.name, call.args, call.kwargs, call.first, call.result
        if self._by_tensor and self._tracer.inside and name != "__get__":
            for each in tensors_in((args, options)):
                if id(each) in self._by_tensor:
                    self._by_tensor[id(each)].uses += 1
        if isinstance(result, torch.Tensor) and result.is_cuda:
            self.evidence.on_gpu = True
            source = args[1] if name == "copy_" else first
            if name in ("to", "cuda", "copy_") and isinstance(source, torch.Tensor) and not source.is_cuda:
                self._copied(source, options.get("non_blocking") or any(each is True for each in args[1:]))
            if options.get("reduction") == "mean" and (place := self._place()):
                self.evidence.means.add(place)
        elif name in _READS and isinstance(first, torch.Tensor) and first.is_cuda:
            made, place = self._tracer.origin(first), self._place(direct=True)
            fed = self._since <= 2 and not (made and made.by in ("to", "cuda"))
            if place and (fed or address(first) in self._roots) and not options.get("non_blocking"):
                self._early.append(((place, _READS[name]), self._tick()))
                if torch.is_grad_enabled() or self._since:  # else it is a test, unless a step follows
                    self._read()

    def _read(self) -> None:
        for key, tick in self._early:
            self.evidence.reads.setdefault(key, []).append(tick)
        self._early.clear()

    def _copied(self, source: torch.Tensor, goes_on: Any) -> None:
        made, place = self._tracer.origin(source), self._place()
        key = self._sources[made][0] if made in self._sources else made.by if made else ""
        if made and key in _MADE and made.calls:  # it could be made on the GPU, if the CPU does not fill it
            filled = not source.is_inference() and source._version > (key == "empty")
            spot = self._tracer.spot(*made.calls[-1])
            place = None if filled else (spot.file, spot.line)
        if place and (isinstance(key, int) or key in _MADE):
            copies = self.evidence.copies.setdefault((place, key), Copies())
            copies.ticks.append(self._tick())
            copies.nbytes += source.numel() * source.element_size()
            copies.waits += not goes_on
            if source.dim() == 4 and copies.images < 3:
                copies.images += 1
                copies.were_bytes += _were_bytes(source)

    # -- loaders, optimizers

    def after_new_loader(self, call: Call) -> None:
        self._built[call.first] = self._place()

    def after_new_optimizer(self, call: Call) -> None:
        self._built[call.first] = self._place()

    def after_epoch(self, call: Call) -> None:
        """Note how a loader is set, at the start of its epoch."""
        loader, iterator, place = call.first, call.result, self._place()
        if place and loader.batch_size and not isinstance(loader.dataset, IterableDataset):
            number = self._numbers.setdefault(loader, self._tick())
            feed = self.evidence.feeds.setdefault(number, Feed(self._built.get(loader) or place))
            for name in _SETTINGS:
                setattr(feed, name, getattr(loader, name))
            feed.samples, feed.draws_all = len(loader.dataset), len(loader.sampler) == len(loader.dataset)
            feed.in_order = type(loader.sampler) is SequentialSampler
            feed.starts.append(place)
            held = attributes_of(loader.dataset)
            feed.data.add(tuple((name, id(value)) for name, value in held.items()))
            iterator.__dict__["_review"] = number

    def after_batch(self, call: Call) -> None:
        iterator, batch, self._since = call.first, call.result, 0
        self._early.clear()
        number: int | None = getattr(iterator, "_review", None)
        if number is not None:
            feed = self.evidence.feeds[number]
            feed.draws += 1
            with torch._C.DisableTorchFunction():
                tensors = tensors_in(batch)
                if iterator.__dict__.setdefault("_first", batch) is batch:
                    feed.firsts.append(sum(float(each.double().sum()) for each in tensors))
                classes = any(each.dtype == torch.int64 and each.dim() == 1 for each in tensors)
                many = any(each.is_floating_point() and each.dim() > 1 for each in tensors)
                feed.labelled += classes and many
            for each in tensors:
                if (made := self._tracer.origin(each)) is not None:
                    self._sources[made] = number, feed.draws

    def after_parallel(self, call: Call) -> None:
        """Note a model that is spread over one GPU."""
        if len(getattr(call.first, "device_ids", ())) == 1 and (place := self._place()):
            self.evidence.parallel.add(place)

    def after_zero_grad(self, call: Call) -> None:
        """Note gradients that no step has used."""
        gone = {id(each) for each in _trained_by(call.first)}
        for optimizer in list(self._gradients):
            if gone >= {id(each) for each in _trained_by(optimizer)}:
                for gradients in self._end_gradients(optimizer):
                    gradients.wasted += 1

    def _end_gradients(self, optimizer: Any) -> Iterator[Gradients]:
        for key in self._gradients.pop(optimizer, ()):
            yield self.evidence.gradients.setdefault(key, Gradients(type(optimizer).__name__))

    def before_step(self, call: Call) -> None:
        """See whether there is anything to learn from."""
        self._learning = any(each.grad is not None for each in _trained_by(call.first))

    def after_step(self, call: Call) -> None:
        """Note a step, and what it trains."""
        optimizer = call.first
        if place := self._place():
            number = self._numbers.setdefault(optimizer, self._tick())
            built = self._built.get(optimizer) or place
            seen = self.evidence.optimizers.setdefault(number, Steps(type(optimizer).__name__, built, place))
            seen.place = place
            with torch._C.DisableTorchFunction():
                trained = [each for each in _trained_by(optimizer) if each.grad is not None]
                seen.dtypes |= {str(each.dtype) for each in trained if each.is_cuda}
            self._optimizers.add(optimizer)
            for gradients in self._end_gradients(optimizer):
                gradients.used += 1
            self._read()
            seen.steps += 1
            seen.idle += not trained and not self._learning
            self.evidence.steps.setdefault(place, []).append(self._tick())
            self._since += 1

    # -- models

    def before_module(self, call: Call) -> None:
        """Look at a module's mode and constants."""
        if self._tracer.inside == 1:
            self._called_at = self._place(direct=True, outside=True)  # other methods may call forward()
            self._layers, self._half = set(), False
        with torch._C.DisableTorchFunction():
            self._look_at(call.first)

    def after_module(self, call: Call) -> None:
        if self._tracer.inside == 0 and self._called_at is not None:
            with torch._C.DisableTorchFunction():
                self._called(call.first, self._called_at, (call.args[1:], call.kwargs), call.result)

    def _look_at(self, module: nn.Module) -> None:
        dropout = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        dropout |= isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1
        norm = isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
        if module.training and (dropout or norm):
            self._layers.add(type(module).__name__)
        self._half |= torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") is torch.float16
        code = getattr(type(module).forward, "__code__", None)
        if code is None or not (file := self._tracer.file(code)):
            return
        if module not in self._constants:
            self._constants[module] = [
                (value, value._version, Constant(file, type(module).__name__, name))
                for name, value in vars(module).items()
                if isinstance(value, torch.Tensor) and value.is_leaf and not value.requires_grad
            ]
            self._by_tensor |= {id(tensor): constant for tensor, _, constant in self._constants[module]}
        for tensor, version, constant in self._constants[module]:
            constant.calls += 1
            if tensor._version != version or vars(module).get(constant.name) is not tensor:  # it is a state
                self._by_tensor.pop(id(tensor), None)

    def _called(self, module: nn.Module, place: Place, given: Any, result: Any) -> None:
        if not any(each.requires_grad for each in module.parameters()):
            return
        calls = self.evidence.calls.setdefault(place, Calls(type(module).__name__))
        calls.ticks.append(self._tick())
        outputs: list[Any] = [
            each for each in tensors_in(result) if each.requires_grad and each.grad_fn is not None
        ]
        first = (how for each in tensors_in(given) if (how := self._tracer.origin(each)) is not None)
        made = set(itertools.islice(lineage(first), 60))
        sources = [self._sources[each] for each in made if each in self._sources]
        calls.random += any(each.by.rstrip("_") in RANDOM for each in made)
        learner, half = ref(module), self._half
        tracked = _Tracked()

        def reached(_: Any) -> None:  # a backward pass calls it; it dies with the graph
            if tracked.reached is None:
                tracked.reached = self._tracer.passes
                calls.used += 1
                for feed, draw in sources:
                    self.evidence.feeds[feed].trained.add(draw)
                self.evidence.half |= {place} if half else set()
                if (trained := learner()) is not None:
                    self._learners.add(trained)

        if torch.is_grad_enabled() and outputs:
            calls.tracked += 1
            calls.layers |= self._layers
            tracked.token = ref(reached)
            self._graphs.setdefault(place, deque(maxlen=40)).append(tracked)
            for each in outputs:
                with suppress(RuntimeError):
                    each.register_hook(reached)
                    each.grad_fn.metadata["gpulesson"] = reached
        elif not torch.is_grad_enabled() and module in self._learners:
            calls.layers |= self._layers
            inputs = tensors_in(given)
            calls.again += bool(inputs) and inputs[0] is self._inputs.get(place)
            self._inputs[place] = inputs[0] if inputs else None
            calls.tests_training += bool(self._layers)
            calls.tests_evaluating += not self._layers

    # -- graphs

    def before_backward(self, call: Call) -> None:
        """Look for old graphs, and for optimizers whose gradients are made."""
        with torch._C.DisableTorchFunction():
            self._find_kept(self._tracer.frames(sys._getframe()))
            roots = roots_of(call)
            self._roots = set(map(address, roots))
            made = [getattr(each.grad_fn, "name", str)() for each in roots]
            self.evidence.scaled |= "MulBackward0" in made
            self._needed = _needed_by(roots, [*self._optimizers]) if len(self._optimizers) > 1 else {}

    def after_backward(self, call: Call) -> None:
        """Note for which optimizers it has made gradients."""
        if (place := self._place()) and not call.kwargs.get("inputs"):
            for optimizer, free in self._needed.items():
                number = self._numbers.setdefault(optimizer, self._tick()) if free else 0
                self._gradients.setdefault(optimizer, []).append((place, number))

    def _find_kept(self, frames: list[FrameType]) -> None:
        """Look for graphs that are alive two passes after their backward pass, and for who holds them."""
        for place, entries in self._graphs.items():
            of = {
                each.reached: each.token for each in entries if each.reached is not None
            }  # one for each pass
            old = [of[passed] for passed in sorted(of) if self._tracer.passes - passed >= 2][-_WINDOW:]
            for collect in (lambda: None, gc.collect):
                collect()
                alive = {id(token()) for token in old if token is not None} - {id(None)}
                if len(alive) < _WINDOW - 1 or place in self.evidence.kept:
                    break
            else:
                for frame in reversed(frames):
                    for name, line in self._holders(frame, alive):
                        file = self._tracer.file(frame.f_code)
                        self.evidence.kept.setdefault(place, Kept(name, file, line, len(alive), len(old)))

    def _holders(self, frame: FrameType, alive: set[int]) -> list[tuple[str, int]]:
        """Return the names in a frame of what holds graphs, with a line; 0 if it is not known."""
        own, found = attributes_of(first_of(frame)), []
        for name, value in {**frame.f_locals, **{f"self.{key}": each for key, each in own.items()}}.items():
            if isinstance(value, torch.Tensor | list | tuple | dict | deque):
                hanging = itertools.islice(graph(tensors_in(value)[-50:]), 20_000)
                tokens = {id(node.metadata.get("gpulesson")) for node in hanging}
                if len(tokens & alive) >= _WINDOW - 1:
                    made = self._tracer.origin(value) if isinstance(value, torch.Tensor) else None
                    line = self._tracer.spot(*made.calls[-1]).line if made and made.calls else 0
                    found.append((name, line))
        return found


@dataclass(eq=False)
class _Tracked:
    """A call of a model: a token that lives as long as its graph, and the backward pass that reached it."""

    token: ref[Any] | None = None
    reached: int | None = None


def _trained_by(owner: Any) -> Iterator[torch.Tensor]:
    """Yield the parameters of a module, or of an optimizer."""
    if isinstance(owner, nn.Module):
        yield from owner.parameters()
    else:
        yield from (each for group in owner.param_groups for each in group["params"])


def _needed_by(roots: list[torch.Tensor], optimizers: list[Any]) -> dict[Any, bool]:
    """Return the optimizers that a backward pass makes gradients for.

    With each, whether the pass could end before it comes there: what it trains is used by nothing through
    which the pass has to go on to what another one trains.
    """
    owners = {id(each): optimizer for optimizer in optimizers for each in _trained_by(optimizer)}
    below: dict[Any, set[Any]] = {}
    found: dict[Any, bool] = {}
    nodes = list(graph(roots))
    for node in nodes:
        if (optimizer := owners.get(id(getattr(node, "variable", None)))) is not None:
            below[node] = {optimizer}
            found[optimizer] = True
    if len(found) < 2:
        return found
    waiting = [each.grad_fn for each in roots if each.grad_fn is not None]
    while waiting:  # those below first
        node = waiting[-1]
        nexts = [each for each, _ in node.next_functions if each is not None]
        if open_ := [each for each in nexts if each not in below]:
            waiting += open_
            continue
        waiting.pop()
        if node in below:
            continue
        below[node] = set().union(*(below[each] for each in nexts))
        if len(below[node]) > 1:
            found |= {owner: False for each in nexts if hasattr(each, "variable") for owner in below[each]}
    return found


def _were_bytes(images: torch.Tensor) -> bool:
    """Return whether the values of images were bytes that were divided by 255."""
    values = images.double() * 255
    whole = (values - values.round()).abs().max() < 1e-3 and len(
        set(values.round().flatten()[:4096].tolist())
    ) > 2
    return bool(images.dtype == torch.float32 and whole and values.min() >= 0 and 0 < values.max() < 256)


def memory(run: Callable[[], object]) -> str:
    """Return in a line how much memory a step needs; "" if that cannot be worked out."""
    from gpulesson_tools.planning.memory.fitting import CONTEXT
    from gpulesson_tools.planning.plan import plan
    from practice_gpu.sizes import format_size

    try:
        found = plan(run, steps=3)
    except (Exception, SystemExit):
        return ""
    if not found.record.steps or not found.record.batch_size:
        return ""
    fits = ", ".join(f"{each.gpu.name}: {each.verdict.answer}" for each in found.gpus)
    least, most = format_size(CONTEXT.least), format_size(CONTEXT.most)
    return (
        f"A step with a batch of {found.record.batch_size:,} needs {format_size(found.replay.peak_reserved)} "
        f"of GPU memory, and CUDA itself {least} to {most} more. {fits}. Lesson 10, {LESSONS[10]}"
    )
