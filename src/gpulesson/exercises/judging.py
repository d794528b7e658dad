"""The rules of single exercises: accuracy, places, kinds, resuming, any machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpulesson.exercises import reading
from gpulesson.exercises.findings import Finding, Source
from gpulesson.exercises.trace import Judged, Site, Trace


def accuracy(trace: Trace, source: Source) -> Iterator[Finding]:
    """Compare the accuracies printed after the last step with what the model really answered."""
    samples = int(trace.facts["test_samples"])
    stated = _stated(trace, samples)
    if not stated:
        yield source.failure("no-accuracy", 0, "The program printed no accuracy.")
        return
    site, claims = stated[-1]
    batches = last_pass(trace.judged, samples)
    seen = sum(batch.test for batch in batches)
    if seen == 0:
        yield from _unknown(trace, source, site, claims, samples)
    elif seen != samples and sum(batch.train for batch in trace.judged) > seen:
        yield _on_training_data(source, site)
    elif seen != samples:
        what = f"The model was judged on {seen} of the {samples} test samples."
        yield source.failure("not-all-samples", site, what)
    else:
        yield from _compared(source, stated, batches, samples)


def _stated(trace: Trace, samples: int) -> list[tuple[Site, list[reading.Claim]]]:
    """Find the lines of output that state the accuracy of the finished model, or the last that states one."""
    lines = [(line, reading.claims(line.text, samples)) for line in trace.prints]
    lines = [(line, claims) for line, claims in lines if claims]
    lines = [pair for pair in lines if not reading.of_training(pair[0].text)] or lines
    last = [pair for pair in lines if pair[0].step == trace.steps] or lines[-1:]
    return [(line.site, claims) for line, claims in last]


def last_pass(judged: list[Judged], samples: int) -> list[Judged]:
    """Return the last calls of a model that together saw every test sample, or those there are."""
    batches: list[Judged] = []
    seen = 0
    for batch in reversed([batch for batch in judged if batch.test]):
        if seen + batch.test > samples or (batches and batch.step != batches[-1].step):
            break
        batches.append(batch)
        seen += batch.test
        if seen == samples:
            break
    return batches[::-1]


def _compared(
    source: Source, stated: list[tuple[Site, list[reading.Claim]]], batches: list[Judged], samples: int
) -> Iterator[Finding]:
    right = sum(batch.right for batch in batches)
    truth, mean = right / samples, sum(batch.right / batch.test for batch in batches) / len(batches)
    if any(abs(claim.value - truth) <= claim.tolerance for _, claims in stated for claim in claims):
        return
    site, claims = stated[-1]
    printed = f"It printed {claims[0].value:.4f}; the model was right for {right} of {samples} samples"
    what = f"{printed}, which is {truth:.4f}."
    if any(abs(claim.value - mean) <= claim.tolerance for claim in claims):
        sizes = ", ".join(str(batch.test) for batch in batches)
        what = f"{what} It is the mean of the accuracies of {len(batches)} batches, of {sizes} samples."
        yield source.failure("mean-of-batch-means", site, what)
    else:
        yield source.failure("wrong-accuracy", site, what)


def _unknown(
    trace: Trace, source: Source, site: Site, claims: list[reading.Claim], samples: int
) -> Iterator[Finding]:
    """The model saw no sample that is known: perhaps they were scaled, perhaps they were others."""
    judged = [call for call in trace.calls if not call.trained and call.finished and call.last_step]
    if not judged:
        yield source.failure("wrong-accuracy", site, "After the training no model was asked for an answer.")
    elif any(batch.train for batch in trace.judged):
        yield _on_training_data(source, site)
    elif not any(
        abs(claim.value - right / samples) <= claim.tolerance
        for claim in claims
        for right in range(samples + 1)
    ):
        what = f"It printed {claims[0].value:.4f}, and no number of right answers of {samples} gives that."
        yield source.failure("wrong-accuracy", site, what)


def _on_training_data(source: Source, site: Site) -> Finding:
    what = "The samples that the model was judged on are from the training part."
    return source.failure("judged-on-training-data", site, what)


# -- exercise 2

PLACES = {
    "a": ("cpu", "made-on-cpu"),
    "b": ("cuda:0", "made-on-device"),
    "c": ("cuda:0", "moved-copy"),
    "d": ("cpu", "result-thrown-away"),
    "e": ("cpu", "moved-copy"),
    "f": ("cpu", "from-numpy-ignores-default"),
    "g": ("cuda:0", "made-on-device"),
    "h": ("cuda:0", "number-may-join"),
}
"""Where each tensor of exercise 2 is, and what a wrong prediction has overlooked."""


def places(trace: Trace, source: Source) -> Iterator[Finding]:
    """Compare the predictions of exercise 2 with where the tensors are."""
    answers, really = trace.facts.get("answers", {}), trace.facts.get("places", {})
    changed = [name for name, (place, _) in PLACES.items() if really.get(name) != place]
    if changed:
        what = f"Not where it is in the exercise, or not there at all: {', '.join(changed)}."
        yield source.failure("tensors-changed", 0, what)
        return
    wrong = [name for name, (place, _) in PLACES.items() if answers.get(name) != place]
    unanswered = [name for name in wrong if answers.get(name) not in ("cpu", "cuda:0")]
    if unanswered:
        what = f"{len(unanswered)} of {len(PLACES)} tensors have no answer yet: {', '.join(unanswered)}."
        yield source.failure("not-answered", reading.key_line(source.lines, unanswered[0]), what)
    for name in wrong:
        if name not in unanswered:
            what = f"You said that {name} is on {answers[name]}. It is not."
            yield source.failure(PLACES[name][1], reading.key_line(source.lines, name), what)


# -- exercise 5


def kinds(trace: Trace, source: Source) -> Iterator[Finding]:
    """Compare the accuracies that exercise 5 prints with the confusion matrix."""
    confusion, names = trace.facts.get("confusion"), trace.facts.get("class_names")
    if not confusion or not names:
        yield source.failure("no-kinds", 0, "evaluate(…) or load_fashion_mnist() of gpulesson did not run.")
        return
    stated = _stated_kinds(trace, names)
    missing = [name for name in names if name not in stated]
    if missing:
        what = f"No accuracy was printed for {len(missing)} of {len(names)} kinds: {', '.join(missing)}."
        yield source.failure("no-kinds", 0, what)
        return
    recall = [row[i] / max(1, sum(row)) for i, row in enumerate(confusion)]
    columns = [sum(row[i] for row in confusion) for i in range(len(names))]
    precision = [row[i] / max(1, columns[i]) for i, row in enumerate(confusion)]
    site = stated[names[0]][0]
    if not _agree(stated, names, recall):
        wrong = next(i for i, name in enumerate(names) if not _near(stated[name][1], recall[i]))
        what = (
            f"For {names[wrong]} it printed {stated[names[wrong]][1].value:.1%}; of {sum(confusion[wrong])} "
            f"such pictures {confusion[wrong][wrong]} were recognized, which is {recall[wrong]:.1%}."
        )
        kind = "confusion-columns" if _agree(stated, names, precision) else "kinds-wrong"
        yield source.failure(kind, site, what)
        return
    order = [stated[name][1].value for name in sorted(names, key=lambda name: stated[name][2])]
    if order != sorted(order):
        yield source.failure("kinds-unordered", site, f"The first kind printed has {order[0]:.1%}.")
    yield from _total(trace, source, confusion)


def _stated_kinds(trace: Trace, names: list[str]) -> dict[str, tuple[Site, reading.Claim, int]]:
    """Find the line that was printed last for each kind: where, what it says, and its place in the output."""
    stated = {}
    for place, (site, text, _) in enumerate(trace.prints):
        for name in names:
            pattern = rf"^\W*{name}\b(.*)" if name.isdigit() else rf"(?<![\w-]){re.escape(name)}(?!\w)(.*)"
            if match := re.search(pattern, text):
                number = re.search(r"(\d+(?:\.\d+)?)\s*(%)|([01]?\.\d+)", match[1])
                if number:
                    claim = reading.stated(number[1] or number[3], number[2] or "")
                    stated[name] = (site, claim, place)
    return stated


def _agree(stated: dict[str, tuple[Site, reading.Claim, int]], names: list[str], truth: list[float]) -> bool:
    return all(_near(stated[name][1], value) for name, value in zip(names, truth, strict=True))


def _near(claim: reading.Claim, value: float) -> bool:
    return abs(claim.value - value) <= claim.tolerance + 1e-6


def _total(trace: Trace, source: Source, confusion: list[list[int]]) -> Iterator[Finding]:
    total = sum(map(sum, confusion))
    accuracy = sum(row[i] for i, row in enumerate(confusion)) / total
    printed = [
        reading.stated(digits, percent)
        for _, text, _ in trace.prints
        for digits, percent in re.findall(r"(\d+(?:\.\d+)?)\s*(%?)", text)
    ]
    if sum(claim.tolerance < 1e-3 and _near(claim, accuracy) for claim in printed) < 2:
        what = f"The accuracy {accuracy:.4%} stands in the output once, from the starter's own line."
        yield source.failure("no-total", 0, what)


# -- exercise 6


def resuming(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what a resumed training lacks: the first thing only, in the order in which one meets them."""
    saves = [save for save in trace.saves if save.has_model]
    if not saves:
        yield source.failure("no-checkpoint", 0, "No file with the model's weights was saved.")
        return
    if trace.facts.get("unsafe_loads"):
        site = Site(*trace.facts["unsafe_loads"][0])
        yield source.failure("loads-anything", site, "The file was loaded with weights_only=False.")
    runs = [optimizer for optimizer in trace.optimizers if optimizer.steps]
    loaded = Site(*trace.facts["loads"][-1]) if trace.facts.get("loads") else saves[-1].site
    if not any(save.has_optimizer for save in saves):
        what = "The file has the model's weights, and nothing of the optimizer."
        yield source.failure("checkpoint-without-optimizer", saves[-1].site, what)
    elif len(runs) >= 3 and not runs[-1].state_loaded:
        what = f"The {runs[-1].name} of the resumed training began without its state."
        yield source.failure("optimizer-not-restored", loaded, what)
    elif not trace.facts.get("rng_restored") and not trace.facts.get("same"):  # the bits are the proof
        what = "Between loading and training on, the random state was not restored."
        yield source.failure("random-state-not-restored", loaded, what)
    elif len(runs) >= 3 and runs[-2].steps + runs[-1].steps != runs[0].steps:
        what = (
            f"Undisturbed it took {runs[0].steps} steps; stopped and resumed, {runs[-2].steps} and "
            f"{runs[-1].steps}."
        )
        yield source.failure("epoch-not-restored", loaded, what)
    elif not trace.facts.get("same"):
        yield source.failure("not-the-same-bits", loaded, "The two models differ in the end.")


# -- exercises 8, 9, 11 and 12: the scripts count by themselves


_CLOCKWORKS = {
    "not-waited-for": "an idle device that nobody else uses",
    "older-work-measured": "a device that was still busy",
    "not-warmed-up": "a device with a slow start",
    "neighbour-measured": "a device that somebody else uses, too,",
}


def stopwatch(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what the stopwatch of exercise 8 measures besides the work."""
    line = int(trace.facts.get("stopwatch", 0))
    measured = trace.facts.get("measured", {})
    for kind, value in measured.items():
        what = f"On {_CLOCKWORKS[kind]} it measured {value:,.0f} µs, and 410 µs is right."
        yield source.failure(kind, line, what)
        if kind == "not-waited-for":
            return  # the others cannot be told while nothing is waited for


def feeding(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what exercise 9 still asks for or copies too often."""
    facts = trace.facts
    if not facts["batches"]:
        return
    if facts["calls"] > facts["batches"]:
        line = reading.first_line(source.lines, r"=.*\bDataLoader\(")
        what = f"The dataset was called {facts['calls']} times for {facts['batches']} batches."
        yield source.failure("called-for-each-sample", line, what)
    if facts["bytes"] > 2000 * (784 + 8):
        what = f"{facts['bytes'] / 1e6:.2f} MB were copied, for 1.58 MB of images and labels."
        yield source.failure("floats-copied", facts["largest_copy"], what)


def lean(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what the loop of exercise 11 still does that nobody needs."""
    facts = trace.facts
    if "mine" not in facts:
        return
    if facts["bytes"] > 0.15:
        what = f"A step touches {facts['bytes']:.0%} of the bytes that a step of slow() touches."
        yield source.failure("bytes-for-nothing", facts["mine"], what)
    if facts["reads"] > 1:
        what = f"{facts['reads']} values were read, one by one."
        yield source.failure("reads-for-nothing", facts["mine"], what)
    if facts["operators"] > 0.75:
        what = f"A step calls {facts['operators']:.0%} of the operators that a step of slow() calls."
        yield source.failure("operators-for-nothing", facts["mine"], what)


_OVERSTEPS = 0.1
"""From this rate on, exercise 12 needs more epochs again."""


def larger_batch(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say whether the rate of exercise 12 is too small or too large."""
    facts = trace.facts
    if "needed" not in facts:
        return
    small, large = max(facts["needed"], key=lambda pair: pair[1] / pair[0])
    if large > 1.5 * small:
        line = reading.first_line(source.lines, r"^RATE\s*=")
        what = (
            f"With a rate of {facts['rate']:g} the large batch needed {large} epochs, the small one {small}."
        )
        kind = "rate-oversteps" if facts["rate"] > _OVERSTEPS else "rate-too-small"
        yield source.failure(kind, line, what)


# -- exercise 1


def any_machine(trace: Trace, without_gpu: Trace | None, source: Source) -> Iterator[Finding]:
    """Compare a run with a GPU and one without."""
    if trace.error is None and not trace.device_memory:
        line = reading.literal_device(source.lines, "cpu")
        what = f"There was a GPU ({trace.device}), and nothing was ever put into its memory."
        yield source.failure("gpu-left-idle", line, what)
    stopped = without_gpu.error if without_gpu is not None else None
    if stopped is not None:
        line = reading.literal_device(source.lines, "cuda") or stopped.site.line
        message = stopped.message.strip().split("\n")[0]
        what = f"On a machine without a GPU, line {stopped.site.line} stops it: {message[:160]}"
        yield source.failure("hard-coded-cuda", line, what)
