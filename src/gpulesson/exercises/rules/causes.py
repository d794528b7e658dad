"""Rules: a slip in the text that explains all the rest, and which findings follow from which."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpulesson.exercises.findings import Diagnosis, Finding, Source, times
from gpulesson.exercises.rules import definitions, source_text
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

ANOTHER_FILE = Diagnosis(
    "another-file",
    "The check is about what this file does itself.",
    "Write the steps into this file. It may import a module of your own from the same folder.",
)

_FOLLOW: dict[str, set[str]] = {
    NOT_CALLED.kind: {
        "evaluated-on-cpu",
        "few-steps",
        "hard-coded-cuda",
        "low-accuracy",
        "missing-eval",
        "missing-train",
        "missing-zero-grad",
        "model-on-cpu",
        "no-backward",
        "no-gpu-here",
        "no-step",
        "not-waited-for",
        "older-work-measured",
    },
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
    "step-before-backward": {"zero-grad-after-backward", "missing-zero-grad", "no-backward"},
    "step-outside-loop": {"missing-eval", "missing-zero-grad", "zero-grad-after-backward"},
    "optimizer-elsewhere": {"another-model"},
    "evaluated-before-training": {"missing-eval", "not-all-samples"},
    "another-model": {"missing-eval", "wrong-accuracy"},
    "evaluated-on-training-data": {"evaluated-once", "not-all-samples"},
    "no-accuracy": {"evaluated-once", "not-all-samples"},
    "wrong-accuracy": {"evaluated-once"},
    "unknown-samples": {"not-all-samples"},
    "logits-compared": {"wrong-accuracy"},
    "branches-swapped": {"gpu-left-idle", "hard-coded-cuda", "model-on-cpu", "no-gpu-here"},
}


def not_called(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say where a method is named and not called."""
    line, name = source_text.uncalled(source.lines)
    if line:
        yield source.failure(NOT_CALLED, line, f"“{name}” has no parentheses; expected {name}().")


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
