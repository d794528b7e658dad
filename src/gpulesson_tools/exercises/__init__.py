"""Exercises that check themselves: one writes functions, and the check calls them with its own inputs.

What a task is, and the search for the mistakes behind what was seen: ``contract``. The exercises, one file
each: ``e01_any_machine`` and so on. ``checker`` runs a file, by ``runner``; ``report`` answers in words.
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
