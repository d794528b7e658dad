"""Exercise 12: the learning rate of a larger batch."""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpulesson.exercises.exercise import COMMON, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source
from gpulesson.exercises.rules import definitions, source_text
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NO_RATE = Diagnosis(
    "no-rate",
    "The check trains with your RATE, with its own data and its own small batch. It does not look at "
    "what the file prints.",
    "Keep the name RATE, outside of any function, and give it a number: RATE = 2e-3.",
)
RATE_NO_NUMBER = Diagnosis(
    "rate-no-number",
    "A learning rate is a single positive number.",
    "Write one number, without quotation marks, brackets or a comma: RATE = 2e-3.",
)
TRIAL_CHANGED = Diagnosis(
    "trial-changed",
    "The comparison is fair only if nothing but RATE changes. Data, model, batch sizes and the small "
    "batch's rate of 0.001 stay.",
    "Put this part back as it is in the starter, and change only RATE.",
)
SEEDS_LEFT_OUT = Diagnosis(
    "seeds-left-out",
    "With one seed a rate may pay by luck. It has to pay with each of the seeds 0, 1 and 2.",
    "Put range(3) back. Then change RATE until it pays with all three seeds.",
)
VERDICT_CHANGED = Diagnosis(
    "verdict-changed",
    "It pays if the large batch needs at most 1.5 times the epochs of the small one, with each seed.",
    "Put the line back: pays = all(large <= 1.5 * small for small, large in needed). Then change RATE.",
)
RATE_TOO_SMALL = Diagnosis(
    "rate-too-small",
    "A larger batch takes fewer steps in an epoch, so each step has to be longer.",
    "Double RATE, and run it again.",
)
RATE_OVERSTEPS = Diagnosis(
    "rate-oversteps",
    "Steps that are too long jump over the minimum, so the loss stays high.",
    "Halve RATE, and run it again.",
)

_BEST = 0.04
"""About here the large batch needs the fewest epochs; from 0.15 on it needs more again."""
_SEEDS = (0, 1, 2)
_OTHER_SPLIT, _OTHER_SEEDS = 1, (10, 11)
_AT_MOST = 200


def larger_batch(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether the rate of exercise 12 is too small or too large."""
    facts = trace.facts
    line = definitions.line(source.lines, "RATE")
    if not line or "epochs" not in facts:
        if line and "strange" in facts:
            yield source.failure(
                RATE_NO_NUMBER, line, f"RATE is {facts['strange']}; expected a positive number."
            )
        else:
            yield source.failure(NO_RATE, 0, "Outside of its functions the file has no RATE.")
        return
    small, large = facts["epochs"]
    if not facts["pays"]:
        changed = 0 if facts.get("luck") else _changed(facts, source)
        seed = facts.get("seed", 0)
        rate = f"With a rate of {facts['rate']:g}"
        needs = f"{rate} and seed {seed}, the large batch needs {large} epochs and the small one {small}"
        left_out = 0 if facts.get("luck") else _seeds_left_out(source, seed)
        if left_out:
            what = f"{needs}. Your file does not try that seed."
            yield source.failure(SEEDS_LEFT_OUT, left_out, what)
            return
        if changed and changed == definitions.line(source.lines, "pays"):
            what = f"{needs}. That does not pay, but this line says that it does."
            yield source.failure(VERDICT_CHANGED, changed, what)
            return
        if changed:
            own = facts["own"][seed : seed + 1]
            theirs = (
                " Your file counted {1} and {0}.".format(*own[0]) if own != [[small, large]] and own else ""
            )
            what = f"{needs}, when the check trains them. That is not at most 1.5 times as many.{theirs}"
            yield source.failure(TRIAL_CHANGED, changed, what)
            return
        what = (
            f"{rate} and seed {seed}, the large batch needs {large} epochs; expected "
            f"at most {1.5 * small:g}, "
            f"1.5 times the small one's {small}."
        )
        if facts.get("luck"):
            what = (
                f"{rate}, other seeds and other test digits, the large batch needs "
                f"{large} epochs, the small one "
                f"{small}; expected at most twice as many."
            )
        if large >= _AT_MOST:
            what = (
                f"{rate} the large batch does not reach 95 % in {large} epochs; the small one needs {small}."
            )
        yield source.failure(RATE_OVERSTEPS if facts["rate"] > _BEST else RATE_TOO_SMALL, line, what)


def _changed(facts: dict[str, Any], source: Source) -> int:
    """Return the line that has made the trial another one than the starter's; 0 if none did."""
    own = facts["own"]
    enough = facts["says_it_pays"] and not all(_pays(*pair) for pair in own)
    if own and enough:
        return definitions.line(source.lines, "pays")
    if all(mine == ours for mine, ours in zip(own, facts["pairs"], strict=False)):
        return 0
    if facts["data_changed"]:
        return definitions.line(source.lines, "X_test") or definitions.line(source.lines, "needed")
    for node in _calls(source):
        given = [*node.args[1:3], *(keyword.value for keyword in node.keywords if keyword.arg in _TRIED)]
        values = [_value(source, argument) for argument in given]
        if len(values) == 2 and values not in (["32", "0.001"], ["512", "RATE"]):
            right = {"32": "0.001", "512": "RATE"}.get(values[0], "")
            wrong = given[1] if right else given[0]
            name = ast.unparse(wrong)
            constant = (
                name.isidentifier() and name != "RATE"
            )  # RATE may change: here it is in the wrong place
            return (definitions.line(source.lines, name) if constant else 0) or wrong.lineno
    return definitions.line(source.lines, "epochs_needed") or definitions.line(source.lines, "needed")


_TRIED = ("batch_size", "rate")


def _value(source: Source, node: ast.expr) -> str:
    """Return what an argument is, as text: that of a constant, where its name is the file's own constant."""
    bound = (
        definitions.find(source.lines, node.id) if isinstance(node, ast.Name) and node.id != "RATE" else None
    )
    value = bound.value if isinstance(bound, ast.Assign | ast.AnnAssign) else None
    return ast.unparse(value if isinstance(value, ast.Constant) else node)


def _seeds_left_out(source: Source, seed: int) -> int:
    """Return the line of a loop over fewer seeds than the starter's, which leaves out this one; 0 if none."""
    for node in source_text.all_nodes(source.lines):
        if isinstance(node, ast.For | ast.ListComp | ast.GeneratorExp):
            names = {source_text.called(part) for part in ast.walk(node)}
            over = node.iter if isinstance(node, ast.For) else node.generators[0].iter
            with contextlib.suppress(ValueError, TypeError):
                if "epochs_needed" in names and seed not in _numbers(over):
                    return over.lineno
    return 0


def _numbers(node: ast.expr) -> Sequence[int]:
    """Return the numbers of a written-down range or list; ValueError where they are not."""
    if source_text.called(node) == "range" and isinstance(node, ast.Call):
        return range(*(ast.literal_eval(argument) for argument in node.args))
    found = ast.literal_eval(node)
    return list(found)


def _calls(source: Source) -> list[ast.Call]:
    """Return the calls of epochs_needed."""
    nodes = source_text.all_nodes(source.lines)
    return [n for n in nodes if isinstance(n, ast.Call) and source_text.called(n) == "epochs_needed"]


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Train with the learner's rate, and count epochs: as the starter does, and with other data and seeds."""
    rate = _number(trace, space.get("RATE"), "RATE" in space)
    if rate is None:
        return
    import torch

    observer.training.stop()
    trace.facts["rate"] = rate
    # unwatched, and so three times as fast
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        _try(trace, rate)
        trace.facts["data_changed"] = _other_data(space, _parts(0))
    trace.facts["own"] = _own_counts(space.get("needed"))
    trace.facts["says_it_pays"] = space.get("pays") is True


def _try(trace: Trace, rate: float) -> None:
    """Count the epochs, as the starter does, and with other data and seeds."""
    parts = _parts(0)
    pairs: list[list[int]] = []
    for seed in _SEEDS:
        pairs.append([_epochs(parts, seed, 32, 1e-3), _epochs(parts, seed, 512, rate)])
        if not _pays(*pairs[-1]):
            break
    trace.facts["pairs"] = pairs
    pays = all(_pays(*pair) for pair in pairs)
    if pays:  # nor was it luck: twice as many at most, with data and seeds that the file has not tried
        parts = _parts(_OTHER_SPLIT)
        others = [(_epochs(parts, seed, 32, 1e-3), _epochs(parts, seed, 512, rate)) for seed in _OTHER_SEEDS]
        small, large = (sum(column) for column in zip(*others, strict=True))
        pays = large <= 2 * small
        if not pays:
            pairs = [[small, large]]
        trace.facts["luck"] = not pays
    trace.facts["pays"] = pays
    ratios = [large / small for small, large in pairs]
    trace.facts["seed"] = ratios.index(max(ratios))
    trace.facts["epochs"] = pairs[ratios.index(max(ratios))]


def _number(trace: Trace, value: Any, there: bool) -> float | None:
    """Return the rate; else note what is there instead."""
    try:
        rate = float("nan" if isinstance(value, str | bool) else value)
    except (TypeError, ValueError, RuntimeError):
        rate = math.nan
    if math.isfinite(rate) and rate > 0:
        return rate
    if there:
        trace.facts["strange"] = repr(value)[:60]
    return None


def _pays(small: int, large: int) -> bool:
    return large <= 1.5 * small


def _own_counts(needed: Any) -> list[list[int]]:
    """Return the pairs of epochs that the file has counted, if it has."""
    try:
        return [[int(small), int(large)] for small, large in needed][:10]
    except (TypeError, ValueError):
        return []


def _parts(split: int) -> list[Any]:
    """Return the digits' images and labels for training and for the test."""
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    targets = torch.tensor(digits.target)
    return list(train_test_split(images, targets, test_size=0.2, random_state=split))


def _other_data(space: dict[str, Any], parts: Any) -> bool:
    """Tell whether the file's own data, if it has any, are not those of the starter."""
    import torch

    own = [space.get(name) for name in ("X_train", "X_test", "y_train", "y_test")]
    there = [(a, b) for a, b in zip(own, parts, strict=True) if isinstance(a, torch.Tensor)]
    return any(not torch.equal(a.detach().cpu(), b) for a, b in there)


def _epochs(parts: Any, seed: int, batch_size: int, rate: float) -> int:
    """Return how many epochs it takes until 95 % of the test digits are read rightly, as the starter does."""
    import torch

    from gpulesson.data import Batches
    from gpulesson.models import MLP

    X_train, X_test, y_train, y_test = parts
    torch.manual_seed(seed)
    model = MLP(64, 64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    batches = Batches(X_train, y_train, batch_size=batch_size, shuffle=True)
    for epoch in range(1, _AT_MOST + 1):
        for inputs, targets in batches:
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.inference_mode():
            right = (model(X_test).argmax(dim=1) == y_test).sum().item()
        if right >= 0.95 * len(y_test):
            return epoch
    return _AT_MOST


EXERCISE = Exercise(
    name="12_larger_batch",
    lesson="The speed ladder",
    title="A batch sixteen times as large",
    demand="the large batch needs at most 1.5 times the epochs",
    difficulty="medium",
    hints=(
        "An epoch of the large batch has a sixteenth of the steps. How long must each be?",
        "A rule of thumb for Adam: the square root of 16, so four times the rate. Go on from there.",
        "Double RATE until it prints “it pays”. Then double it once more.",
    ),
    rules=(*COMMON, larger_batch),
    probe=probe,
)
