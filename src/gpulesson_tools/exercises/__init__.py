"""
Exercises that check themselves: one writes functions, and the check calls them with its own inputs.

=================  ===================================================================================
``contract``       what a function has to do, its facts, and the search for the mistakes behind them
``e01_…`` …        the exercises, one file each: reference with switches, what is seen, the mistakes
``training``       training, its test and their mean: references and what is seen of them
``words``          mistakes of any training, and names for what is seen
``watch``          what can be seen of a model in training
``runner``         a fresh process for a learner's file, with bounds
``checker``        the way in: a file, or the functions of a notebook
``report``         the answer, in words
``messages``       what an exception means: sections of the page "Error messages", and Python's own errors
``reading``        slips that can be read in a file, and the line that it stops in
``catalogue``      which exercises there are, and the learner's progress
``commands``       ``python -m gpulesson start``, ``check``, ``submissions`` and ``lessons``
=================  ===================================================================================
"""

from gpulesson_tools.exercises.catalogue import Exercise, UsageError, exercises, find, progress_file
from gpulesson_tools.exercises.checker import check
from gpulesson_tools.exercises.commands import check_folder
from gpulesson_tools.exercises.reading import Finding
from gpulesson_tools.exercises.report import Answer, Report

__all__ = [
    "Answer",
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
