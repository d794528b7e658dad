"""
Exercises that check themselves: a learner's file runs, and is judged by what it *did*.

===============================  =======================================================================
``checker``, ``report``,         the ways in, and the answer
``commands``
``catalog``, ``progress``        what the exercises ask; how far a learner has come
``runner``, ``child``            the learner's process: its folder, its bounds, its end
``observe``, ``watch_models``,   what is seen while it runs: models, training, values
``watch_training``,
``watch_values``, ``looking``
``trace``, ``probes``            what was seen, as plain data; what the checker finds out by itself
``diagnose``, ``judging``,       from there to what is wrong, on which line, why, and what next
``reading``, ``findings``,
``explanations``
===============================  =======================================================================

Only the learner's process imports torch: the check itself works where torch does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulesson.exercises.catalog import EXERCISES, Exercise
    from gpulesson.exercises.checker import UsageError, check
    from gpulesson.exercises.findings import Finding
    from gpulesson.exercises.progress import progress_file
    from gpulesson.exercises.report import Report

__all__ = ["EXERCISES", "Exercise", "Finding", "Report", "UsageError", "check", "progress_file"]

_ROOMS = ("catalog", "checker", "findings", "progress", "report")


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for."""
    if name in __all__:
        for room in _ROOMS:
            module = import_module(f"{__name__}.{room}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
