"""Rules: a slip in the text that explains all the rest, and which findings follow from which."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpulesson.exercises.findings import Diagnosis, Finding, Source, times
from gpulesson.exercises.rules import definitions, slices, source_text
from gpulesson.exercises.trace import Trace

NOT_CALLED = Diagnosis(
    "not-called",
    "Without parentheses a method is only named, and nothing happens. As a condition it always counts as "
    "true.",
    "Add the parentheses.",
)
LEAVES_THE_LOOP = Diagnosis(
    "leaves-the-loop",
    "After a break or a return there is no next round. After a continue the lines below it are skipped.",
    "If the line belongs after the loop, indent it less. If it was for trying out, delete it.",
)

SPLIT_ORDER = Diagnosis(
    "split-order",
    "train_test_split returns both parts of the first array, then both parts of the second.",
    "Take them in this order: X_train, X_test, y_train, y_test.",
)
ANOTHER_FILE = Diagnosis(
    "another-file",
    "The check is about what this file does itself.",
    "Write the steps into this file. It may import a module of your own from the same folder.",
)

MISSING_RETURN = Diagnosis(
    "missing-return",
    "A Python function gives back only what stands behind its return. Without one it gives None.",
    "End the function with a return of what it computed.",
)

_PART = re.compile(r"(?i)(train|test|tr|te)(?![a-z])")

_OF_ITS_RUNS = {
    *("counted-otherwise", "other-goal", "rate-oversteps", "rate-too-small", "stopped-early"),
    *("trial-changed", "verdict-changed"),
}
"""What exercise 12 says of runs: of runs without correct steps it says nothing."""
_FOLLOW: dict[str, set[str]] = {
    NOT_CALLED.kind: {
        "checkpoint-without-optimizer",
        "condition-true",
        "error",
        "evaluated-on-cpu",
        "fails-when-called",
        "few-steps",
        "hard-coded-cuda",
        "low-accuracy",
        "missing-eval",
        "missing-train",
        "losses-kept",
        "missing-zero-grad",
        "model-not-restored",
        "model-on-cpu",
        "no-accuracy",
        "no-backward",
        "no-gpu-here",
        "no-losses",
        "no-number",
        "no-pairs",
        "no-step",
        "not-plain",
        "not-waited-for",
        "older-work-measured",
        "truth-of-many",
        "wrong-accuracy",
    },
    MISSING_RETURN.kind: {
        "condition-false",
        "device-is-cpu",
        "error",
        "evaluated-on-cpu",
        "fails-when-called",
        "gpu-left-idle",
        "model-on-cpu",
        "not-on-the-device",
        "truth-of-many",
    },
    "no-losses": {MISSING_RETURN.kind},
    "no-number": {MISSING_RETURN.kind},
    LEAVES_THE_LOOP.kind: {
        "evaluated-before-training",
        "few-rows",
        "few-steps",
        "evaluated-on-training-data",
        "low-accuracy",
        "missing-eval",
        "no-accuracy",
        "not-all-samples",
        "step-outside-loop",
    },
    SPLIT_ORDER.kind: {
        "batch-sizes-differ",
        "double-and-float",
        "error",
        "evaluated-on-training-data",
        "few-rows",
        "float-labels",
        "label-out-of-range",
        "labels-of-other-rows",
        "loss-arguments-swapped",
        "low-accuracy",
        "other-split",
        "shapes-do-not-fit",
        "sizes-differ",
        "trained-on-test-data",
        "unknown-samples",
        "wrong-accuracy",
    },
    "missing-zero-grad": _OF_ITS_RUNS,
    "zero-grad-after-backward": _OF_ITS_RUNS,
    "no-step": _OF_ITS_RUNS,
    "step-before-backward": {"zero-grad-after-backward", "missing-zero-grad", "no-backward"} | _OF_ITS_RUNS,
    "step-outside-loop": {
        "gradients-while-evaluating",
        "missing-eval",
        "missing-zero-grad",
        "zero-grad-after-backward",
        *_OF_ITS_RUNS,
    },
    "optimizer-elsewhere": {"another-model", "not-anew"} | _OF_ITS_RUNS,
    "device-is-cpu": {"model-on-cpu", "evaluated-on-cpu"},
    "dropout-dropped": {"missing-eval", "missing-train"},
    "evaluated-before-training": {"missing-eval", "not-all-samples"},
    "another-model": {"missing-eval", "wrong-accuracy"},
    "evaluated-on-training-data": {"evaluated-once", "not-all-samples"},
    "no-accuracy": {"evaluated-once", "not-all-samples"},
    "wrong-accuracy": {"evaluated-once"},
    "unknown-samples": {"not-all-samples"},
    "logits-compared": {"wrong-accuracy"},
    "move-thrown-away": {"not-on-the-device"},
    "prepared-otherwise": {"wrong-accuracy"},
    "branches-swapped": {
        "condition-true",
        "gpu-left-idle",
        "hard-coded-cuda",
        "model-on-cpu",
        "no-gpu-here",
    },
}


def not_called(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say where a method is named and not called."""
    line, name = source_text.uncalled(source.lines)
    if line:
        yield source.failure(NOT_CALLED, line, f"“{name}” has no parentheses; expected {name}().")


def value_not_called(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say where a method itself became a value, such as ``{"optimizer": optimizer.state_dict}``.

    Asked only of a program that has failed: what is named may also be called later, and rightly.
    """
    said = "" if trace.error is None else trace.error.message
    failing = trace.error.site.line if trace.error is not None else 0
    found = _named_only(source, sure=re.search(r"method|GLOBAL getattr|not callable", said) is not None)
    for node in sorted(found, key=lambda node: (node.lineno != failing, node.lineno)):
        name = ast.unparse(node)
        yield source.failure(NOT_CALLED, node.lineno, f"“{name}” has no parentheses; expected {name}().")
        return


def missing_return(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say which function returns nothing although its result is used.

    Asked only of a program that has failed; and if it stopped, only where the message speaks of None.
    """
    said = trace.facts["fell"][1] if "fell" in trace.facts else ""
    said = trace.error.message if trace.error is not None else said
    if said and "None" not in said:
        return
    seen = source_text.nothing_returned(source.lines)
    if seen is not None:
        computed = f"computes “{seen.computed}”, but returns nothing" if seen.computed else "returns nothing"
        none = f"“{seen.name}” is None" if seen.name else "its result is None"
        what = f"{seen.function} {computed}, so {none} on {source.where(seen.used_on)}."
        yield source.failure(MISSING_RETURN, seen.line, what)


_GIVES_A_VALUE = {
    *("state_dict", "parameters", "backward", "zero_grad", "item", "tolist", "numpy", "detach", "clone"),
    *("cpu", "cuda", "contiguous", "synchronize", "is_available", "get_rng_state", "get_state"),
}
"""Methods that are called without an argument, and mostly for what they return."""
_MAY_BE_VALUES = {
    "float",
    "long",
    "sum",
    "mean",
    "argmax",
    "flatten",
    "any",
    "all",
    "max",
    "min",
    "size",
    "dim",
}


def _named_only(source: Source, sure: bool) -> list[ast.Attribute]:
    """Return the methods that are named as a value where only a call of theirs makes sense.

    Not the functions of a module, such as ``torch.float``, nor what is kept under a name that is called; and,
    unless it is `sure` that a method was taken for a value, nor what a function gets, which may call it.
    """
    nodes = source_text.all_nodes(source.lines)
    modules = {name for node in nodes for name in _imported(node)}
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    passed = set() if sure else {id(part) for node in calls for part in _passed_on(node)}
    kept = [node for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign) and _kept(node, calls)]
    names = {id(node.value) for node in kept}
    methods = _GIVES_A_VALUE | (_MAY_BE_VALUES if sure else set())
    alone = [node.value for node in nodes if isinstance(node, ast.Expr) and not source.cells]
    return [node for node in alone if isinstance(node, ast.Attribute)] + [
        node
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr in methods
        and isinstance(node.ctx, ast.Load)
        and id(node) not in called | inner | passed | names
        and not (
            isinstance(node.value, ast.Name)
            and node.value.id in modules
            and node.attr in _TYPES | _MAY_BE_VALUES
        )
    ]


_TYPES = {"float", "long", "cuda", "cpu"}
"""Also names of types and modules: ``torch.float``, ``torch.cuda``."""
_TAKES_VALUES = {
    *("save", "print", "append", "dict", "update", "load_state_dict", "set_rng_state", "stack", "cat"),
    *("tensor", "float", "int", "len", "str", "sum", "abs", "round", "min", "max", "list", "tuple"),
    *("Adam", "AdamW", "SGD", "RMSprop", "allclose", "equal"),
}
"""Functions that call nothing of what they get."""


def _passed_on(call: ast.Call) -> list[ast.expr]:
    """Return what a call hands to a function that may call it."""
    if source_text.called(call) in _TAKES_VALUES:
        return [keyword.value for keyword in call.keywords if keyword.arg == "key"]
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _kept(node: ast.Assign | ast.AnnAssign, calls: Sequence[ast.Call]) -> bool:
    """Tell whether a name that gets a method is called somewhere."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = {ast.unparse(target) for target in targets}
    return any(ast.unparse(each.func) in names for each in calls)


def _imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return set()


def split_order(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say where the four results of ``train_test_split`` get names in another order than they come."""
    seen = trace.trained_on
    if trace.error is None and (seen is None or not (seen.test or seen.mislabelled or seen.unknown)):
        return
    for node in source_text.all_nodes(source.lines):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple | ast.List):
            continue
        found = [_PART.search(ast.unparse(target)) for target in node.targets[0].elts]
        parts = [match[1].lower() if match else "" for match in found]
        if len(parts) != 4 or sorted(parts) not in (
            ["test", "test", "train", "train"],
            ["te", "te", "tr", "tr"],
        ):
            continue
        behind = slices.back(source.lines, node.lineno)
        tuples = [
            part for each in behind for part in slices.own(each) if isinstance(part, ast.Tuple | ast.List)
        ]
        if any(len(part.elts) >= 4 and part.lineno != node.lineno for part in tuples):
            continue  # another line may have changed the order
        if [part[:2] for part in parts] == ["tr", "te", "tr", "te"]:
            continue
        if not any("train_test_split(" in slices.text(each) for each in behind):
            continue
        names = ", ".join(map(ast.unparse, node.targets[0].elts))
        yield source.failure(SPLIT_ORDER, node.lineno, f"The four results are called {names}, in this order.")
        return


def own_work(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say that another file did the work, such as the solution.

    A module of the learner's own beside the file may have the functions that train, and the file calls them.
    If it trains while it is imported, or run as a program, the work is its own. Nobody can tell whose text it
    is: functions copied from the solution into a module pass.
    """
    for file in dict.fromkeys(optimizer.ran_in for optimizer in trace.optimizers if optimizer.ran_in):
        if file != trace.program:
            name = Path(file).name
            line = definitions.first_match(source.lines, rf"\b{re.escape(Path(file).stem)}\b")
            what = f"The training ran while this file imported or ran {name}, and not in its own lines."
            yield source.failure(ANOTHER_FILE, line, what)
            return
    sites = [trace.backward_at, *(optimizer.step_at for optimizer in trace.optimizers)]
    for file in dict.fromkeys(site.file for site in sites if site.file):
        own = file == trace.program or Path(file).is_relative_to(Path(trace.program).parent)
        if not own and not (source.beside and Path(file).is_relative_to(source.beside)):
            yield source.failure(ANOTHER_FILE, 0, f"The training ran in {Path(file).name}, not in this file.")
            return


def leaves_the_loop(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say which line ends a loop too early, where something is missing that the loop should have done."""
    line = source_text.leaving(source.lines)
    if not line or trace.error is not None:
        return
    seen, passes = trace.trained_on, trace.facts.get("passes", 0)
    few = trace.backwards < passes or (seen is not None and not seen.unknown and 2 * seen.known < seen.of)
    samples = trace.facts.get("test_samples", 0)
    evaluated = sum(batch.test for batch in trace.evaluated if batch.step == trace.steps)
    if few or (trace.evaluated and evaluated < samples):
        done = (
            f"backward() called {times(trace.backwards)}"
            if few
            else f"{evaluated} of {samples} test samples evaluated"
        )
        yield source.failure(
            LEAVES_THE_LOOP, line, f"Every round of the loop ends on this line. Seen: {done}."
        )


def first(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out what only follows from another finding, and what two rules have found."""
    follow = {kind for finding in findings for kind in _FOLLOW.get(finding.kind, ())}
    places = {(finding.kind, finding.place): finding for finding in reversed(findings)}
    once = [finding for finding in findings if places[finding.kind, finding.place] is finding]
    return [finding for finding in once if finding.kind not in follow]
