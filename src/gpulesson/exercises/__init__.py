"""
Exercises that check themselves: a learner's file runs, and is checked by what it *did*.

=========================  =============================================================================
``e01_…`` to ``e12_…``     the exercises, one file each: hints, the rules it takes, its probe, its words
``exercise``               what an exercise is; the list of them
``checker``, ``report``    the way in, and the answer; ``demands`` has its checklist
``commands``               ``python -m gpulesson check``, ``submissions`` and ``lessons``
``submissions``            a folder of files, for a class
``progress``               how far a learner has come
``process``                the learner's process: its start, its bounds, its end
``watch``, ``trace``       what is seen while it runs, and the same as plain data
``rules``, ``findings``    from there to what is wrong, on which line, why, and what next
=========================  =============================================================================

Only the learner's process imports torch: the check itself works where torch does not.
"""

from gpulesson.exercises.checker import UsageError, check
from gpulesson.exercises.demands import Demand
from gpulesson.exercises.exercise import Exercise, exercises, find
from gpulesson.exercises.findings import Finding
from gpulesson.exercises.process.warm import ForkedProcess, WarmProcess
from gpulesson.exercises.progress import progress_file
from gpulesson.exercises.report import Report
from gpulesson.exercises.submissions import check_folder

__all__ = [
    "Demand",
    "Exercise",
    "Finding",
    "ForkedProcess",
    "Report",
    "UsageError",
    "WarmProcess",
    "check",
    "check_folder",
    "exercises",
    "find",
    "progress_file",
]
