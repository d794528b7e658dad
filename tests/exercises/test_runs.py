"""The runs that a comparison of batch sizes is made of: what is seen of each, and what follows from them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gpulesson.exercises import checker, e12_larger_batch
from gpulesson.exercises.findings import Source
from gpulesson.exercises.trace import NOWHERE, OptimizerSeen, Printed, Site, Trace
from gpulesson.exercises.watch.rows import Part, marks
from gpulesson.exercises.watch.runs import _of_calls

TRAIN, TEST = 8, 4
INPUTS, LABELS = torch.arange(1.0, TRAIN + TEST + 1)[:, None], torch.arange(TRAIN + TEST)
KNOWN = Part.of(INPUTS, LABELS)


def call(rows, trained: bool, right: bool = True, line: int = 1):
    """A call of a model with some rows; None: one that was not kept."""
    seen = SimpleNamespace(trained=trained, site=Site("a.py", line))
    if rows is None:
        return SimpleNamespace(seen=seen, marks=None, predictions=None)
    rows = list(rows)
    return SimpleNamespace(seen=seen, marks=marks(INPUTS[rows]), predictions=LABELS[rows] + (not right))


LOST, LOST_TEST = call(None, trained=True), call(None, trained=False)
BATCHES = [call(rows, trained=True, line=3) for rows in (range(5), range(5, 8))]
WRONG, TESTED = (
    [call(rows, trained=False, right=right, line=7) for rows in ((8, 9), (10, 11))] for right in (False, True)
)
"""A test in two parts."""


def test_a_run_of_two_epochs():
    assert _of_calls([*BATCHES, *WRONG, *BATCHES, *TESTED], KNOWN, TRAIN) == {
        "batch": 5,
        "tests": [[1, 0], [2, 1]],
        "ended": 2,
        "blind": False,
        "trained_on": [TRAIN, 0, 0],
        "tested_on": [0, TEST, 0],
        "trained_at": 3,
        "tested_at": 7,
    }


def test_a_test_after_every_second_epoch():
    run = _of_calls([*BATCHES, *BATCHES, *WRONG, *BATCHES, *BATCHES, *TESTED], KNOWN, TRAIN)
    assert [epochs for epochs, _ in run["tests"]] == [2, 4] and run["ended"] == 4


def test_a_look_at_the_training_part_is_no_test():
    run = _of_calls([*BATCHES, *WRONG, call(range(TRAIN), trained=False)], KNOWN, TRAIN)
    assert run["tests"] == [[1, 0]] and run["tested_on"] == [0, TEST, 0]


FOLLOWED = {
    "all kept": ([*BATCHES, *TESTED], False),
    "nothing kept": ([LOST, LOST_TEST], True),
    "kept in part": ([*BATCHES, *TESTED, LOST], True),
    "the last test not kept": ([*BATCHES, *TESTED, *BATCHES, LOST_TEST], True),
    "a single digit shown at the end": ([*BATCHES, *TESTED, LOST_TEST], False),
    "never tested": (BATCHES, False),
    "no call": ([], False),
}


@pytest.mark.parametrize(("calls", "blind"), FOLLOWED.values(), ids=FOLLOWED)
def test_what_could_not_be_followed(calls, blind):
    assert _of_calls(calls, KNOWN, TRAIN)["blind"] == blind


SEEDS = range(3)
RATE = 0.01


def run(seed: int, batch: int, epochs: int, rate: float = RATE, **other) -> dict[str, object]:
    """What is known of a run that reaches 95 % after some epochs, or after 200 does not."""
    last = 0.96 if epochs < 200 else 0.5
    known = {
        "seed": seed,
        "rate": 1e-3 if batch == 32 else rate,
        "batch": batch,
        "optimizer": "Adam",
        "parameters": 4810,
        "trained_on": [1437, 0, 0],
        "tested_on": [0, 360, 0],
        "tests": [*([epoch, 0.5] for epoch in range(1, epochs)), [epochs, last]],
        "ended": epochs,
        "blind": False,
        "ways": [[1], [1]],
    }
    return known | dict.fromkeys(("made", "model_made", "trained_at", "tested_at"), 1) | other


SMALL = [run(seed, 32, 10 + seed) for seed in SEEDS]
LARGE = [run(seed, 512, 14 + seed) for seed in SEEDS]


def findings(runs, **facts):
    """What the rule finds; the check's own runs agree, if nothing else is said."""
    own = {"RATE": RATE, "says": "yes", "printed": [], "pairs": [(11, 15)] * 3, "luck": False}
    trace = Trace(facts={"runs": runs, "epochs": (20, 60), **own, **facts})
    return list(e12_larger_batch.larger_batch(trace, Source("a.py", [f"RATE = {RATE}"])))


def test_a_rate_that_pays():
    assert not findings(SMALL + LARGE)


def test_a_rate_that_does_not_pay_in_the_checks_own_runs_is_tried_with_other_data(monkeypatch):
    def epochs(digits, seed, batch_size, rate):
        return 11 if batch_size == 32 else 17 if digits == "own" else 40

    monkeypatch.setattr(e12_larger_batch, "_epochs", epochs)
    monkeypatch.setattr(e12_larger_batch, "_split_digits", lambda split: "other")
    trace = Trace()
    e12_larger_batch._try(trace, RATE, "own")
    (finding,) = findings(SMALL + LARGE, **trace.facts)
    assert finding.kind == "rate-too-small" and "needs 80 epochs, the small one 22" in finding.what


STEPS = [450, 495, 540, 42, 45, 48]


def test_steps_may_be_printed_beside_the_epochs():
    (finding,) = findings(SMALL + LARGE, printed=STEPS)
    assert finding.kind == "counted-otherwise" and "prints steps" in finding.what
    assert not findings(SMALL + LARGE, printed=[*STEPS, 10, 11, 12, 14, 15, 16])


@pytest.mark.parametrize(("says", "kinds"), [("yes", []), ("no", ["rate-oversteps"])])
def test_of_several_rates_the_best_counts_unless_the_file_speaks_of_the_last(says, kinds):
    others = [run(seed, 512, epochs, rate) for rate, epochs in ((1e-3, 60), (0.3, 90)) for seed in SEEDS]
    tried = SMALL + others[:3] + LARGE + others[3:]
    assert [finding.kind for finding in findings(tried, RATE=0.3, says=says)] == kinds
    (finding,) = findings(SMALL + others, RATE=0.3, says="no")
    assert "a rate of 0.3 " in finding.what, "where nothing pays, it is RATE"


def test_runs_that_could_not_be_followed_are_no_runs_that_pay():
    (finding,) = findings([*SMALL, *LARGE[:2], LARGE[2] | {"blind": True, "batch": 0, "tests": []}])
    assert finding.kind == "runs-not-followed"
    assert finding.what == "The file has 6 runs; the check could not follow 1 of them to the end."


def test_a_seed_is_named_where_there_is_one():
    (finding,) = findings([run(-1, 32, 10), run(-1, 512, 60)], says="no")
    assert finding.what.startswith("With a rate of 0.01, the large batch needs 60 epochs")
    (finding,) = findings([run(-1, 32, 10), run(-1, 512, 60)], says="yes")
    assert finding.what.startswith("With a rate of 0.01, the large batch needs 60 epochs and the small")
    (finding,) = findings([*SMALL, *LARGE[:2], run(2, 512, 200)], says="no")
    assert finding.what.startswith("With a rate of 0.01 and seed 2, the large batch does not reach 95 %")


YES, NO = "it pays", "it needs more epochs than it is worth"


@pytest.mark.parametrize(
    ("printed", "pays", "exit_code", "several", "says"),
    [
        ([YES], None, 0, False, "yes"),
        ([NO], None, 0, False, "no"),
        (["it pays: False"], False, 0, False, "no"),
        (["it pays? no"], None, 0, False, "no"),
        (["it pays: True"], True, 0, False, "yes"),
        ([YES, NO, YES], False, 0, False, "no"),
        ([YES, NO, YES], None, 1, False, "no"),
        ([YES, NO], None, 0, False, ""),
        ([NO], True, 0, False, "no"),
        ([], True, 0, False, "yes"),
        ([], None, 1, False, "no"),
        ([], None, 0, False, ""),
        ([NO, YES, NO], False, 0, True, "yes"),
        ([NO, YES, NO], None, 0, True, "yes"),
        ([NO, YES, NO], False, 1, True, "no"),
        ([], False, 0, True, "no"),
    ],
)
def test_what_the_file_says(printed, pays, exit_code, several, says):
    lines = [Printed(NOWHERE, text, 0) for text in printed]
    trace = Trace(prints=lines, status="exit" if exit_code else "finished", exit_code=exit_code)
    space = {} if pays is None else {"pays": pays}
    assert e12_larger_batch._says(trace, space, several) == says


def test_the_steps_of_many_runs_are_summed_up():
    adams = [OptimizerSeen("Adam", Site("a.py", 4), ["cpu"], steps=100 + number) for number in range(21)]
    assert checker.facts(Trace(optimizers=adams)) == ("training steps: 2,310 in all, by 21 optimizers",)
