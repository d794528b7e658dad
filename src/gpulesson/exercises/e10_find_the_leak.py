"""Exercise 10: a run whose memory grows, and an evaluation that keeps a history."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpulesson.exercises import calls
from gpulesson.exercises.exercise import Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import called, definitions, memory, source_text
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

LOSS_MISSING = Diagnosis(
    "loss-missing",
    "The losses are what you look at after a run. Without them, less memory is no gain.",
    "Return the mean loss of all batches, and keep only numbers for it: losses.append(loss.detach()).",
)
NOTHING_TRAINED = Diagnosis(
    "nothing-trained",
    "A run that does not train needs little memory, and is of no use.",
    "Leave the loss, zero_grad(), backward() and step() of train() as they are in the starter.",
)
EVALUATION_TRAINS = Diagnosis(
    "evaluation-trains",
    "An evaluation must not change what it measures.",
    "Call no backward() and no step() in evaluate().",
)
OTHER_LOSSES = Diagnosis(
    "other-losses",
    "With the same model and the same batches, the losses must be those of the starter.",
    "Change how the losses are kept, not how they are computed.",
)
MEMORY_GROWS = Diagnosis(
    "memory-grows",
    "Each epoch leaves something on the GPU that the next one does not need.",
    "Look for what is stored outside of the function, and keep only numbers of Python there: loss.item().",
)
CACHE_EMPTIED = Diagnosis(
    "cache-emptied",
    "empty_cache() gives back memory that no tensor uses. Here tensors use it: the losses keep them.",
    "Leave it out, and keep each loss without its history: losses.append(loss.detach()).",
)
GARBAGE_COLLECTED = Diagnosis(
    "garbage-collected",
    "gc.collect() frees objects that nothing refers to any more. The list still refers to the losses.",
    "Leave it out, and keep each loss without its history: losses.append(loss.detach()).",
)
NAME_DELETED = Diagnosis(
    "name-deleted",
    "del removes a name, not the tensor. The list still holds the loss, and the loss its history.",
    "Leave it out, and keep each loss without its history: losses.append(loss.detach()).",
)

_NO_HELP = {"empty_cache": CACHE_EMPTIED, "collect": GARBAGE_COLLECTED}
_EPOCHS, _TRAIN, _TEST, _ROWS, _WIDTH = 3, 6, 4, 48, 192
"""What the check's own run has: epochs, batches of both kinds, rows of a batch, numbers of a row."""
_BLOCK = 512
_NAMES = "train", "evaluate"


def leak(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what the run of exercise 10 keeps, or what it no longer does."""
    facts = trace.facts
    if called.failed(trace):
        return
    if "grown" not in facts:
        what = "The check could not call train and evaluate."
        yield source.failure(NOTHING_TRAINED, definitions.line(source.lines, "train"), what)
        return
    undone = _undone(facts, source)
    if undone is not None:
        yield undone
        return
    histories = [name for name in _NAMES if facts[name]["history"]]
    for name in histories:
        what = f"The loss that {name} returned still had its history."
        yield source.failure(memory.LOSSES_KEPT, _keeping(source, name), what)
        yield from _no_help(source, name)
    grown = facts["grown"]
    if sum(grown.values()) > (_EPOCHS - 1) * len(_NAMES) * _BLOCK and not histories:
        most = max(grown, key=lambda name: int(grown[name]))
        what = f"After epoch {_EPOCHS}, {sum(grown.values()):,} bytes more were allocated than after epoch 1."
        yield source.failure(MEMORY_GROWS, _keeping_outside(source, most), what)
    if facts["needed"] > 1.5 * facts["enough"]:
        what = f"evaluate needed {facts['needed']:,} bytes more, at most; {facts['enough']:,} are enough."
        line = definitions.first_match(source.lines, r"\bmodel\(", "evaluate")
        yield source.failure(memory.GRADIENTS_WHILE_EVALUATING, line, what)


def _undone(facts: dict[str, Any], source: Source) -> Finding | None:
    """Say what the functions no longer do."""
    for name in _NAMES:
        if facts[name]["strange"]:
            what = f"{name} returned {facts[name]['strange']}; expected the mean loss, one number."
            return source.failure(LOSS_MISSING, _returning(source, name), what)
    if facts["unchanged"]:
        what = f"After {_EPOCHS} epochs the model's weights are those from the beginning."
        return source.failure(NOTHING_TRAINED, definitions.line(source.lines, "train"), what)
    if facts["evaluation_trains"]:
        line = definitions.first_match(source.lines, r"\.step\(|\.backward\(", "evaluate")
        what = "The model's weights were others after evaluate than before."
        return source.failure(EVALUATION_TRAINS, line, what)
    for name in _NAMES:
        found, expected = facts[name]["found"], facts[name]["expected"]
        if not abs(found - expected) < 1e-4:
            what = f"The loss that {name} returned is {found:.5f}; expected {expected:.5f}."
            return source.failure(OTHER_LOSSES, _returning(source, name), what)
    return None


def _keeping(source: Source, name: str) -> int:
    """Return the line of a function that collects the losses, or that returns their mean."""
    line = definitions.first_match(source.lines, r"\.append\(|\+=|\bfor\b.*\]", name)
    return line if line in definitions.span(source.lines, name) else _returning(source, name)


def _keeping_outside(source: Source, name: str) -> int:
    """Return the line of a function that puts something into a list from outside, if it can be told."""
    nodes = definitions.nodes(source.lines, name)
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in nodes:
        if isinstance(node, ast.Call) and source_text.called(node) in ("append", "extend"):
            holder = node.func.value if isinstance(node.func, ast.Attribute) else None
            if isinstance(holder, ast.Name) and holder.id not in own:
                return node.lineno
    return _keeping(source, name)


def _returning(source: Source, name: str) -> int:
    """Return the line of a function's last return, or that of its definition."""
    nodes = definitions.nodes(source.lines, name)
    lines = [node.lineno for node in nodes if isinstance(node, ast.Return)]
    return lines[-1] if lines else definitions.line(source.lines, name)


def _no_help(source: Source, name: str) -> Iterator[Finding]:
    """Name what a learner has tried in a function, and why it does not free a tensor."""
    for node in definitions.nodes(source.lines, name):
        diagnosis = _NO_HELP.get(source_text.called(node) or "")
        if isinstance(node, ast.Delete):
            diagnosis = NAME_DELETED
        if diagnosis is not None:
            what = "This does not free what the losses keep."
            yield source.failure(diagnosis, node.lineno, what)  # type: ignore[attr-defined]


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Let both functions work for three epochs on a practice GPU of the check's own, and read its counts."""
    import torch

    from gpulesson.practice import practice_gpu

    with practice_gpu(force=True) as gpu:
        trace.device, trace.simulated = gpu.name, gpu.simulated
        model, optimizer, train_batches, test_batches = _task()
        train = calls.find(trace, space, "train", model, optimizer, train_batches)
        evaluate = calls.find(trace, space, "evaluate", model, test_batches)
        before = _weights(model)
        kept, grown, needed, trains, held = [], dict.fromkeys(_NAMES, 0), 0, False, 0
        for epoch in range(_EPOCHS):
            doing = f"train with {_TRAIN} batches"
            kept.append(calls.call(trace, space, doing, train, model, optimizer, train_batches))
            trained, start = _weights(model), torch.cuda.memory_allocated()
            with _highest() as counts:
                doing = f"evaluate with {_TEST} batches"
                kept.append(calls.call(trace, space, doing, evaluate, model, test_batches))
            needed = max(needed, max(counts, default=start) - start)
            trains = trains or not _same(trained, _weights(model))
            if epoch:  # the first one makes the gradients and the optimizer's state
                grown["train"] += start - held
                grown["evaluate"] += torch.cuda.memory_allocated() - start
            held = torch.cuda.memory_allocated()
        trace.facts |= {
            "train": _loss(kept[-2]),
            "evaluate": _loss(kept[-1]),
            "grown": grown,
            "needed": needed,
            "unchanged": _same(before, _weights(model)),
            "evaluation_trains": trains,
        }
        del kept, model, optimizer, train_batches, test_batches
        expected, trace.facts["enough"] = _as_it_should_be()
        for name in _NAMES:
            trace.facts[name]["expected"] = expected[name]


def _task() -> tuple[Any, Any, list[Any], list[Any]]:
    """Make a model on the device, its optimizer, and the batches of both kinds."""
    import torch
    from torch import nn

    draw = torch.Generator().manual_seed(10)
    images = torch.rand(_TRAIN + _TEST, _ROWS, _WIDTH, generator=draw).to("cuda")
    labels = torch.randint(10, (_TRAIN + _TEST, _ROWS), generator=draw).to("cuda")
    state = torch.get_rng_state()
    torch.manual_seed(10)
    hidden = [layer for _ in range(3) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(_WIDTH, 10)).to("cuda")
    torch.set_rng_state(state)
    batches = list(zip(images, labels, strict=True))
    return model, torch.optim.Adam(model.parameters()), batches[:_TRAIN], batches[_TRAIN:]


def _as_it_should_be() -> tuple[dict[str, float], int]:
    """Return the mean losses of the last epoch, and what an evaluation without a history needs at most."""
    import torch

    model, optimizer, train_batches, test_batches = _task()
    loss_fn = torch.nn.CrossEntropyLoss()
    for _ in range(_EPOCHS):
        trained = []
        for images, labels in train_batches:
            loss = loss_fn(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trained.append(loss.item())
    start = torch.cuda.memory_allocated()
    with torch.no_grad(), _highest() as counts:
        tested = [loss_fn(model(images), labels).item() for images, labels in test_batches]
    means = {"train": sum(trained) / _TRAIN, "evaluate": sum(tested) / _TEST}
    return means, max(counts) - start


def _highest() -> Any:
    """Return a block that notes the allocated bytes after each operator: a peak that nobody can reset."""
    import contextlib

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            counts.append(torch.cuda.memory_allocated())
            return result

    counts: list[int] = []

    @contextlib.contextmanager
    def noting() -> Iterator[list[int]]:
        with Noting():  # type: ignore[no-untyped-call]
            yield counts

    return noting()


def _weights(model: Any) -> list[Any]:
    return [parameter.detach().cpu() for parameter in model.parameters()]


def _same(before: list[Any], after: list[Any]) -> bool:
    import torch

    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def _loss(result: Any) -> dict[str, Any]:
    """Return a loss as a float, and whether it has a history; or, in words, what else was returned."""
    import torch

    history = isinstance(result, torch.Tensor) and result.requires_grad
    value = result.detach() if history else result
    try:
        if isinstance(value, str):
            raise TypeError
        return {"strange": "", "found": float(value), "history": history}
    except (TypeError, ValueError, RuntimeError):
        strange = "nothing (None)" if value is None else f"a {type(value).__name__}"
        return {"strange": strange, "found": None, "history": False}


EXERCISE = Exercise(
    name="10_find_the_leak",
    lesson="Where did my memory go?",
    title="Find the leak",
    demand="the losses as before, and no memory that grows",
    demand_for={"gradients-while-evaluating": "an evaluation without a history"},
    difficulty="medium",
    hint_for={"loss-missing": 2, "gradients-while-evaluating": 3},
    hints=(
        "What does a loss hold on to, before backward() and after it?",
        "loss.detach() returns the number without its history. Which of the two is in the list?",
        "In evaluate() nobody calls backward(). Which block tells PyTorch so?",
    ),
    rules=(called.calls, leak),
    probe=probe,
    function="train",
)
