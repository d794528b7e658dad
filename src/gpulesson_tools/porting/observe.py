"""What a review needs to know of a run, counted while the script runs: steps, waits, copies, graphs."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
from collections import Counter, deque
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
from gpulesson_tools.porting.record import (
    FACTORIES,
    RANDOM,
    Watch,
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
_READS |= {"__float__": "float()", "__int__": "int()", "__repr__": "print", "__format__": "print"}
_SETTINGS = ("batch_size", "drop_last", "num_workers", "persistent_workers", "pin_memory")
_WINDOW = 6
"""Earlier calls of a line that are looked at, to see whether their graphs are still there."""


@dataclass(eq=False)
class Note:
    """What was counted of one thing: ticks are moments of the run, words what belongs to it."""

    name: str = ""
    count: Counter[str] = field(default_factory=Counter)
    words: set[Any] = field(default_factory=set)
    ticks: list[int] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Evidence:
    """
    What was noted of a run; what it is about is the key: a line, and what is read or copied there.

    Attributes
    ----------
    calls : dict
        Calls of models: `tracked` with a history, of which a backward pass `used` some; without one, of a
        model that has been trained: `quiet` in training mode, with the layers in `words`, or `calm`.
    reads, copies, steps : dict
        From the GPU; to it, of batches of a loader, by its number, or of what a factory made; of optimizers.
    feeds, optimizers : dict
        Loaders: `words` are the numbers of the batches that were trained on; optimizers: dtypes.
    thrown : dict
        Backward passes: how many made gradients for an optimizer whose own step they did not reach, `wasted`,
        by way of nothing that another one needed; and how many were `used`.
    parallel : set
        Where models were spread over one GPU.
    kept, plain : dict
        What holds old histories; constant tensors that are plain attributes of modules.
    means, half : set
        Where means over a batch are taken, and models trained in float16; `scaled`, if a loss was multiplied.
    on_gpu : bool
        Something was on the GPU.
    models : int
        How many were trained.
    """

    calls: dict[Place, Note] = field(default_factory=dict)
    reads: dict[tuple[Place, str], Note] = field(default_factory=dict)
    copies: dict[tuple[Place, int | str], Note] = field(default_factory=dict)
    steps: dict[Place, Note] = field(default_factory=dict)
    feeds: dict[int, Note] = field(default_factory=dict)
    optimizers: dict[int, Note] = field(default_factory=dict)
    kept: dict[Place, Note] = field(default_factory=dict)
    plain: dict[tuple[str, str, str], Note] = field(default_factory=dict)
    thrown: dict[tuple[Place, int], Note] = field(default_factory=dict)
    parallel: set[Place] = field(default_factory=set)
    means: set[Place] = field(default_factory=set)
    half: set[Place] = field(default_factory=set)
    scaled: bool = False
    on_gpu: bool = False
    models: int = 0


class Observer:
    """
    Notes what a review needs, as a listener of :class:`~gpulesson_tools.programs.hooks.Hooks`.

    Parameters
    ----------
    watch : Watch
        Another listener, which comes first; the evidence is left in its record.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        watch.record.evidence = self.evidence = Evidence()
        self._tick = functools.partial(next, itertools.count())
        self._built: Any = WeakKeyDictionary()
        self._numbers: Any = WeakKeyDictionary()
        self._sources: Any = WeakKeyDictionary()
        self._attributes: Any = WeakKeyDictionary()
        self._plain: dict[int, Note] = {}
        self._graphs: dict[Place, deque[list[Any]]] = {}
        self._learners: WeakSet[nn.Module] = WeakSet()
        self._layers: set[str] = set()
        self._called_at: Place | None = None  # the line that calls the outermost module
        self._above: dict[Any, bool] = {}
        self._half = self._learning = False
        self._since = 99  # steps since a batch was drawn
        self._roots: set[int] = set()
        self._optimizers: WeakSet[Any] = WeakSet()
        self._early: list[tuple[tuple[Place, str], int]] = []  # reads of a batch that may yet be trained on
        self._gradients: Any = WeakKeyDictionary()  # of optimizers: the backward passes that made them

    def finish(self) -> None:
        """Complete the evidence."""
        self.evidence.models = len(self._learners)
        self.evidence.plain = {each.facts.pop("of"): each for each in self._plain.values()}
        for each in (*self.evidence.plain.values(), *self.evidence.calls.values()):
            each.facts.clear()  # the tensors

    def _place(self, direct: bool = False, outside: bool = False) -> Place | None:
        """Return the script's innermost line, or that outside of modules' methods that has called them.

        None if there is none, or if a library stands between and may not.
        """
        place = None
        for frame in outwards(sys._getframe()):
            name, package = frame.f_code.co_filename, frame.f_globals.get("__name__", "").partition(".")[0]
            if file := self._watch.file(frame.f_code):
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
        if self._plain and self._watch.inside and name != "__get__":
            for each in tensors_in((args, options)):
                if id(each) in self._plain:
                    self._plain[id(each)].count["uses"] += 1
        if isinstance(result, torch.Tensor) and result.is_cuda:
            self.evidence.on_gpu = True
            source = args[1] if name == "copy_" else first
            if name in ("to", "cuda", "copy_") and isinstance(source, torch.Tensor) and not source.is_cuda:
                self._copied(source, options.get("non_blocking") or any(each is True for each in args[1:]))
            if options.get("reduction") == "mean" and (place := self._place()):
                self.evidence.means.add(place)
        elif name in _READS and isinstance(first, torch.Tensor) and first.is_cuda:
            made, place = self._watch.origin(first), self._place(direct=True)
            fed = self._since <= 2 and not (made and made.by in ("to", "cuda"))
            if place and (fed or address(first) in self._roots) and not options.get("non_blocking"):
                self._early.append(((place, _READS[name]), self._tick()))
                if torch.is_grad_enabled() or self._since:  # else it is a test, unless a step follows
                    self._read()

    def _read(self) -> None:
        for key, tick in self._early:
            self.evidence.reads.setdefault(key, Note()).ticks.append(tick)
        self._early.clear()

    def _copied(self, source: torch.Tensor, goes_on: Any) -> None:
        made, place = self._watch.origin(source), self._place()
        key = self._sources[made][0] if made in self._sources else made.by if made else ""
        if made and key in _MADE and made.calls:  # it could be made on the GPU, if the CPU does not fill it
            filled = not source.is_inference() and source._version > (key == "empty")
            spot = self._watch.spot(*made.calls[-1])
            place = None if filled else (spot.file, spot.line)
        if place and (isinstance(key, int) or key in _MADE):
            note = self.evidence.copies.setdefault((place, key), Note())
            note.ticks.append(self._tick())
            note.count["bytes"] += source.numel() * source.element_size()
            note.count["waits"] += not goes_on
            if source.dim() == 4 and note.count["images"] < 3:
                note.count["images"] += 1
                note.count["were bytes"] += _were_bytes(source)

    # -- loaders, optimizers

    def after_new_loader(self, call: Call) -> None:
        """Note where a loader is made."""
        self._built[call.first] = self._place()

    def after_new_optimizer(self, call: Call) -> None:
        """Note where an optimizer is made."""
        self._built[call.first] = self._place()

    def after_epoch(self, call: Call) -> None:
        """Note how a loader is set, at the start of its epoch."""
        loader, iterator, place = call.first, call.result, self._place()
        if place and loader.batch_size and not isinstance(loader.dataset, IterableDataset):
            number = self._numbers.setdefault(loader, self._tick())
            facts: dict[str, Any] = {"starts": [], "firsts": [], "data": []}
            note = self.evidence.feeds.setdefault(number, Note(facts=facts))
            note.facts |= {name: getattr(loader, name) for name in _SETTINGS}
            note.facts |= {"size": len(loader.dataset), "built": self._built.get(loader) or place}
            note.facts["in order"] = type(loader.sampler) is SequentialSampler
            note.facts["starts"].append(place)
            held = attributes_of(loader.dataset)
            note.facts["data"].append(tuple((name, id(value)) for name, value in held.items()))
            note.facts["all"] = len(loader.sampler) == len(loader.dataset)
            iterator.__dict__["_review"] = number

    def after_batch(self, call: Call) -> None:
        """Note a batch."""
        iterator, batch, self._since = call.first, call.result, 0
        self._early.clear()
        number: int | None = getattr(iterator, "_review", None)
        if number is not None:
            note = self.evidence.feeds[number]
            note.count["draws"] += 1
            with torch._C.DisableTorchFunction():
                tensors = tensors_in(batch)
                if iterator.__dict__.setdefault("_first", batch) is batch:
                    note.facts["firsts"].append(sum(float(each.double().sum()) for each in tensors))
                classes = any(each.dtype == torch.int64 and each.dim() == 1 for each in tensors)
                many = any(each.is_floating_point() and each.dim() > 1 for each in tensors)
                note.count["labels"] += classes and many
            for each in tensors:
                if (made := self._watch.origin(each)) is not None:
                    self._sources[made] = number, note.count["draws"]

    def after_parallel(self, call: Call) -> None:
        """Note a model that is spread over one GPU."""
        if len(getattr(call.first, "device_ids", ())) == 1 and (place := self._place()):
            self.evidence.parallel.add(place)

    def after_zero_grad(self, call: Call) -> None:
        """Note gradients that no step has used."""
        gone = {id(each) for each in _trained_by(call.first)}
        for optimizer in list(self._gradients):
            if gone >= {id(each) for each in _trained_by(optimizer)}:
                self._end_gradients(optimizer, "wasted")

    def _end_gradients(self, optimizer: Any, how: str) -> None:
        for key in self._gradients.pop(optimizer, ()):
            self.evidence.thrown.setdefault(key, Note(type(optimizer).__name__)).count[how] += 1

    def before_step(self, call: Call) -> None:
        """See whether there is anything to learn from."""
        groups = call.first.param_groups
        self._learning = any(each.grad is not None for group in groups for each in group["params"])

    def after_step(self, call: Call) -> None:
        """Note a step, and what it trains."""
        optimizer = call.first
        if place := self._place():
            number = self._numbers.setdefault(optimizer, self._tick())
            note = self.evidence.optimizers.setdefault(number, Note(type(optimizer).__name__))
            note.facts |= {"built": self._built.get(optimizer) or place, "steps": place}
            with torch._C.DisableTorchFunction():
                trained = [each for group in optimizer.param_groups for each in group["params"]]
                trained = [each for each in trained if each.grad is not None]
                note.words |= {str(each.dtype) for each in trained if each.is_cuda}
            self._optimizers.add(optimizer)
            self._end_gradients(optimizer, "used")
            self._read()
            note.count.update(steps=1, idle=not trained and not self._learning)
            self.evidence.steps.setdefault(place, Note()).ticks.append(self._tick())
            self._since += 1

    # -- models

    def before_module(self, call: Call) -> None:
        """Look at a module's mode and constants."""
        if self._watch.inside == 1:
            self._called_at = self._place(direct=True, outside=True)  # other methods may call forward()
            self._layers, self._half = set(), False
        with torch._C.DisableTorchFunction():
            self._look_at(call.first)

    def after_module(self, call: Call) -> None:
        """Note a call of a model."""
        if self._watch.inside == 0 and self._called_at is not None:
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
        if code is None or not (file := self._watch.file(code)):
            return
        if module not in self._attributes:
            of = file, type(module).__name__
            self._attributes[module] = {
                name: Note(name, facts={"of": (*of, name), "tensor": value, "version": value._version})
                for name, value in vars(module).items()
                if isinstance(value, torch.Tensor) and value.is_leaf and not value.requires_grad
            }
            self._plain |= {id(each.facts["tensor"]): each for each in self._attributes[module].values()}
        for name, note in self._attributes[module].items():
            note.count["calls"] += 1
            tensor, version = (note.facts[key] for key in ("tensor", "version"))
            if tensor._version != version or vars(module).get(name) is not tensor:  # it is a state
                self._plain.pop(id(tensor), None)

    def _called(self, module: nn.Module, place: Place, given: Any, result: Any) -> None:
        if not any(each.requires_grad for each in module.parameters()):
            return
        note = self.evidence.calls.setdefault(place, Note(type(module).__name__))
        note.ticks.append(self._tick())
        outputs: list[Any] = [
            each for each in tensors_in(result) if each.requires_grad and each.grad_fn is not None
        ]
        first = (how for each in tensors_in(given) if (how := self._watch.origin(each)) is not None)
        made = set(itertools.islice(lineage(first), 60))
        sources = [self._sources[each] for each in made if each in self._sources]
        note.count["random"] += any(each.by.rstrip("_") in RANDOM for each in made)
        learner, half = ref(module), self._half
        entry: list[Any] = [None, None]

        def reached(_: Any) -> None:  # a backward pass calls it; it dies with the graph
            if entry[1] is None:
                entry[1] = self._watch.passes
                note.count["used"] += 1
                for feed, draw in sources:
                    self.evidence.feeds[feed].words.add(draw)
                self.evidence.half |= {place} if half else set()
                if (trained := learner()) is not None:
                    self._learners.add(trained)

        if torch.is_grad_enabled() and outputs:
            note.count["tracked"] += 1
            note.words |= self._layers
            entry[0] = ref(reached)
            self._graphs.setdefault(place, deque(maxlen=40)).append(entry)
            for each in outputs:
                with suppress(RuntimeError):
                    each.register_hook(reached)
                    each.grad_fn.metadata["gpulesson"] = reached
        elif not torch.is_grad_enabled() and module in self._learners:
            note.words |= self._layers
            inputs = tensors_in(given)
            again = bool(inputs) and inputs[0] is note.facts.get("input")
            note.facts["input"] = inputs[0] if inputs else None
            note.count.update(quiet=bool(self._layers), calm=not self._layers, again=again)

    # -- graphs

    def before_backward(self, call: Call) -> None:
        """Look for old graphs, and for optimizers whose gradients are made."""
        with torch._C.DisableTorchFunction():
            self._find_kept(self._watch.frames(sys._getframe()))
            roots = roots_of(call)
            self._roots = set(map(address, roots))
            made = [getattr(each.grad_fn, "name", str)() for each in roots]
            self.evidence.scaled |= "MulBackward0" in made
            self._above = _needed_by(roots, [*self._optimizers]) if len(self._optimizers) > 1 else {}

    def after_backward(self, call: Call) -> None:
        """Note for which optimizers it has made gradients."""
        if (place := self._place()) and not call.kwargs.get("inputs"):
            for optimizer, free in self._above.items():
                number = self._numbers.setdefault(optimizer, self._tick()) if free else 0
                self._gradients.setdefault(optimizer, []).append((place, number))

    def _find_kept(self, frames: list[FrameType]) -> None:
        """Look for graphs that are alive two passes after their backward pass, and for who holds them."""
        for place, entries in self._graphs.items():
            of = {passed: token for token, passed in entries if passed is not None}  # one for each pass
            old = [of[passed] for passed in sorted(of) if self._watch.passes - passed >= 2][-_WINDOW:]
            for collect in (lambda: None, gc.collect):
                collect()
                alive = {id(token()) for token in old} - {id(None)}
                if len(alive) < _WINDOW - 1 or place in self.evidence.kept:
                    break
            else:
                for frame in reversed(frames):
                    for name, held in self._holders(frame, alive):
                        facts = {"place": held, "alive": len(alive), "all": len(old)}
                        self.evidence.kept.setdefault(place, Note(name, facts=facts))

    def _holders(self, frame: FrameType, alive: set[int]) -> list[tuple[str, Place]]:
        """Return the names in a frame of what holds graphs, with a line; 0 if it is not known."""
        own, found = attributes_of(first_of(frame)), []
        for name, value in {**frame.f_locals, **{f"self.{key}": each for key, each in own.items()}}.items():
            if isinstance(value, torch.Tensor | list | tuple | dict | deque):
                hanging = itertools.islice(graph(tensors_in(value)[-50:]), 20_000)
                tokens = {id(node.metadata.get("gpulesson")) for node in hanging}
                if len(tokens & alive) >= _WINDOW - 1:
                    made = self._watch.origin(value) if isinstance(value, torch.Tensor) else None
                    line = self._watch.spot(*made.calls[-1]).line if made and made.calls else 0
                    found.append((name, (self._watch.file(frame.f_code), line)))
        return found


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
    """Return in a line what a step needs; "" if that cannot be said."""
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
