"""What can be seen of a model that a learner's function uses: its passes, its gradients, its updates."""
# mypy: allow-untyped-calls

from __future__ import annotations

from collections import Counter
from itertools import pairwise, takewhile
from operator import truediv
from typing import Any

import torch
from torch import Tensor, nn

from gpulesson_tools.exercises.contract import number_of
from gpulesson_tools.programs.hooks import Call, Hooks

Rows = tuple[Tensor, Tensor]
"""Inputs and labels."""


class ModelWatch:
    """Notes what happens to a model, from now on.

    Its passes have ``training`` (the mode), ``graph`` (gradients were recorded), ``backward`` (how often
    gradients came back), ``rows`` (for each sample the sum of its values), ``answers`` (the largest output of
    each sample), ``device`` of the inputs, and the sums of the ``weights`` before it. Those with which an
    optimizer such as LBFGS tries out a step are one. `stale` is how often a backward pass added to the
    gradients of an earlier one; `steps`, `idle` and `elsewhere` are how often an optimizer stepped, how often
    without any gradient, and how often one of other parameters did; `optimizers`, how many different ones.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.passes: list[dict[str, Any]] = []
        self.stale = self.idle = self.steps = self.elsewhere = 0
        self._optimizers: list[Any] = []
        self._came: dict[Tensor, Tensor] = {}
        model.register_forward_hook(self._pass)
        for parameter in model.parameters():
            parameter.register_hook(lambda grad, parameter=parameter: self._came.update({parameter: grad}))
            parameter.register_post_accumulate_grad_hook(self._added)
        self._stepping: list[list[float]] | None = None
        self._hooks = Hooks(self).__enter__()

    def close(self) -> None:
        """Stop watching optimizers."""
        self._hooks.__exit__()

    def weights(self) -> list[float]:
        """Return two sums over all parameters: the plain one, and one that minds the order."""
        with torch.no_grad():
            every = torch.cat([p.detach().flatten() for p in self.model.parameters()]).cpu().double()
            order = torch.linspace(1, 2, len(every), dtype=torch.float64)
            return [every.sum().item(), every.dot(order).item()]

    def training(self) -> list[dict[str, Any]]:
        """Return the passes that gradients came back through."""
        return [each for each in self.passes if each["backward"]]

    def updates(self) -> int:
        """Return how often the weights changed from one pass to the next, or to now."""
        states = [each["weights"] for each in self.passes] + [self.weights()]
        return sum(a != b for a, b in pairwise(states))

    @property
    def optimizers(self) -> int:
        return len(self._optimizers)

    def of_a_run(self, train: Rows, test: Rows) -> dict[str, Any]:
        """Return facts of a whole training run with its test, whatever its optimizer, batch size and style.

        No two rows of both have the same sum.
        """
        trained, tested = self.training(), self._last_evaluation(test)
        places = {key: place for place, key in enumerate(keys_of(train[0]) + keys_of(test[0]))}
        order = [places.get(key, -1) for each in trained for key in each["rows"]]
        times, own = max(Counter(order).values(), default=0), set(order) <= set(range(len(train[1])))
        tests = set(order).isdisjoint(range(len(train[1])))
        rows = len(train[1]) if own else len(set(order))
        epoch = max(1, len(order) // max(1, times))
        first, second = order[:epoch], order[epoch : 2 * epoch]
        unsorted = "the same each time" if first == second else "shuffled"
        changed = self.updates()
        seen = sorted(key for each in tested for key in each["rows"])
        parts = ("the test rows", test), ("the training rows", train)
        where = [name for name, part in parts if seen == sorted(keys_of(part[0]))]
        return {
            "device": sorted({each["device"] for each in trained}),
            "train modes": sorted({each["training"] for each in trained}),
            "trained on": f"the {'training' if own else 'test' if tests else 'training and the test'} rows",
            "epochs": f"{times}{_how_many(len(order), times * rows)}",
            "order": "as they are" if first == sorted(first) else unsorted,
            "fresh": self.stale == 0,
            "updates": "each" if changed >= len(trained) > 0 else "some" if changed else "never",
            "idle": self.idle > 0,
            "optimizers": self.optimizers <= 1,
            "elsewhere": self.elsewhere > 0,
            "tested on": where[0] if where else f"{len(seen)} rows",
            "test modes": sorted({each["training"] for each in tested}),
            "graph": any(each["graph"] for each in tested),
        }

    def meaning(self, value: Any, *parts: Rows) -> str:
        """Say what a number is, from the answers of the last evaluation: a share, a count, …"""
        labels = {
            k: label for part in parts for k, label in zip(keys_of(part[0]), part[1].tolist(), strict=True)
        }
        tested = self._last_evaluation(parts[0])
        pairs = [list(zip(each["rows"], each["answers"], strict=True)) for each in tested]
        right = [sum(labels.get(key) == answer for key, answer in batch) for batch in pairs]
        count, rows, number = sum(right), sum(map(len, pairs)), number_of(value)
        if not rows or number is None:
            return "no number"
        names = {
            "the share of right answers": count / rows,
            "the mean of the batches' shares": sum(map(truediv, right, map(len, pairs))) / len(pairs),
            "the number of right answers": count,
            "the number of right answers a batch": count / len(pairs),
        }
        for name, known in names.items():
            for factor, times in ((1, ""), (100, ", times 100")):
                if abs(factor * known - number) < 1e-4:
                    return name + times
        return f"{number:.4g}"

    def _last_evaluation(self, test: Rows) -> list[dict[str, Any]]:
        """Return the last passes over the test rows after the training; if there are none, all after it."""
        after = list(takewhile(lambda each: not each["backward"], reversed(self.passes)))
        keys = set(keys_of(test[0]))
        found: list[dict[str, Any]] = []
        for each in after:
            if keys.issuperset(each["rows"]) and sum(len(one["rows"]) for one in found) < len(keys):
                found.append(each)
        return (found or after)[::-1]

    def _pass(self, module: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        graph = outputs.requires_grad
        with torch.no_grad():
            rows = keys_of(inputs[0].detach())
            if self._stepping is not None:
                if rows in self._stepping:
                    return
                self._stepping.append(rows)
            found = outputs.detach()
            answers = (found.flatten(1) if found.ndim > 1 else found[None]).argmax(1).cpu().tolist()
        one = {"training": module.training, "graph": graph, "backward": 0, "device": str(inputs[0].device)}
        self.passes.append({**one, "rows": rows, "answers": answers, "weights": self.weights()})
        if graph:
            number = len(self.passes) - 1
            outputs.register_hook(lambda grad: self._came_back(number))

    def _came_back(self, number: int) -> None:
        self.passes[number]["backward"] += 1

    def _added(self, parameter: Tensor) -> None:
        came = self._came.pop(parameter, None)
        if came is not None and parameter.grad is not None and not torch.equal(came, parameter.grad):
            self.stale += 1

    def before_step(self, call: Call) -> None:
        """Take the passes in an optimizer's step for one."""
        self._stepping = []

    def after_step(self, call: Call) -> None:
        """Note a step."""
        optimizer, self._stepping = call.first, None
        ours = {id(parameter) for parameter in self.model.parameters()}
        held = [p for group in optimizer.param_groups for p in group["params"] if id(p) in ours]
        self.steps += bool(held)
        self.elsewhere += not held
        if held and not any(optimizer is each for each in self._optimizers):
            self._optimizers.append(optimizer)  # kept, so that no other one gets its place in memory
        self.idle += bool(held) and all(p.grad is None or not p.grad.any() for p in held)


def keys_of(inputs: Tensor) -> list[float]:
    """Return a number for each sample by which it is known again, wherever it is: the sum of its values."""
    values = inputs.cpu().double()
    values = values.flatten(1) if values.ndim > 1 else values[None]  # one sample alone
    return [round(key, 6) for key in values.sum(1).tolist()]


def _how_many(found: int, whole: int) -> str:
    """Say how many of the rows came: a DataLoader can leave out those of the last, shorter batch."""
    return "" if found == whole else " at most, without the last ones" if found > 0.6 * whole else " at most"
