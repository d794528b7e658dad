"""Exercise 12: the learning rate of a larger batch."""

from __future__ import annotations

import ast
import contextlib
import math
import operator
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulesson.exercises.exercise import COMMON, Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural
from gpulesson.exercises.rules import causes, definitions, source_text
from gpulesson.exercises.trace import Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NOTHING_COMPARED = Diagnosis(
    "nothing-compared",
    "The check looks at every model that the file trains: with which rate, on how many digits at once, and "
    "when 95 % of the held-out digits are read rightly. Here it saw none.",
    "Begin with the starter, and change RATE: RATE = 2e-3.",
)
NOT_FOLLOWED = Diagnosis(
    "runs-not-followed",
    "The check follows about 1,100 epochs of a file, and models that get many digits at once. Of what it has "
    "not seen it can say nothing.",
    "Try fewer rates in one file, and give the model whole batches.",
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
SMALL_RATE = Diagnosis(
    "trial-changed",
    "The comparison is fair only if nothing but the large batch's rate changes: the small batch keeps 0.001, "
    "however well another rate suits it.",
    "Give the small batch 1e-3, and the large one RATE.",
)
SEEDS_LEFT_OUT = Diagnosis(
    "seeds-left-out",
    "With one seed a rate may pay by luck. It has to pay with each of the seeds 0, 1 and 2.",
    "Try all three: for seed in range(3). Then see whether it still pays.",
)
NOT_HELD_OUT = Diagnosis(
    "not-the-held-out-digits",
    "How well a model reads shows only on digits that it has not been trained on.",
    "Count the right answers on all 360 held-out digits, and on no others.",
)
STOPPED_EARLY = Diagnosis(
    "stopped-early",
    "A run that ends before 95 % of the held-out digits are read rightly has not come so far. Its epochs say "
    "nothing.",
    "Let every run go on until 95 %, for at most 200 epochs as in the starter.",
)
OTHER_GOAL = Diagnosis(
    "other-goal",
    "Both batches have the same goal: 95 % of the held-out digits read rightly. With another one the "
    "numbers of epochs are others.",
    "Put the goal back to 95 %. Then change RATE.",
)
VERDICT_CHANGED = Diagnosis(
    "verdict-changed",
    "It pays if the large batch needs at most 1.5 times the epochs of the small one, with each seed.",
    "Put the line back: pays = all(large <= 1.5 * small for small, large in needed). Then change RATE.",
)
VERDICT_WRONG = Diagnosis(
    "verdict-changed",
    "It pays if the large batch needs at most 1.5 times the epochs of the small one, with each seed.",
    "Compare so: pays = all(large <= 1.5 * small for small, large in needed). And see that needed has the "
    "numbers above.",
)
COUNTED_OTHERWISE = Diagnosis(
    "counted-otherwise",
    "The first epoch is number 1: who stops after it has needed one epoch.",
    "Count from 1: for epoch in range(1, at_most + 1).",
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
STEPS_COUNTED = Diagnosis(
    "counted-otherwise",
    "A step is one batch, and an epoch all batches once. So an epoch has 45 steps with small batches, and 3 "
    "with large ones.",
    "Count an epoch after all of its batches, once.",
)

_BEST = 0.04
"""About here the large batch needs the fewest epochs; from 0.15 on it needs more again."""
_SEEDS = (0, 1, 2)
_OTHER_SPLIT, _OTHER_SEEDS = 1, (10, 11)
_AT_MOST = 200
_SMALL, _LARGE, _SMALL_RATE, _GOAL = 32, 512, 1e-3, 0.95
_TRAIN, _TEST, _PARAMETERS = 1437, 360, 4810
_FAR = 1.6
"""So much more, or less, the sum over the seeds does not change by another order of the random numbers."""


def larger_batch(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say what is wrong with the comparison; if nothing is, whether the rate is too small or too large."""
    facts = trace.facts
    line = definitions.line(source.lines, "RATE")
    if "strange" in facts:
        what = f"RATE is {facts['strange']}; expected a positive number."
        yield source.failure(RATE_NO_NUMBER, line, what)
        return
    runs = [Run(**run) for run in facts.get("runs", [])]
    if not runs:
        yield source.failure(NOTHING_COMPARED, 0, "The file trains no model, so there is nothing to compare.")
        return
    if any(run.blind for run in runs):
        blind, seen = sum(run.blind for run in runs), plural(len(runs), "run")
        what = f"The file has {seen}; the check could not follow {blind} of them to the end."
        yield source.failure(NOT_FOLLOWED, 0, what)
        return
    trial = Trial(source, runs, facts)
    wrong = list(_setting(trial))
    yield from wrong
    if not wrong:
        yield from _result(trial)


class Run(NamedTuple):
    """One training of the file's: see `watch.runs`."""

    seed: int
    rate: float
    batch: int
    optimizer: str
    parameters: int
    trained_on: list[int]
    tested_on: list[int]
    tests: list[Any]
    ended: int
    blind: bool
    made: int
    model_made: int
    trained_at: int
    tested_at: int
    ways: list[list[int]]

    @property
    def reached(self) -> bool:
        """Whether 95 % was reached."""
        return any(share >= _GOAL for _, share in self.tests)

    @property
    def epochs(self) -> int:
        """After how many epochs 95 % was reached; those that it took, if it was not."""
        return next((epochs for epochs, share in self.tests if share >= _GOAL), self.ended)

    @property
    def words(self) -> str:
        """Which run it is."""
        return f"batch {self.batch}, rate {self.rate:g}" + (f", seed {self.seed}" if self.seed >= 0 else "")


class Trial:
    """The file's runs, with small and with large batches, and the rate that it has chosen for the latter."""

    def __init__(self, source: Source, runs: list[Run], facts: dict[str, Any]) -> None:
        self.source, self.runs, self.facts = source, runs, facts
        self.numbers: dict[str, float] = facts.get("numbers", {})
        small = [run for run in runs if run.batch == _SMALL]
        self.small = [run for run in small if _same(run.rate, _SMALL_RATE)] or small
        self.large = [run for run in runs if run.batch == _LARGE]
        self.rate = self._best()
        self.chosen = [run for run in self.large if _same(run.rate, self.rate)]

    def pairs(self) -> dict[int, tuple[Run, Run]]:
        """Return the last runs with a small and with a large batch, by their seed."""
        small, large = ({run.seed: run for run in some} for some in (self.small, self.chosen))
        return {seed: (small[seed], large[seed]) for seed in sorted(small.keys() & large.keys())}

    def pays(self) -> bool:
        """Tell whether the large batch pays, with each seed that both batches have."""
        return all(_paid(*pair) for pair in self.pairs().values())

    def _best(self) -> float:
        """Return RATE, if no other rate that was tried pays with more seeds; else the last that pays best.

        Where the file says that it does not pay, it speaks of RATE.
        """
        small = {run.seed: run for run in self.small}
        paid: Counter[float] = Counter()
        for run in self.large:
            paid[run.rate] += run.seed in small and _paid(small[run.seed], run)
        best = max(paid.values(), default=0)
        given = next((rate for rate in paid if _same(rate, self.facts.get("RATE") or 0)), None)
        if given is not None and (paid[given] == best or self.facts.get("says") == "no"):
            return given
        return next((rate for rate in reversed(paid) if paid[rate] == best), 0.0)

    def line_of(self, run: Run, value: float) -> int:
        """Return the line that gives a run a number, beside its batch size or in what calls it."""
        for node in source_text.all_nodes(self.source.lines):
            here = isinstance(node, ast.Call) and node.lineno == run.made and value == run.rate
            if here and any(_same(self._number(part), value) for part in _elements(node)):
                return run.made  # written there, and not handed over
        other = _LARGE if run.batch == _SMALL else _SMALL
        shared = {name for node in self._with(other) for name in _names(node)}
        for node in self._with(run.batch):
            for part in _elements(node):
                if _same(self._number(part), value) and not (value == run.batch and _same(value, run.rate)):
                    if isinstance(part, ast.Name) and part.id not in shared:
                        return definitions.line(self.source.lines, part.id) or part.lineno
                    return part.lineno
        made, stepped = run.ways
        return next(iter(made or stepped), run.made)

    def _with(self, batch: int) -> list[ast.AST]:
        """Return the calls, tuples and lists that hold a batch size."""
        nodes = [node for node in source_text.all_nodes(self.source.lines) if isinstance(node, _HOLDERS)]
        own = [node for node in nodes if any(_same(self._number(part), batch) for part in _elements(node))]
        return [node for node in own if len(_elements(node)) > 1 and source_text.called(node) not in _NO_RUNS]

    def _number(self, node: ast.expr) -> float:
        """Return the value of a number, a name or some arithmetic of both; NaN of anything else."""
        return _number_of(node, self.numbers)


_NO_RUNS = {"range", "MLP", "Linear", "print", "train_test_split", "info"}
_HOLDERS = ast.Call | ast.Tuple | ast.List | ast.Dict


def _elements(node: ast.AST) -> list[ast.expr]:
    """Return the arguments of a call, or the elements of a tuple, a list or a dict."""
    if isinstance(node, ast.Call):
        return [*node.args, *(keyword.value for keyword in node.keywords)]
    if isinstance(node, ast.Dict):
        return node.values
    return list(node.elts) if isinstance(node, ast.Tuple | ast.List) else []


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _number_of(node: ast.expr, numbers: dict[str, float]) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.Name):
        return numbers.get(node.id, math.nan)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number_of(node.operand, numbers)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _number_of(node.left, numbers), _number_of(node.right, numbers)
        with contextlib.suppress(ArithmeticError, ValueError, TypeError):
            return float(_OPERATORS[type(node.op)](left, right))
    return math.nan


_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-6)


def _setting(trial: Trial) -> Iterator[Finding]:
    """Say what makes the file's comparison another one than the starter's."""
    source, lines = trial.source, trial.source.lines
    if not trial.small or not trial.large:
        data = next((found for run in trial.runs if (found := _digits(run, lines))), None)
        if data is not None and data[0] is TRIAL_CHANGED:
            yield source.failure(*data[:2], data[2][:1].upper() + data[2][1:])
        else:
            yield _batch_size(trial)
        return
    sides = ((_SMALL, trial.small, _SMALL_RATE), (_LARGE, trial.chosen, trial.rate))
    wrong = trial.small[0]
    if not _same(wrong.rate, _SMALL_RATE):
        what = f"The small batch has a rate of {wrong.rate:g}; expected {_SMALL_RATE}."
        yield source.failure(SMALL_RATE, trial.line_of(wrong, wrong.rate), what)
    for batch, runs, rate in sides if trial.pays() else ():  # else another seed would not help
        tried = sorted({run.seed for run in runs if _same(run.rate, rate)})
        if runs and tried and not set(_SEEDS) <= set(tried):
            yield source.failure(SEEDS_LEFT_OUT, _seeds_line(trial, tried), _of_seeds(batch, tried))
            break
    for run in (*trial.small, *trial.chosen):
        if run.optimizer != "Adam":
            what = f"With {run.words}, the optimizer is {run.optimizer}; expected Adam."
            yield source.failure(TRIAL_CHANGED, run.made, what)
            break
        if run.parameters != _PARAMETERS:
            what = f"With {run.words}, the model has {run.parameters:,} parameters; expected {_PARAMETERS:,}."
            yield source.failure(TRIAL_CHANGED, run.model_made or run.made, what)
            break
    for run in (*trial.small, *trial.chosen):
        if found := _digits(run, lines):
            diagnosis, line, what = found
            yield source.failure(diagnosis, line, f"With {run.words}, {what}")
            return
    yield from _ends(trial)


def _batch_size(trial: Trial) -> Finding:
    """Say which batch size is missing, and what is there instead."""
    missing = _LARGE if trial.small or not trial.large else _SMALL
    sizes = sorted({run.batch for run in trial.runs})
    what = f"No run has batches of {missing}; found {', '.join(map(str, sizes))}."
    there = trial.small or trial.large
    others = [run for run in trial.runs if run.batch not in (_SMALL, _LARGE)]
    if not others and missing == _SMALL:  # a large batch in place of the small one
        others = [run for run in there if _same(run.rate, _SMALL_RATE)] or there
    elif not others:
        others = [run for run in there if not _same(run.rate, _SMALL_RATE)] or there
    run = others[-1]
    return trial.source.failure(TRIAL_CHANGED, trial.line_of(run, run.batch), what)


def _of_seeds(batch: int, tried: list[int]) -> str:
    found = ", ".join(map(str, tried))
    if tried == [-1]:
        return f"The runs with batches of {batch} have no seed; expected 0, 1, 2."
    return f"The runs with batches of {batch} have these seeds: {found}; expected 0, 1, 2."


def _seeds_line(trial: Trial, tried: list[int]) -> int:
    """Return the line of the loop over these seeds; else that of the seed."""
    for node in source_text.all_nodes(trial.source.lines):
        if isinstance(node, ast.For | ast.comprehension):
            over = node.iter
            if isinstance(over, ast.Name):
                bound = definitions.find(trial.source.lines, over.id)
                over = bound.value if isinstance(bound, ast.Assign | ast.AnnAssign) and bound.value else over
            with contextlib.suppress(ValueError, TypeError):
                if sorted(set(_values(over, trial.numbers))) == tried:
                    return over.lineno
    lines = trial.source.lines
    return definitions.first_match(lines, r"manual_seed\(") or definitions.first_match(lines, r"\bseed\b")


def _values(node: ast.expr, numbers: dict[str, float]) -> Sequence[int]:
    """Return the numbers of a written-down range or list; ValueError where they are not."""
    if source_text.called(node) == "range" and isinstance(node, ast.Call):
        return range(*(int(_number_of(argument, numbers)) for argument in node.args))
    return list(ast.literal_eval(node))


def _digits(run: Run, lines: Sequence[str]) -> tuple[Diagnosis, int, str] | None:
    """Say whether a run was trained on, or tested on, other digits than the starter's."""
    train, leaked, strange = run.trained_on
    seen, test, unknown = run.tested_on
    split = definitions.first_match(lines, r"train_test_split\(|randperm\(|\[ *: *-?\d+ *\]")
    if strange or unknown:
        what = "the model got numbers that are not the starter's digits: load_digits().data / 16."
        return TRIAL_CHANGED, definitions.first_match(lines, r"load_digits\(\)") or split, what
    if not run.tests:
        what = "the model was not evaluated: it got digits only while it was trained."
        answer = definitions.first_match(lines, r"argmax|\.max\(")
        return NOT_HELD_OUT, answer or run.trained_at, what
    if (train, leaked) != (_TRAIN, 0) and (seen, test) != (0, _TEST) and not (seen and train == _TRAIN):
        those = f", {leaked} of them held-out digits of the starter" if leaked else f"; expected {_TRAIN:,}"
        what = f"the digits were split in another way: the model was trained on {train + leaked:,}{those}."
        return TRIAL_CHANGED, split or run.trained_at, what
    if seen:
        where = "all of them" if not test else f"{seen:,} of them"
        digits = f"{seen + test:,} digits, {where} of the training part"
        what = f"it was evaluated on {digits}; expected the 360 others."
        return NOT_HELD_OUT, run.tested_at, what
    if test != _TEST:
        what = f"it was evaluated on {test} of the 360 held-out digits."
        return NOT_HELD_OUT, run.tested_at, what
    if leaked:
        what = f"the model was trained on {leaked} of the 360 held-out digits."
        return TRIAL_CHANGED, run.trained_at, what
    if train < 0.9 * _TRAIN:  # in few epochs, without each last batch, some are left out
        what = f"the model was trained on {train:,} of the {_TRAIN:,} training digits."
        return TRIAL_CHANGED, run.trained_at, what
    return None


def _ends(trial: Trial) -> Iterator[Finding]:
    """Say that runs ended before they had read 95 % rightly, or went on after that."""
    runs = [run for run in (*trial.small, *trial.chosen) if run.tests]
    if goal := _goal(trial, runs):
        line, wanted = goal
        run = next(run for run in runs if run.tests[-1][1] < _GOAL or run.epochs < run.ended)
        share = run.tests[-1][1]
        ended = plural(run.ended, "epoch")
        what = f"With {run.words}, the run ended after {ended}, with {share:.1%} of the held-out digits "
        yield trial.source.failure(
            OTHER_GOAL, line, f"{what}right: the goal here is {wanted:.3g}; expected 0.95."
        )
        return
    for small, large in trial.pairs().values():
        for run in (small, large):
            enough = run is small or run.ended <= 1.5 * small.epochs
            if not run.reached and enough and run.ended < _AT_MOST:
                what = (
                    f"With {run.words}, the run ended after {plural(run.ended, 'epoch')}, with "
                    f"{run.tests[-1][1]:.1%} of the held-out digits right; expected 95.0%."
                )
                yield trial.source.failure(STOPPED_EARLY, _limit(trial, run), what)
                return


def _goal(trial: Trial, runs: list[Run]) -> tuple[int, float] | None:
    """Return the line and the value of a goal other than 95 % that fits all ends of the runs."""
    if all(run.reached and run.ended == run.epochs for run in runs):
        return None
    compared = _compared_with(trial.source, counting=False)
    for node in sorted(_numbers_in(trial.source), key=lambda node: node.lineno):
        if _at(node) not in compared:
            continue
        value = float(node.value)  # type: ignore[arg-type]
        goal = value / 100 if value >= 20 else value  # 90 is in per cent
        if not 0 < goal < 1 or _same(goal, _GOAL):
            continue
        ended = [run for run in runs if run.ended < _AT_MOST]
        fits = [
            run.tests[-1][1] >= goal - 1e-9 and all(share < goal + 3e-3 for _, share in run.tests[:-1])
            for run in ended
        ]
        if fits and all(fits) and len(ended) > 1:
            return node.lineno, goal
    return None


def _at(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _compared_with(source: Source, counting: bool) -> set[tuple[int, int]]:
    """Return the places of what comparisons hold, or ranges, and of the values of the names in them."""
    nodes = source_text.all_nodes(source.lines)
    asked: list[ast.AST] = [node for node in nodes if isinstance(node, ast.Compare)]
    asked += [node for node in nodes if counting and source_text.called(node) in ("range", "islice")]
    held = [part for node in asked for part in ast.walk(node)]
    names = {part.id for part in held if isinstance(part, ast.Name)}
    names |= {part.attr for part in held if isinstance(part, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if names & {ast.unparse(target).rpartition(".")[2] for target in targets}:
                held.append(node.value)
        elif isinstance(node, ast.arguments):
            given = [*node.posonlyargs, *node.args]
            pairs = [*zip(given[len(given) - len(node.defaults) :], node.defaults, strict=True)]
            held += [value for name, value in pairs if name.arg in names]
    return {_at(part) for part in held if isinstance(part, ast.expr)}


def _limit(trial: Trial, run: Run) -> int:
    """Return the line with the number of epochs after which a run ended; else that of its way."""
    leaving = source_text.leaving(trial.source.lines)
    if leaving and run.ended == 1:
        return leaving
    numbers, held = _numbers_in(trial.source), _compared_with(trial.source, counting=True)
    limits = [node for node in numbers if node.value in (run.ended, run.ended + 1) and _at(node) in held]
    if limits:
        return limits[0].lineno
    return leaving or definitions.first_match(trial.source.lines, r"for epoch|while ") or run.made


def _numbers_in(source: Source) -> list[ast.Constant]:
    """Return the numbers written in the file, but for those that are a batch size or set the data."""
    nodes = source_text.all_nodes(source.lines)
    data = [
        node for node in nodes if source_text.called(node) in ("train_test_split", "MLP", "Linear", "print")
    ]
    left = {id(part) for node in data for part in ast.walk(node)}
    return [
        node
        for node in nodes
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and id(node) not in left
    ]


def _result(trial: Trial) -> Iterator[Finding]:
    """Say whether the rate pays, and whether the file says so."""
    source, facts = trial.source, trial.facts
    rate = f"With a rate of {trial.rate:g}"
    line = (
        trial.line_of(trial.chosen[-1], trial.rate)
        if trial.chosen
        else definitions.line(source.lines, "RATE")
    )
    pairs = trial.pairs()
    costs = {
        seed: (not _paid(small, large), large.epochs / small.epochs) for seed, (small, large) in pairs.items()
    }
    seed = max(costs, key=lambda seed: costs[seed])
    small, large = (run.epochs for run in pairs[seed])
    rate += f" and seed {seed}" if seed >= 0 else ""
    needs = f"{rate}, the large batch needs {large} epochs and the small one {small}"
    diagnosis = RATE_OVERSTEPS if trial.rate > _BEST else RATE_TOO_SMALL
    if not trial.pays():
        if facts["says"] == "yes":
            what = f"{needs}. That does not pay, but the file says that it does."
            yield source.failure(VERDICT_CHANGED, _verdict_line(source), what)
        elif facts["RATE"] and not _same(facts["RATE"], trial.rate):
            what = f"RATE is {facts['RATE']:g}, but the runs with batches of 512 have {trial.rate:g}."
            yield source.failure(TRIAL_CHANGED, line, what)
        elif large >= _AT_MOST and not pairs[seed][1].reached:
            what = (
                f"{rate}, the large batch does not reach 95 % in {large} epochs; the small one needs {small}."
            )
            yield source.failure(diagnosis, line, what)
        else:
            what = f"{rate}, the large batch needs {large} epochs; expected "
            what += f"at most {1.5 * small:g}, 1.5 times the small one's {small}."
            yield source.failure(diagnosis, line, what)
        return
    counted = "; ".join(f"seed {seed}: {one.epochs} and {two.epochs}" for seed, (one, two) in pairs.items())
    if _from_nought(facts["printed"], [run.epochs for pair in pairs.values() for run in pair]):
        what = (
            f"The epochs of the small and the large batch are ({counted}); the file prints one less of each."
        )
        loop = definitions.first_match(source.lines, r"\bfor\b.*(range|count|enumerate)\(.*:\s*$")
        epoch = definitions.first_match(source.lines, r"\bepochs?\b.*=\s*-1|\bfor epoch\b")
        yield source.failure(COUNTED_OTHERWISE, epoch or loop, what)
        return
    if _in_steps(facts["printed"], [run for pair in pairs.values() for run in pair]):
        what = f"The epochs of the small and the large batch are ({counted}); the file prints steps."
        counting = [definitions.first_match(source.lines, part) for part in (r"\+= *1\b", "step")]
        yield source.failure(STEPS_COUNTED, next(filter(None, counting), 0), what)
        return
    if facts["says"] == "no":
        what = (
            f"The small and the large batch need these epochs ({counted}), so it pays. The file says that it "
        )
        yield source.failure(VERDICT_WRONG, _verdict_line(source), f"{what}does not.")
        return
    yield from _against_the_check(trial, pairs, line)


def _against_the_check(trial: Trial, pairs: dict[int, tuple[Run, Run]], line: int) -> Iterator[Finding]:
    """Compare with what the check has counted in runs of its own."""
    facts, source = trial.facts, trial.source
    diagnosis = RATE_OVERSTEPS if trial.rate > _BEST else RATE_TOO_SMALL
    if facts["luck"]:
        small, large = facts["epochs"]
        what = (
            f"With a rate of {trial.rate:g}, other seeds and other held-out digits, the large batch needs "
            f"{large} epochs, the small one {small}; expected at most twice as many."
        )
        yield source.failure(diagnosis, line, what)
        return
    for side, name in enumerate(("small", "large")):
        own = [pairs[seed][side].epochs for seed in _SEEDS]
        ours = [pair[side] for pair in facts["pairs"]]
        if not 1 / _FAR <= sum(own) / sum(ours) <= _FAR:
            what = (
                f"In this file the {name} batch needs {_listed(own)} epochs. When the check trains as the "
                f"starter does, with the same rate, it needs {_listed(ours)}."
            )
            at = pairs[min(pairs)][side].ways[0]
            yield source.failure(TRIAL_CHANGED, at[-1] if at else 0, what)
            return


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


def _from_nought(printed: list[int], epochs: list[int]) -> bool:
    """Tell whether the file prints one epoch less of every run."""
    there = set(printed)
    return not set(epochs) <= there and {count - 1 for count in epochs} <= there


def _in_steps(printed: list[int], runs: list[Run]) -> bool:
    """Tell whether the file prints the steps of every run, and not the epochs."""
    steps = {run.epochs * -(-_TRAIN // run.batch) for run in runs}
    return len(steps) > 2 and steps <= set(printed) and not {run.epochs for run in runs} <= set(printed)


def _verdict_line(source: Source) -> int:
    """Return the line that decides whether it pays."""
    for node in source_text.all_nodes(source.lines):
        if isinstance(node, ast.Compare) and "1.5" in ast.unparse(node):
            return node.lineno
    line = definitions.line(source.lines, "pays")
    return (
        line
        or definitions.first_match(source.lines, r"\bpays\b *:?= then it pays")
        or definitions.first_match(source.lines, r"it pays")
    )


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Look at the file's runs; then train with its rate as the starter does, and with other data."""
    given = _checked_rate(trace, space.get("RATE"), "RATE" in space)
    if given is None and "strange" in trace.facts:
        return
    import torch

    from gpulesson.exercises.watch import runs

    X_train, X_test, y_train, y_test = digits = _split_digits(0)
    found = runs.seen(observer, (X_train, y_train), (X_test, y_test))
    observer.training.stop()
    trace.facts |= {
        "RATE": given,
        "numbers": {name: float(value) for name, value in space.items() if type(value) in (int, float)},
        "says": _says(trace, space, len({run["rate"] for run in found if run["batch"] == _LARGE}) > 1),
        "printed": [
            int(number)
            for line in trace.prints
            for number in re.findall(r"(?<![\d.])\d{1,4}(?!\.?\d)", line.text)
        ],
    }
    trace.facts["runs"] = found
    trial = Trial(Source("", []), [Run(**run) for run in found], trace.facts)
    if any(run.blind for run in trial.runs) or not trial.pairs() or not trial.pays():
        return  # its own runs say enough
    # unwatched, and so three times as fast
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        _try(trace, trial.rate, digits)


def _says(trace: Trace, space: dict[str, Any], several: bool) -> str:
    """Say what the file says of its rate: "yes", "no", or nothing; of several rates, whether any pays."""
    lines = [line.text for line in trace.prints if _VERDICT.search(line.text)]
    said = {_DENIAL.search(line) is None for line in lines}
    pays, refused = space.get("pays"), trace.status == "exit" and trace.exit_code != 0
    if said == {False}:
        return "no"
    if isinstance(pays, bool) and (pays or refused or not (several and said)):
        return "yes" if pays else "no"
    if refused:
        return "no"
    return "yes" if said == {True} or (several and said) else ""


_VERDICT = re.compile(r"it pays|more epochs than", re.I)
_DENIAL = re.compile(r"more epochs than|it pays\W*(false|not?)\b", re.I)


def _try(trace: Trace, rate: float, digits: Any) -> None:
    """Count the epochs, as the starter does; then with data and seeds that the file has not tried."""
    others = _split_digits(_OTHER_SPLIT)
    trace.facts["pairs"] = [_both(digits, seed, rate) for seed in _SEEDS]
    pairs = [_both(others, seed, rate) for seed in _OTHER_SEEDS]
    small, large = (sum(column) for column in zip(*pairs, strict=True))
    trace.facts["epochs"] = small, large
    trace.facts["luck"] = large > 2 * small


def _both(digits: Any, seed: int, rate: float) -> tuple[int, int]:
    return _epochs(digits, seed, _SMALL, _SMALL_RATE), _epochs(digits, seed, _LARGE, rate)


def _checked_rate(trace: Trace, value: Any, there: bool) -> float | None:
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


def _paid(small: Run, large: Run) -> bool:
    return small.reached and large.reached and large.epochs <= 1.5 * small.epochs


def _split_digits(split: int) -> list[Any]:
    """Return the digits' images and labels for training and for the test."""
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    targets = torch.tensor(digits.target)
    return list(train_test_split(images, targets, test_size=0.2, random_state=split))


def _epochs(digits: Any, seed: int, batch_size: int, rate: float) -> int:
    """Return after how many epochs 95 % of the held-out digits are read rightly, as the starter does."""
    import torch

    from gpulesson.data import Batches
    from gpulesson.models import MLP

    X_train, X_test, y_train, y_test = digits
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
        if right >= _GOAL * len(y_test):
            return epoch
    return _AT_MOST


EXERCISE = Exercise(
    name="12_larger_batch",
    lesson="The speed ladder",
    title="A batch sixteen times as large",
    demand="a fair comparison, in which the large batch pays",
    difficulty="medium",
    hints=(
        "An epoch of the large batch has a sixteenth of the steps. How long must each be?",
        "A rule of thumb for Adam: the square root of 16, so four times the rate. Go on from there.",
        "Double RATE until it prints “it pays”. Then double it once more.",
    ),
    rules=(*COMMON, causes.own_work, larger_batch),
    probe=probe,
)
