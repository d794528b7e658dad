"""Watches models: where they are made, in which mode and where they are called, what they answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.loss import _Loss

from gpulesson.exercises.trace import NOWHERE, CallSeen, ModelSeen, Site
from gpulesson.exercises.watch import frames, rows
from gpulesson.exercises.watch.tensors import Reader, devices_in, first_tensor, kind_of_device
from gpulesson.practice.patches import Patches

_FACTORIES = "arange empty eye full linspace ones rand randint randn randperm tensor zeros"
_KEPT_SAMPLES = 2_000_000
_KEPT_NUMBERS = 2**24


@dataclass
class Call:
    """One call of a model."""

    seen: CallSeen
    step: int
    marks: torch.Tensor | None = None
    """One number for each of the samples."""
    rows: torch.Tensor | None = None
    """A sketch of the samples, where they are not too many."""
    predictions: torch.Tensor | None = None
    targets: torch.Tensor | None = None
    """The labels that a loss function compared the answers with."""
    loss_at: Site = NOWHERE
    width: int = 0
    """Numbers in the output for each sample."""


class Models:
    """The models of a run and their calls, in order.

    Parameters
    ----------
    reader : Reader
    now : callable
        Returns the number of optimizer steps so far.
    """

    def __init__(self, reader: Reader, now: Callable[[], int]) -> None:
        self.reader, self._now = reader, now
        self.made: WeakKeyDictionary[nn.Module, Site] = WeakKeyDictionary()
        self.seeds = 0
        """Calls of ``torch.manual_seed``."""
        self.when_seeded: Callable[[], None] = lambda: None
        self._seeds_before: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self.models: list[tuple[nn.Module, ModelSeen]] = []
        self.calls: list[Call] = []
        self.stack: list[nn.Module] = []
        self.last_shape: tuple[int, ...] = ()
        """Of the last output of a model."""
        self.made_inside: list[tuple[torch.Tensor, Site]] = []
        self._kept = 0
        self._kept_numbers = {True: 0, False: 0}
        self._answer: tuple[ref[torch.Tensor], Call] | None = None
        """The last one: a model that takes it for its input has seen the same samples."""
        self._handles: list[Any] = []

    def plan(self, patches: Patches) -> None:
        """Plan to see modules and tensors being made, and to have nothing compiled."""
        patches.wrap(nn.Module, "__init__", self._init)
        patches.wrap(torch, "manual_seed", self._seed)
        for name in _FACTORIES.split():
            patches.wrap(torch, name, self._factory)
        patches.plan(torch, "compile", _left_uncompiled)  # nn.Module.compile calls it as well

    def start(self) -> None:
        """See modules being called, by PyTorch's own hooks."""
        self._handles = [
            modules.register_module_forward_pre_hook(self._before),
            modules.register_module_forward_hook(self._after, always_call=True),
        ]

    def stop(self) -> None:
        """Take the hooks away."""
        while self._handles:
            self._handles.pop().remove()

    def _init(self, original: Any) -> Any:
        def __init__(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            self.made[module] = frames.made_here(module)
            self._seeds_before[module] = self.seeds

        return __init__

    def _seed(self, original: Any) -> Any:
        @functools.wraps(original)
        def manual_seed(*args: Any, **kwargs: Any) -> Any:
            self.seeds += 1
            self.when_seeded()
            return original(*args, **kwargs)

        return manual_seed

    def _factory(self, original: Any) -> Any:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            tensor = original(*args, **kwargs)
            if self.stack and isinstance(tensor, torch.Tensor) and tensor.dim():
                self.made_inside.append((tensor, frames.here()))
            return tensor

        return make

    # -- calls

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.stack.append(module)
        if len(self.stack) > 1 or isinstance(module, _Loss) or next(module.parameters(), None) is None:
            return
        self.made_inside.clear()
        number = self._number(module)
        devices = self.models[number][1].devices = devices_in(module)
        seen = CallSeen(
            site=frames.here(),
            model=number,
            training=module.training,
            trained=False,
            grad=False,
            input_on=kind_of_device(args),
            model_on=devices,
            finished=False,
        )
        self.calls.append(Call(seen, self._now()))

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.stack:
            self.stack.pop()
        if self.stack or output is None or not self.calls or isinstance(module, _Loss):
            return
        call = self.calls[-1]
        if self.models[call.seen.model][0] is not module or call.seen.finished:
            return
        call.seen.finished = True
        self.made_inside.clear()
        answer = first_tensor(output)
        if answer is not None:
            self.last_shape = tuple(answer.shape)
            call.seen.grad = answer.requires_grad
            self._keep(call, first_tensor(args), answer)
            if answer.requires_grad:
                answer.register_hook(_Trained(self, call))  # type: ignore[no-untyped-call]

    def _keep(self, call: Call, samples: torch.Tensor | None, answer: torch.Tensor) -> None:
        """Keep what the rules need, unless it is too much."""
        if samples is None or answer.dim() != 2 or not samples.dim() or len(samples) != len(answer):
            return
        if self._kept + len(answer) <= _KEPT_SAMPLES:
            self._kept += len(answer)
            with self.reader.unnoticed():
                call.width = answer.shape[1]
                if self._answer is not None and self._answer[0]() is samples:
                    call.marks, call.rows = self._answer[1].marks, self._answer[1].rows
                else:
                    on_host = self.reader.on_host(samples)
                    call.marks, call.rows = rows.marks(on_host), self._sketch(on_host, answer.requires_grad)
                self._answer = ref(answer), call
                call.predictions = self.reader.on_host(answer).argmax(dim=1)

    def _sketch(self, samples: torch.Tensor, trains: bool) -> torch.Tensor | None:
        """Return what is kept of the samples; None where those that train, or the others, are too many."""
        kept = rows.sketch(samples)
        self._kept_numbers[trains] += 0 if kept is None else kept.numel()
        return kept if self._kept_numbers[trains] <= _KEPT_NUMBERS else None

    def compared(self, targets: Any, site: Site) -> None:
        """Note the labels that a loss function compares the last answers with."""
        call = self.calls[-1] if self.calls else None
        if call is None or call.predictions is None or not isinstance(targets, torch.Tensor):
            return
        if targets.shape in ((len(call.predictions),), (len(call.predictions), call.width)):
            with self.reader.unnoticed():
                kept = self.reader.on_host(targets)
                call.targets = kept.argmax(dim=1) if kept.dim() == 2 else kept
                call.loss_at = site

    def trained(self, call: Call) -> None:
        """Note that a gradient came back to the output of `call`."""
        call.seen.trained = True

    def _number(self, module: nn.Module) -> int:
        for number, (known, _) in enumerate(self.models):
            if known is module:
                return number
        moody = any(
            (isinstance(part, _DropoutNd) and part.p > 0)
            or (isinstance(part, _NormBase) and part.track_running_stats)
            or (isinstance(part, nn.RNNBase) and part.dropout > 0)
            or (isinstance(part, nn.MultiheadAttention) and part.dropout > 0)
            for part in module.modules()
        )
        made = self.made.get(module, Site())
        seen = ModelSeen(type(module).__name__, made, moody, [])
        seen.seeded = self._seeds_before.get(module, 0) > 0
        self.models.append((module, seen))
        return len(self.models) - 1

    def summary(self) -> list[CallSeen]:
        """Sum up the calls that went alike."""
        sums: dict[tuple[Any, ...], CallSeen] = {}
        for call in self.calls:
            seen = call.seen
            how = (seen.training, seen.trained, seen.grad, seen.input_on, *seen.model_on, seen.finished)
            key = (seen.site, seen.model, *how)
            total = sums.setdefault(key, seen)
            total.count += 1
            total.last_step = call.step
        return list(sums.values())


def _left_uncompiled(model: Any = None, **options: Any) -> Any:
    """Replace ``torch.compile``: hooks on all modules, as here, cannot be compiled with ``fullgraph``.

    The check looks at what is computed, not how fast. Without a model it is a decorator.
    """
    return _left_uncompiled if model is None else model


class _Trained:
    """The hook on a model's output: called when a gradient comes back."""

    def __init__(self, models: Models, call: Call) -> None:
        self._models, self._call = models, call

    def __call__(self, gradient: torch.Tensor) -> None:
        self._models.trained(self._call)
