"""Exercise 13: a batch that does not fit, learned from in less memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpulesson.exercises import calls
from gpulesson.exercises.exercise import Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural
from gpulesson.exercises.rules import called, definitions
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

DOES_NOT_FIT = Diagnosis(
    "does-not-fit",
    "All activations of the rows that go through the model together are kept until backward() has used them.",
    "Cut each batch into parts: inputs.chunk(4). Call backward() for each part, before the next one.",
)
LEFT_THE_GPU = Diagnosis(
    "left-the-gpu",
    "The CPU has memory enough, but the task is to train on the GPU.",
    "Leave the model on the GPU, and send it fewer rows at a time.",
)
UPDATES_MISSING = Diagnosis(
    "updates-missing",
    "A batch from which nothing was learned is lost. An error that is caught and forgotten loses it, too.",
    "Call optimizer.step() once for each batch, when the gradients of all its rows are collected.",
)
STEP_IN_EVERY_PART = Diagnosis(
    "step-in-every-part",
    "Each step() changes the weights. Many small steps are not one large step.",
    "Call optimizer.step() once, after the loop over the parts.",
)
ROWS_LEFT_OUT = Diagnosis(
    "rows-left-out",
    "A smaller batch fits, but it learns from fewer rows.",
    "Let all rows of a batch go through the model, some at a time, before optimizer.step().",
)
GRADIENTS_THROWN_AWAY = Diagnosis(
    "gradients-thrown-away",
    "backward() adds to the gradients. To set them back between the parts forgets the parts before.",
    "Call optimizer.zero_grad() once for each batch, before the first of its parts.",
)
GRADIENTS_KEPT = Diagnosis(
    "gradients-kept",
    "backward() adds to what is there. Without zero_grad() that is the gradient of the batches before.",
    "Call optimizer.zero_grad() once for each batch, before the first of its parts or after step().",
)
NOT_DIVIDED = Diagnosis(
    "not-divided",
    "The loss is a mean over all rows of the batch. Each part adds its share, of four equal parts a quarter.",
    "Divide each part's loss by the number of parts: (loss / 4).backward().",
)
OTHER_WEIGHTS = Diagnosis(
    "other-weights",
    "With the same model and the same batches, the weights have to be those of the large batch, to rounding.",
    "Start again from the starter's train, and change only how many rows go through the model at a time.",
)

_BATCHES, _ROWS, _WIDTH, _DEPTH, _RATE = 4, 4096, 64, 12, 0.5
_MEMORY = 12 * 2**20
_NEAR = 1e-5
"""Of weights that should be equal: rounding makes about a thousandth of it."""


def fits(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say why the run of exercise 13 does not fit, or what it learns otherwise than the large batch."""
    facts = trace.facts
    if "no_room" in facts:
        message, line = facts["no_room"]
        yield source.failure(DOES_NOT_FIT, line, f"In {_MEMORY // 2**20} MiB, train stops: {message}")
        return
    if called.failed(trace):
        return
    if "steps" not in facts:
        yield source.failure(UPDATES_MISSING, 0, "The check could not call train.")
        return
    found = _fault(facts)
    if found is not None:
        diagnosis, pattern, what = found
        line = definitions.first_match(source.lines, pattern, "train")
        line = line if line in definitions.span(source.lines, "train") else 0
        yield source.failure(diagnosis, line, what)


def _fault(facts: dict[str, Any]) -> tuple[Diagnosis, str, str] | None:
    """Return what is wrong, a pattern of the line where it may be, and what was seen; None if nothing is."""
    steps, rows = facts["steps"], facts["rows"]
    forward = r"\bmodel\("
    if facts["off_the_gpu"]:
        return LEFT_THE_GPU, forward, f"Rows went through the model on {facts['off_the_gpu']}."
    updates = f"{plural(steps, 'update')} from {plural(_BATCHES, 'batch').replace('batchs', 'batches')}"
    if steps > _BATCHES:
        return STEP_IN_EVERY_PART, r"\.step\(", f"The check counted {updates}."
    if steps < _BATCHES:
        return UPDATES_MISSING, r"\bexcept\b|\.step\(", f"The check counted {updates}."
    if rows < _BATCHES * _ROWS:
        what = f"{rows:,} of {_BATCHES * _ROWS:,} rows went through the model."
        return ROWS_LEFT_OUT, forward, what
    if facts["difference"] < _NEAR:
        return None
    if facts["thrown_away"]:
        what = "The gradients were set back after backward(), before step()."
        return GRADIENTS_THROWN_AWAY, r"zero_grad|\.grad\b", what
    ratio = facts["ratio"]
    if ratio is None:
        what = f"The largest difference of a weight is {facts['difference']:.1e}."
        return OTHER_WEIGHTS, r"\.step\(", what
    if abs(ratio - 1) > 1e-3:
        what = f"The gradient of the first batch was {ratio:,.4g} times as large as that of all its rows."
        return NOT_DIVIDED, r"\.backward\(", what
    what = "The first update was right; the next ones had the gradients of the batches before, too."
    return GRADIENTS_KEPT, r"\.step\(", what


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Let `train` work on a practice GPU of the check's own, with little memory, and look at each update."""
    import torch

    from gpulesson.practice import practice_gpu

    trace.in_steps, trace.wasted = trace.backwards, 0  # many a backward() for one step() is asked for here
    batches = _batches()
    expected, right = _as_it_should_be(batches)
    with practice_gpu(force=True) as gpu:  # with the memory of the one that the check has opened already
        trace.device, trace.simulated = gpu.name, gpu.simulated
        room = torch.cuda.memory_allocated() + _MEMORY
        torch.cuda.set_per_process_memory_fraction(room / torch.cuda.mem_get_info()[1])
        model = _model().to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
        train = calls.find(trace, space, "train", model, optimizer, batches)
        seen = _Seen(model, optimizer)
        try:
            doing = f"train with {_BATCHES} batches of {_ROWS:,} rows"
            calls.call(trace, space, doing, train, model, optimizer, batches)
        except calls.Failed:
            _no_room(trace)
            raise
        weights = _flat(parameter.detach() for parameter in model.parameters())
        trace.facts |= {
            "steps": seen.steps,
            "rows": seen.rows,
            "off_the_gpu": seen.off_the_gpu,
            "thrown_away": seen.thrown_away,
            "difference": float((weights - expected).abs().max()),
            "ratio": _ratio(seen.first, right),
        }


def _no_room(trace: Trace) -> None:
    """Where the call ended for lack of memory, say so in facts of its own."""
    _, message, file, line = trace.facts["fell"]
    if re.search("out of memory", message):
        trace.facts["no_room"] = [message.split(" GPU 0 has")[0], line if file == trace.program else 0]
        del trace.facts["fell"]


class _Seen:
    """What happens to a model while it is trained."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.steps = self.rows = 0
        self.off_the_gpu, self.thrown_away = "", False
        self.first: Any = None
        self._collected = False
        self._parameters = list(model.parameters())
        model[0].weight.register_post_accumulate_grad_hook(self._collect)
        model[0].register_forward_pre_hook(self._begin)
        optimizer.register_step_pre_hook(self._step)
        for owner in (model, optimizer):
            self._watch(owner)

    def _begin(self, layer: Any, inputs: Any) -> None:
        if inputs[0].device.type != "cuda":
            self.off_the_gpu = str(inputs[0].device)
        self.rows += len(inputs[0])

    def _watch(self, owner: Any) -> None:
        zero = owner.zero_grad

        def zero_grad(*args: Any, **kwargs: Any) -> None:
            self.thrown_away = self.thrown_away or self._collected
            zero(*args, **kwargs)

        owner.zero_grad = zero_grad

    def _collect(self, weight: Any) -> None:
        self._collected = True

    def _step(self, *_: Any) -> None:
        import torch

        if not self.steps and all(parameter.grad is not None for parameter in self._parameters):
            self.first = _flat(torch.clone(parameter.grad) for parameter in self._parameters)
        self.steps += 1
        self._collected = False


def _ratio(found: Any, right: Any) -> float | None:
    """Return how many times as large a gradient is as the right one; None if it has another direction."""
    if found is None:
        return None
    ratio = float(found @ right / (right @ right))
    return ratio if float((found - ratio * right).norm()) < 1e-3 * abs(ratio) * float(right.norm()) else None


def _as_it_should_be(batches: list[Any]) -> tuple[Any, Any]:
    """Return the weights after training with whole batches, and the gradient of the first; on the CPU."""
    import torch

    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    first = None
    for inputs, labels in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        first = _flat(parameter.grad for parameter in model.parameters()) if first is None else first
        optimizer.step()
    return _flat(parameter.detach() for parameter in model.parameters()), first


def _flat(tensors: Any) -> Any:
    import torch

    return torch.cat([tensor.cpu().flatten() for tensor in tensors])


def _model() -> Any:
    import torch
    from torch import nn

    state = torch.get_rng_state()
    torch.manual_seed(13)
    hidden = [layer for _ in range(_DEPTH) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(_WIDTH, 10))
    torch.set_rng_state(state)
    return model


def _batches() -> list[Any]:
    import torch

    draw = torch.Generator().manual_seed(13)
    inputs = torch.randn(_BATCHES, _ROWS, _WIDTH, generator=draw)
    labels = torch.randint(10, (_BATCHES, _ROWS), generator=draw)
    return list(zip(inputs, labels, strict=True))


EXERCISE = Exercise(
    name="13_fit_the_batch",
    lesson="When it does not fit",
    title="Twelve mebibytes for 4,096 rows",
    demand="one update for each batch, from all of its rows, in 12 MiB",
    difficulty="medium",
    hint_for={"not-divided": 2, "step-in-every-part": 3, "gradients-thrown-away": 3},
    hints=(
        "Which of the five things that fill the memory grows with the number of rows?",
        "The mean of 4,096 rows is a quarter of each of the four means of 1,024 rows, added up.",
        "zero_grad() once, then backward() four times, then step() once.",
    ),
    rules=(called.calls, fits),
    probe=probe,
    function="train",
)
