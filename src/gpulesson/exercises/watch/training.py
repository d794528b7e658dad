"""Watches what trains: optimizers, losses and ``backward``."""

from __future__ import annotations

import functools
import math
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.optim import optimizer as optimizers
from torch.optim.optimizer import Optimizer

from gpulesson.exercises.trace import LossSeen, OptimizerSeen, Site
from gpulesson.exercises.watch import frames
from gpulesson.exercises.watch.models import Models
from gpulesson.exercises.watch.tensors import Reader, first_tensor, kind_of_device
from gpulesson.practice.patches import Patches

_LOSSES = """
    binary_cross_entropy binary_cross_entropy_with_logits cross_entropy huber_loss kl_div l1_loss mse_loss
    nll_loss smooth_l1_loss
"""
_MARK = "gpulesson"
_KEPT_NUMBERS = 2**24


class _Alive:
    """Lives as long as the history of a loss, and counts it so long."""

    def __init__(self, counts: Counter[int], step: int) -> None:
        self._counts, self._step = counts, step
        counts[step] += 1

    def __del__(self) -> None:
        self._counts[self._step] -= 1
        if not self._counts[self._step]:
            del self._counts[self._step]


class Training:
    """The optimizers, losses and backward passes of a run.

    Parameters
    ----------
    reader : Reader
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.models = Models(reader, lambda: self.steps)
        self.steps = 0
        self.backwards = 0
        self.wasted = 0
        self.in_steps = 0
        self.backward_at = Site()
        self.last_stepped: OptimizerSeen | None = None
        self.first_ways: dict[int, list[tuple[str, Site]]] = {}
        """By which lines each optimizer came to its first step."""
        self.made_ways: dict[int, list[tuple[str, Site]]] = {}
        """By which lines the program came to make each optimizer."""
        self.model_loaded = Site()
        """Where a model got a saved state last."""
        self.values: list[float] = []
        self.optimizers: WeakKeyDictionary[Optimizer, OptimizerSeen] = WeakKeyDictionary()
        self.losses: dict[tuple[Any, ...], LossSeen] = {}
        self.softmax_at = Site()
        self.groups: list[tuple[Optimizer, OptimizerSeen]] = []
        self._stale: dict[int, Site] = {}
        self._unused: dict[int, int] = {}
        self._stepping = 0
        self._first: dict[int, list[torch.Tensor]] = {}
        self._of_line: dict[Site, Optimizer] = {}
        self._cleared: set[int] = set()
        self._alive: dict[int, Counter[int]] = {}
        """Of each line with a loss: how many of its losses still have a history, by the step they are of."""
        self._value: float | None = None
        self._last_loss: LossSeen | None = None
        self._depth = 0
        self._handles: list[Any] = []

    def plan(self, patches: Patches) -> None:
        """Plan to see optimizers being made, gradients zeroed, losses computed and ``backward``."""
        self.models.plan(patches)
        patches.wrap(Optimizer, "__init__", self._init)
        patches.wrap(Optimizer, "zero_grad", self._zero_grad)
        patches.wrap(Optimizer, "load_state_dict", self._load)
        patches.wrap(nn.Module, "load_state_dict", self._load_model)
        patches.wrap(nn.Module, "zero_grad", self._zero_grad)
        patches.wrap(torch.autograd, "backward", self._backward)
        for name in _LOSSES.split():
            patches.wrap(F, name, self._loss)
        for owner in (torch, torch.Tensor, F):
            patches.wrap(owner, "softmax", self._softmax)

    def start(self) -> None:
        """See steps, by PyTorch's own hook."""
        self.models.start()
        self._handles = [
            optimizers.register_optimizer_step_pre_hook(self._step),
            optimizers.register_optimizer_step_post_hook(self._stepped),
        ]

    def stop(self) -> None:
        """Take the hooks away."""
        self.models.stop()
        while self._handles:
            self._handles.pop().remove()

    # -- optimizers

    def _init(self, original: Any) -> Any:
        def __init__(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            devices = _devices(optimizer)
            seen = OptimizerSeen(type(optimizer).__name__, frames.made_here(optimizer), devices)
            way = frames.way()
            seen.made_for = next((site for _, site in way[-2:-1]), seen.made)
            seen.seed = torch.initial_seed()
            self.made_ways[id(optimizer)] = way
            self.optimizers[optimizer] = seen
            self.groups.append((optimizer, seen))

        return __init__

    def _load(self, original: Any) -> Any:
        @functools.wraps(original)
        def load_state_dict(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if optimizer in self.optimizers:
                self.optimizers[optimizer].state_loaded = True
            return original(optimizer, *args, **kwargs)

        return load_state_dict

    def _load_model(self, original: Any) -> Any:
        @functools.wraps(original)
        def load_state_dict(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self.model_loaded = frames.here()
            return original(module, *args, **kwargs)

        return load_state_dict

    def _zero_grad(self, original: Any) -> Any:
        @functools.wraps(original)
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            had = {id(opt): _graded(opt) for opt, _ in self.groups}
            result = original(owner, *args, **kwargs)
            kept = kwargs.get("set_to_none", args[0] if args else True) is False
            for optimizer, seen in self.groups:
                left = _graded(optimizer)
                if had[id(optimizer)] and (not left or (kept and not any(map(self._not_zero, left[:4])))):
                    seen.zeroed_at = frames.here()
                    self.wasted += self._unused.pop(id(optimizer), 0)
                if isinstance(owner, nn.Module) or owner is optimizer:
                    self._cleared.add(id(optimizer))
                    self._stale.pop(id(optimizer), None)
            return result

        return zero_grad

    def _step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        seen = self.optimizers.get(optimizer)
        if seen is None:
            return
        closure = len(args) > 1 or "closure" in kwargs  # args holds the optimizer
        if id(optimizer) not in self._first:
            seen.anew = self._made_anew(optimizer, seen)
            self._first[id(optimizer)] = self._copies(optimizer)
            seen.first_step = self.steps
            seen.rate = _rate(optimizer)
            self.first_ways[id(optimizer)] = frames.way()
            seen.blind = not (closure or seen.zeroed_at.line or _graded(optimizer))
        seen.steps += 1
        self.steps += 1
        self._stepping += 1
        seen.step_at, seen.ran_in = frames.here(), frames.running_file()
        self.last_stepped = seen
        seen.params_on = _devices(optimizer)
        self._unused.pop(id(optimizer), None)
        if not closure and seen.zeroed_at.line and not any(map(self._not_zero, _graded(optimizer)[:4])):
            seen.zeroed_late += 1
        if id(optimizer) in self._stale:
            seen.accumulated += 1
            seen.accumulated_at = self._stale.pop(id(optimizer))
        self._cleared.discard(id(optimizer))

    def _made_anew(self, optimizer: Optimizer, seen: OptimizerSeen) -> bool:
        """Tell whether an optimizer begins where another of the same line had got further."""
        own = {id(tensor) for tensor in parameters_of(optimizer)}
        earlier = self._of_line.get(seen.made)
        self._of_line[seen.made] = optimizer
        if earlier is None or earlier is optimizer or seen.state_loaded or not earlier.state:
            return False
        if not any(id(tensor) in own for tensor in parameters_of(earlier)):
            return False
        first, now = self._first.get(id(earlier), []), self._copies(optimizer)
        return len(first) != len(now) or not all(map(torch.equal, first, now))  # else it begins anew itself

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer in self.optimizers:
            self._stepping -= 1

    def _copies(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Return copies of the first parameters, to see later whether they moved."""
        kept: list[torch.Tensor] = []
        for tensor in parameters_of(optimizer):
            if sum(part.numel() for part in kept) + tensor.numel() <= _KEPT_NUMBERS:
                kept.append(self.reader.on_host(tensor))
        return kept

    def first_weights(self, seen: OptimizerSeen) -> list[torch.Tensor]:
        """Return what an optimizer's parameters were before its first step."""
        return next((self._first.get(id(opt), []) for opt, known in self.groups if known is seen), [])

    def note_moves(self) -> None:
        """Compare the parameters with what they were before the first step."""
        for optimizer, seen in self.groups:
            before = self._first.get(id(optimizer), [])
            with self.reader.unnoticed():
                now = map(self.reader.on_host, parameters_of(optimizer))
                pairs = list(zip(before, now, strict=False))
                seen.moved = not pairs or not all(torch.equal(old, new) for old, new in pairs)

    # -- losses

    def _loss(self, original: Any) -> Any:
        @functools.wraps(original)
        def loss_function(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth or not isinstance(input, torch.Tensor):  # one loss calls another
                return original(input, target, *args, **kwargs)
            weight = kwargs.get("weight", args[0] if args else None)
            weights = [weight, kwargs.get("pos_weight")]
            seen = self._loss_at(original.__name__, input, target, weights)
            if original.__name__ == "cross_entropy" and seen.count <= 3 and self._probabilities(input):
                seen.softmaxed += 1
                seen.softmax_at = self.softmax_at
            if original.__name__ == "nll_loss" and seen.count <= 3 and not self._logarithms(input):
                seen.unlogged += 1
            self.models.compared(target, seen.site)
            self._depth += 1
            try:
                result = original(input, target, *args, **kwargs)
            finally:
                self._depth -= 1
            seen.finished = True
            self._value, self._last_loss = self._number(result), seen
            self._note_history(result, seen)
            return result

        return loss_function

    def _loss_at(self, name: str, input: Any, target: Any, weights: list[Any]) -> LossSeen:
        module = next((part for part in self.models.stack if isinstance(part, _Loss)), None)
        made = Site() if module is None else self.models.made.get(module, Site())
        site = frames.here()
        input_on, target_on, weight_on = map(kind_of_device, (input, target, weights))
        new = LossSeen(name, site, made, input_on, target_on, weight_on, finished=False)
        seen = self.losses.setdefault((name, site, input_on, target_on, weight_on), new)
        seen.count += 1
        if seen.count == 1 and isinstance(weights[0], torch.Tensor):
            with self.reader.unnoticed():
                seen.weighs = len(torch.unique(self.reader.on_host(weights[0]))) > 1
        seen.finished = False
        return seen

    def _probabilities(self, input: torch.Tensor) -> bool:
        if input.dim() != 2 or input.shape[1] < 2 or not input.is_floating_point():
            return False
        with self.reader.unnoticed():
            rows = self.reader.on_host(input).float()
            return bool((rows >= 0).all()) and bool(((rows.sum(dim=1) - 1).abs() < 2e-3).all())

    def _logarithms(self, input: torch.Tensor) -> bool:
        """Tell whether the exponentials of each row add up to 1, as those of log_softmax do."""
        if not input.dim() or not input.is_floating_point():
            return True
        with self.reader.unnoticed():
            sums = self.reader.on_host(input).float().exp().sum(dim=min(1, input.dim() - 1))
            return bool(((sums - 1).abs() < 2e-2).all())

    def _softmax(self, original: Any) -> Any:
        @functools.wraps(original)
        def softmax(*args: Any, **kwargs: Any) -> Any:
            inner = self.models.stack[-1] if self.models.stack else None
            made = self.models.made.get(inner) if isinstance(inner, nn.Softmax) else None
            self.softmax_at = made or frames.here()
            return original(*args, **kwargs)

        return softmax

    # -- backward

    def _backward(self, original: Any) -> Any:
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._before_backward(first_tensor(tensors))
            return original(tensors, *args, **kwargs)

        return backward

    def _before_backward(self, root: torch.Tensor | None) -> None:
        self.backwards += 1
        self.in_steps += self._stepping > 0
        self.backward_at = frames.here()
        for optimizer, seen in self.groups:
            if not self._stepping:
                self._unused[id(optimizer)] = self._unused.get(id(optimizer), 0) + 1
            seen.zeroed_at = Site()
            if seen.steps and id(optimizer) not in self._cleared and id(optimizer) not in self._stale:
                if any(map(self._not_zero, _graded(optimizer)[:4])):
                    self._stale[id(optimizer)] = frames.here()
                self._cleared.add(id(optimizer))
        value, self._value = self._value, None
        pending = value is not None
        value = self._number(root) if value is None else value
        if value is not None and len(self.values) < 100_000:
            self.values.append(value)
        if root is not None and not pending:  # else its history holds that of the loss function
            self._note_history(root, self._last_loss)

    def _number(self, loss: Any) -> float | None:
        """Return the value of a loss that backward() may follow: read at once, so that nothing is kept."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            return None
        try:
            return self.reader.number(loss)
        except RuntimeError:  # inside torch.func a loss may stand for many
            return None

    def _not_zero(self, gradient: torch.Tensor) -> bool:
        with self.reader.unnoticed():
            return bool(self.reader.on_host(gradient).abs().sum())

    def _note_history(self, loss: Any, seen: LossSeen | None) -> None:
        node: Any = loss.grad_fn if isinstance(loss, torch.Tensor) else None
        if node is None or _MARK in node.metadata:
            return
        if seen is None:
            return
        alive = self._alive.setdefault(id(seen), Counter())
        node.metadata[_MARK] = _Alive(alive, self.steps)
        old = alive.total() - alive[self.steps] - alive[self.steps - 1]
        seen.kept = max(seen.kept, old)

    def finite_values(self) -> list[float]:
        """Return the losses, with what JSON cannot say left out."""
        return [value for value in self.values if math.isfinite(value)]


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the tensors that an optimizer changes; none while it is being made."""
    return [tensor for group in getattr(optimizer, "param_groups", []) for tensor in group["params"]]


def _graded(optimizer: Optimizer) -> list[torch.Tensor]:
    return [tensor.grad for tensor in parameters_of(optimizer) if tensor.grad is not None]


def _rate(optimizer: Optimizer) -> float:
    """Return the learning rate of the first group; 0 if that is no number."""
    try:
        return float(optimizer.param_groups[0]["lr"])
    except (LookupError, TypeError, ValueError, RuntimeError):
        return 0.0


def _devices(optimizer: Optimizer) -> list[str]:
    return sorted({tensor.device.type for tensor in parameters_of(optimizer)})
