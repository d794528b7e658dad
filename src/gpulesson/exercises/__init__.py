"""
Exercises that check themselves: a learner's file runs, and is judged by what it *did*.

=========================  =============================================================================
``e01_…`` to ``e12_…``     the exercises, one file each: hints, the rules it takes, its probe, its words
``exercise``               what an exercise is; the list of them
``checker``, ``report``    the way in, and the answer
``commands``               ``python -m gpulesson check``, ``submissions`` and ``lessons``
``submissions``            a folder of files, for a class
``progress``               how far a learner has come
``process``                the learner's process: its start, its bounds, its end
``watch``, ``trace``       what is seen while it runs, and the same as plain data
``rules``, ``findings``    from there to what is wrong, on which line, why, and what next
=========================  =============================================================================

Only the learner's process imports torch: the check itself works where torch does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulesson.exercises.checker import UsageError, check
    from gpulesson.exercises.exercise import Exercise, exercises
    from gpulesson.exercises.findings import Finding
    from gpulesson.exercises.progress import progress_file
    from gpulesson.exercises.report import Report
    from gpulesson.exercises.submissions import check_folder

__all__ = [
    "Exercise",
    "Finding",
    "Report",
    "UsageError",
    "check",
    "check_folder",
    "exercises",
    "find",
    "progress_file",
]

_MODULES = ("checker", "exercise", "findings", "progress", "report", "submissions")


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for."""
    if name in __all__:
        for module_name in _MODULES:
            module = import_module(f"{__name__}.{module_name}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
