"""Run one program in several processes that know of one another, as ``torchrun`` starts them."""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpulesson.exercises.process.run import Outcome, Rank, lay_out, run

WAIT = 20.0
"""Seconds that a process may wait for another one; they start together, and have little to do."""
_MORE = 3.0
"""Seconds that the others have to say what they know when one has failed."""
_LEFT_ALONE = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|failed to recv|Socket closed|unexpected state|Timed out"
)
"""What Gloo and the store say when the other process has ended."""


class _Stopped(Exception):
    """The check was stopped, or another process."""


def run_ranks(
    number: int,
    source: bytes,
    name: str,
    *,
    data: Sequence[Path] = (),
    tell: Callable[[float], object] | None = None,
    **options: Any,
) -> list[Outcome]:
    """Run a program in several processes at once, each on a practice GPU of its own.

    They share a folder, as on one machine. A process that waits longer than `WAIT` is stopped. When one ends
    otherwise before its end, the others are stopped soon after it.

    Parameters
    ----------
    number : int
        How many.
    source, name, data, tell
        As for :func:`gpulesson.exercises.process.run.run`.
    **options
        Its other options.

    Returns
    -------
    list of Outcome
        In the order of the ranks. The status of one that was stopped with another is ``"stopped"``.
    """
    until = math.inf

    def one(rank: int, shared: str) -> Outcome:
        def go_on(seconds: float) -> None:
            if time.monotonic() > until:
                raise _Stopped
            if tell is not None and rank == 0:
                tell(seconds)

        nonlocal until
        try:
            outcome = run(source, name, idle=WAIT, rank=Rank(rank, number, shared), tell=go_on, **options)
        except _Stopped:
            return Outcome("stopped")
        failed = outcome.trace.error if outcome.trace else outcome.status != "idle"  # it may wait for work
        if failed:
            until = min(until, time.monotonic() + _MORE)
        return outcome

    with tempfile.TemporaryDirectory(prefix="gpulesson-", ignore_cleanup_errors=True) as shared:
        lay_out(Path(shared, "program"), source, name, data)
        with ThreadPoolExecutor(number) as pool:
            runs = [pool.submit(one, rank, shared) for rank in range(number)]
            try:
                return [each.result() for each in runs]
            finally:  # also after Ctrl-C: the processes end before the pool does
                until = -math.inf


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome that says most of what happened; its trace has those of all ranks.

    A process that fails takes the others with it. So an error of a process that was left alone counts least.

    Parameters
    ----------
    outcomes : sequence of Outcome
        In the order of the ranks.
    """
    first = min(outcomes, key=_says_less)
    if first.trace is not None:
        ranks = [each.trace for each in outcomes if each.trace is not None]
        first.trace.ranks = ranks if len(ranks) == len(outcomes) else []
    texts = [(rank, each.output) for rank, each in enumerate(outcomes) if each.output]
    output = texts[0][1] if texts else ""
    if len(texts) > 1 or (texts and texts[0][0]):
        output = "\n".join(f"rank {rank}:\n{text}" for rank, text in texts)
    return replace(first, output=output)


def _says_less(outcome: Outcome) -> int:
    """Return a larger number the less an outcome says."""
    if outcome.trace is None:
        return {"idle": 2, "stopped": 5}.get(outcome.status, 1)
    error = outcome.trace.error
    if error is None:
        return 0 if outcome.trace.exit_code else 4
    return 3 if _LEFT_ALONE.search(error.message) else 0
