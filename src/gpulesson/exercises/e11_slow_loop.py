"""Exercise 11: a loop with work that nobody needs."""

from __future__ import annotations

import ast
import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpulesson.exercises import calls
from gpulesson.exercises.exercise import Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural
from gpulesson.exercises.rules import called, definitions, memory, models, source_text, steps
from gpulesson.exercises.trace import NOWHERE, Site, Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NOTHING_TRAINED = Diagnosis(
    "nothing-trained",
    "The check counts the operators that mine(pixels, labels, steps) calls. So few cannot train a model.",
    "Copy the loop of slow() into mine(), and leave out what nobody needs.",
)
NO_LOSSES = Diagnosis(
    "no-losses",
    "The losses show that your loop trains the model as slow() does.",
    "Return a list of floats, one for each step: torch.stack(losses).tolist().",
)
LOSSES_MISSING = Diagnosis(
    "losses-missing",
    "Every step has a loss. The check calls mine() with its own data and number of steps.",
    "Take as many steps as the argument steps says, and return after the loop.",
)
FORGOTTEN_SEED = Diagnosis(
    "forgotten-seed",
    "The first weights are random. With another seed, or none, they differ from those in slow().",
    "Begin as slow() does: torch.manual_seed(1), then the model.",
)
OTHER_LOSSES = Diagnosis(
    "other-losses",
    "mine() has to train exactly as slow() does. Otherwise the two cannot be compared.",
    "Compare mine() with slow() line by line: seed, model, rows, learning rate, order of the calls.",
)
OTHER_ROWS = Diagnosis(
    "other-rows",
    "With other images in a batch its loss is another one, so the two functions cannot be compared.",
    "Choose the rows as slow() does: torch.arange(64 * step, 64 * (step + 1)) % len(pixels).",
)
OTHER_SCALE = Diagnosis(
    "other-scale",
    "A model gives other answers for other numbers. slow() turns the pixels into numbers from 0 to 1.",
    "Divide the images of the batch by 255: pixels[rows].float() / 255.",
)
OTHER_LABELS = Diagnosis(
    "other-labels",
    "Every image needs its own label.",
    "Select images and labels with the same rows: pixels[rows] and labels[rows].",
)
BYTES_FOR_NOTHING = Diagnosis(
    "bytes-for-nothing",
    "A step uses 64 images. Converting all of them in every step is mostly wasted work.",
    "Choose the rows first, and convert only those. Or convert all images once, before the loop.",
)
READS_FOR_NOTHING = Diagnosis(
    "reads-for-nothing",
    "On a GPU, every value that you read makes the CPU wait.",
    "Keep loss.detach(), and read all losses together after the loop: torch.stack(losses).tolist().",
)
READ_TO_DECIDE = Diagnosis(
    "reads-for-nothing",
    "if, assert, while and min() need the value of the tensor that they ask about. On a GPU, the CPU waits "
    "for it in every step.",
    "Leave this question out. Or ask once, after the loop: torch.stack(losses).isfinite().all().",
)
READ_TO_PRINT = Diagnosis(
    "reads-for-nothing",
    "To print a tensor, or to put it into a text, is to read it. On a GPU, the CPU waits for it each time.",
    "Keep loss.detach(), and print after the loop what you have read there together.",
)
OPERATORS_FOR_NOTHING = Diagnosis(
    "operators-for-nothing",
    "Work takes time, also if nobody uses its result.",
    "Run the starter's profile: python exercise_11.py profile. Ask for each row of the table: who uses "
    "its result?",
)

_SEED = 1
_IMAGES, _FEW, _MANY = 1000, 6, 24
"""Two numbers of steps: their difference is what a step costs, without what is done once, before the loop."""


def lean(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what the loop of exercise 11 does otherwise, or does that nobody needs."""
    facts = trace.facts
    if called.failed(trace):
        return
    if "result" not in facts:
        line = definitions.line(source.lines, "mine")
        yield source.failure(NOTHING_TRAINED, line, "The check could not call mine.")
        return
    if any(found.is_failure for found in steps.order(trace, source)):
        return  # other losses come from there
    if facts["all_operators"] < facts["enough_operators"] / 2:
        needed = f"{facts['enough_operators']:.0f}"
        what = f"mine called {facts['all_operators']} operators in all; one step alone needs {needed}."
        yield source.failure(NOTHING_TRAINED, definitions.line(source.lines, "mine"), what)
        return
    wrong = _wrong_losses(facts["result"], source)
    if wrong is not None:
        yield wrong
        return
    if facts["operators"] < 0.4 * facts["enough_operators"]:
        what = f"A step called {facts['operators']:.3g} operators; it needs {facts['enough_operators']:.3g}."
        yield source.failure(NOTHING_TRAINED, definitions.line(source.lines, "mine"), what)
        return
    yield from _needless(facts, source)


def _needless(facts: dict[str, Any], source: Source) -> Iterator[Finding]:
    def place(kind: str) -> int:
        line, own = int(facts[f"{kind}_line"]), definitions.nodes(source.lines, "mine")
        if line in definitions.span(source.lines, "slow"):  # which is to stay as it is
            line = next((node.lineno for node in own if source_text.called(node) == "slow"), 0)  # type: ignore[attr-defined]
        return line or definitions.line(source.lines, "mine")

    if facts["nbytes"] > 1.6 * facts["enough_nbytes"]:
        what = (
            f"With {_IMAGES} images a step works on {facts['nbytes'] / 1e6:.1f} MB, most "
            "of them on this line; "
            f"{facts['enough_nbytes'] / 1e6:.1f} MB are enough."
        )
        yield source.failure(BYTES_FOR_NOTHING, place("nbytes"), what)
    if facts["reads"] >= 1:
        more = plural(facts["reads"], "value")
        what = f"With {_MANY - _FEW} more steps, mine read {more} more, one by one; expected none."
        by = {"if": READ_TO_DECIDE, "print": READ_TO_PRINT}
        diagnosis = by.get(facts["reads_by"], READS_FOR_NOTHING)
        if _decides(source, facts["reads_line"]):
            diagnosis = READ_TO_DECIDE
        yield source.failure(diagnosis, place("reads"), what)
    rest = facts["operators"] - facts["operators_to_read"]  # what is read was computed for that
    if rest > 0.75 * facts["slow_operators"]:
        what = f"A step calls {facts['operators']:.3g} operators; {facts['enough_operators']:.3g} are enough."
        yield source.failure(OPERATORS_FOR_NOTHING, place("operators"), what)


def _decides(source: Source, line: int) -> bool:
    """Tell whether a line holds a question, of an if, an assert or a while."""
    nodes = source_text.all_nodes(source.lines)
    asking = [node for node in nodes if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert)]
    return any(source_text.holds(node.test, line) for node in asking)


def _wrong_losses(result: dict[str, Any], source: Source) -> Finding | None:
    line = definitions.line(source.lines, "mine")
    inside = definitions.nodes(source.lines, "mine")
    returns = [node.lineno for node in inside if isinstance(node, ast.Return)]
    if result["strange"]:
        what = f"mine returned {result['strange']}; expected a list of {_MANY} floats."
        return source.failure(NO_LOSSES, returns[-1] if returns else line, what)
    found, expected = result["found"], result["expected"]
    if len(found) != len(expected):
        what = f"mine returned {len(found)} losses; expected {len(expected)}, one for each step."
        early = [
            node.lineno
            for loop in inside
            if isinstance(loop, ast.For | ast.While)
            for node in ast.walk(loop)
            if isinstance(node, ast.Return | ast.Break)
        ]
        fixed = definitions.first_match(source.lines, r"\bSTEPS\b|range\(\d+\)", "mine")
        fixed = fixed if fixed in definitions.span(source.lines, "mine") else 0
        return source.failure(LOSSES_MISSING, next(iter(early), fixed or line), what)
    wrong = [step for step, (a, b) in enumerate(zip(found, expected, strict=True)) if not abs(a - b) < 1e-4]
    if not wrong:
        return None
    step = wrong[0]
    what = f"The loss of step {step + 1} is {found[step]:.5f}; expected {expected[step]:.5f}, as in slow()."
    if result["inputs"]:
        kind, of_inputs = result["inputs"]
        diagnosis, pattern = _OF_INPUTS[kind]
        lines = (_within(source, part) for part in pattern.split(" then "))
        return source.failure(diagnosis, next(filter(None, lines), line), f"{what} {of_inputs}")
    if not step and result["seed"] != _SEED:
        model = definitions.first_match(source.lines, r"manual_seed\(|\bMLP\(", "mine")
        own = model in definitions.span(source.lines, "mine")
        return source.failure(FORGOTTEN_SEED, model if own else line, what)
    if step and not any(source_text.called(node) in ("step", "slow") for node in _with_own(source)):
        backward = [node.lineno for node in inside if source_text.called(node) == "backward"]  # type: ignore[attr-defined]
        return source.failure(steps.NO_STEP, next(iter(backward), line), what)
    if not step:
        line = _within(source, r"\b(MLP|Sequential|Linear)\(") or line
    changed = definitions.first_match(source.lines, r"\b(SGD|Adam|AdamW|RMSprop|Adagrad)\(", "mine")
    as_before = re.search(r"SGD\(.*(?<![\d.])(0?\.10*|1e-0?1)\b", source.line(changed))
    if step and changed in definitions.span(source.lines, "mine") and not as_before:
        line = changed
    return source.failure(OTHER_LOSSES, line, what)


_OF_INPUTS = {
    OTHER_ROWS.kind: (
        OTHER_ROWS,
        r"arange\(|randperm|randint|\bslice\( then \[[^\]]*:[^\]]*\] then \brows\b.*= then range\(",
    ),
    OTHER_SCALE.kind: (OTHER_SCALE, r"/\s*\d|\.div_?\(|\.float\(|float32"),
    OTHER_LABELS.kind: (OTHER_LABELS, r"cross_entropy\(|criterion\(|loss_fn\(|CrossEntropyLoss\(\)\("),
}


def _own(source: Source) -> list[str]:
    """Return the names of mine() and of all that it calls in this file, directly or not; without slow()."""
    names = ["mine"]
    for name in names:  # which grows
        called_there = map(source_text.called, definitions.nodes(source.lines, name))
        for each in dict.fromkeys(called_there):
            if each and each not in (*names, "slow") and definitions.find(source.lines, each):
                names.append(each)
    return names


def _with_own(source: Source) -> list[ast.AST]:
    return [node for name in _own(source) for node in definitions.nodes(source.lines, name)]


def _within(source: Source, pattern: str) -> int:
    """Return the first line of mine(), or of what it calls in this file, that fits; 0 if none does."""
    for name in _own(source):
        line = definitions.first_match(source.lines, pattern, name)
        if line in definitions.span(source.lines, name):
            return line
    return 0


def _inputs(seen: list[tuple[Any, Any]], pixels: Any, labels: Any) -> list[str]:
    """Say how the batches differ from those of slow(): the kind of fault, and what was seen; empty if not."""
    import torch

    for step, (images, targets) in enumerate(seen):
        rows = torch.arange(64 * step, 64 * (step + 1)) % len(pixels)
        right = pixels[rows].float() / 255
        if len(images) < 64 and 64 * (step + 1) > len(pixels):
            what = (
                f"With {len(pixels)} images, step {step + 1} used {len(images)}: there the rows run out. "
                "slow() takes 64, and goes on from the beginning (%)."
            )
            return [OTHER_ROWS.kind, what]
        if len(images) != 64:
            what = f"The batch of step {step + 1} has {len(images)} images; expected 64."
            return [OTHER_ROWS.kind, what]
        if images.shape != right.shape:
            return []
        if not torch.allclose(images.float(), right, atol=1e-5):
            if torch.allclose(_ranks(images.float()), _ranks(right)):
                top = images.max().item()
                what = f"In step {step + 1} the largest number that the model got is {top:.4g}; expected 1."
                return [OTHER_SCALE.kind, what]
            return [OTHER_ROWS.kind, f"In step {step + 1} the model got other images than in slow()."]
        if targets is not None and (targets.shape != (64,) or not torch.equal(targets, labels[rows])):
            return [OTHER_LABELS.kind, f"In step {step + 1} the images had labels that are not theirs."]
    return []


def _ranks(images: Any) -> Any:
    """Return the images with values from 0 to 1, whatever their scale."""
    low, top = images.min(), images.max()
    return (images - low) / (top - low).clamp(min=1e-12)


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Count what a step costs, by two calls with data of the check's own."""
    import torch

    from gpulesson.exercises.watch import counters
    from gpulesson.exercises.watch.counters import Work

    draw = torch.Generator().manual_seed(11)
    pixels = torch.randint(256, (_IMAGES, 784), dtype=torch.uint8, generator=draw)
    labels = torch.randint(10, (_IMAGES,), generator=draw)
    mine = calls.find(trace, space, "mine", pixels, labels, _MANY)
    doing = f"mine with {_IMAGES} images and {_MANY} steps"

    def counted(function: Any, number: int) -> tuple[Any, Work]:
        with Work() as work:
            return calls.call(trace, space, doing, function, pixels.clone(), labels.clone(), number), work

    def of_a_step(function: Any) -> tuple[Any, Work, int]:
        (result, more), (_, less) = counted(function, _MANY), counted(function, _FEW)
        return result, more - less, more.operators.total()

    torch.manual_seed(_SEED + 1)
    with calls.seen_again(trace, observer):  # the check trains as well, below
        result, found, total = of_a_step(mine)
    seed = torch.initial_seed()
    with counters.batches() as seen, contextlib.suppress(calls.Failed):
        calls.call(trace, space, doing, mine, pixels.clone(), labels.clone(), _MANY)
    inputs = _inputs(seen[:_MANY], pixels, labels)
    expected, enough, _ = of_a_step(_lean)
    slow = of_a_step(_slow)[1]
    trace.facts["result"] = {"expected": expected, "seed": seed, "inputs": inputs, **_losses(result)}
    needed: Counter[str] = Counter()
    for (name, _), count in enough.operators.items():
        needed[name] += count
    surplus: Counter[Site] = Counter()
    for (name, site), count in found.operators.items():
        surplus[site] += max(0, count - needed[name])
    part, most = _MANY - _FEW, _top(found.reads)
    trace.facts |= {
        "all_operators": total,
        "operators": found.operators.total() / part,
        "enough_operators": enough.operators.total() / part,
        "slow_operators": slow.operators.total() / part,
        "nbytes": found.nbytes.total() / part,
        "enough_nbytes": enough.nbytes.total() / part,
        "reads": found.reads.total(),
        "operators_to_read": sum(surplus[site] for site in found.reads) / part,
        "operators_line": _top(surplus).line,
        "nbytes_line": _top(found.nbytes).line,
        "reads_line": most.line,
        "reads_by": found.ways.get(most, ""),
    }


def _top(counts: Counter[Site]) -> Site:
    """Return the place with the largest count; nowhere if there is none."""
    return max(counts, key=lambda site: counts[site], default=NOWHERE)


def _losses(result: Any) -> dict[str, Any]:
    """Return the losses as floats; or, in words, what else was returned."""
    import torch

    if result is None:
        return {"strange": "nothing (None)", "found": []}
    if isinstance(result, torch.Tensor):
        return {"strange": "a tensor", "found": []}
    values = result.tolist() if hasattr(result, "tolist") else result
    if not isinstance(values, list | tuple):
        return {"strange": f"a {type(result).__name__}", "found": []}
    if any(isinstance(value, torch.Tensor) for value in values):
        return {"strange": "a list of tensors", "found": []}
    try:
        return {"strange": "", "found": [float(value) for value in values]}
    except (TypeError, ValueError):
        return {"strange": f"a list of {type(values[0]).__name__}", "found": []}


def _lean(pixels: Any, labels: Any, number: int) -> list[float]:
    """Take the steps with nothing that nobody needs."""
    return _loop(pixels, labels, number, lean=True)


def _slow(pixels: Any, labels: Any, number: int) -> list[float]:
    """Take them as the starter does."""
    return _loop(pixels, labels, number, lean=False)


def _loop(pixels: Any, labels: Any, number: int, lean: bool) -> list[float]:
    import torch

    from gpulesson.models import MLP

    torch.manual_seed(_SEED)
    model = MLP(784, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[Any] = []
    for step in range(number):
        rows = torch.arange(64 * step, 64 * (step + 1)) % len(pixels)
        images = pixels[rows].float() / 255 if lean else (pixels.float() / 255)[rows]
        loss = torch.nn.functional.cross_entropy(model(images), labels[rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if not lean:
            norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
            torch.isfinite(torch.stack(norms).norm()).item()
        optimizer.step()
        losses.append(loss.detach() if lean else loss.item())
    return list(torch.stack(losses).tolist()) if lean else losses


EXERCISE = Exercise(
    name="11_slow_loop",
    lesson="Profile before you optimise",
    title="Three things that nobody needs",
    demand="the same losses, with less work",
    difficulty="hard",
    hint_for={"operators-for-nothing": 2, "reads-for-nothing": 3},
    hints=(
        "Which line works on all 4,000 images, and how many of them does the step use?",
        "Who looks at the norms of the gradients? What stops when one of them is infinite?",
        "How often must the CPU read a loss, if nobody looks at it before the end?",
    ),
    rules=(models.modes, memory.losses_kept, called.calls, lean),
    probe=probe,
    function="mine",
)
