"""The starters of the exercises, which the package brings along, and a copy for the learner."""

from __future__ import annotations

from pathlib import Path

from gpulesson.exercises.exercise import Exercise

_PACKED = Path(__file__).with_name("starters")
"""Where a wheel has them."""
_CHECKOUT = Path(__file__).parents[3] / "examples" / "exercises"
"""Where the project's folder has them."""


def starter(exercise: Exercise) -> str:
    """Return the text of an exercise's starter.

    Raises
    ------
    FileNotFoundError
        This installation has none.
    """
    folder = _PACKED if _PACKED.is_dir() else _CHECKOUT
    return (folder / exercise.starter).read_text(encoding="utf-8")


def copy_starter(exercise: Exercise, folder: Path) -> Path:
    """Copy the starter into a folder.

    Returns
    -------
    Path
        The copy.

    Raises
    ------
    FileExistsError
        There is a file of that name, which may be the learner's work.
    """
    path = folder / exercise.starter
    with path.open("x", encoding="utf-8") as file:
        file.write(starter(exercise))
    return path
