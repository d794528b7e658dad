"""Check the files of a class: one folder, one exercise, with PyTorch imported once for all of them."""

from __future__ import annotations

import os
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpulesson.exercises.checker import MEMORY_LIMIT, TIME_LIMIT, UsageError, check, require_positive
from gpulesson.exercises.exercise import find
from gpulesson.exercises.process.run import end_running
from gpulesson.exercises.process.warm import WarmProcess, warm_process
from gpulesson.exercises.report import Report


def check_folder(
    folder: str | os.PathLike[str],
    exercise: str | int,
    *,
    jobs: int = 1,
    time_limit: float = TIME_LIMIT,
    memory_limit: int = MEMORY_LIMIT,
) -> Generator[tuple[Path, Report | Exception]]:
    """Check the programs in a folder, and yield each report as soon as those before it are there.

    Where the system can fork safely, PyTorch is imported once, and every program begins with a fork of that
    process; else every program imports it.

    Parameters
    ----------
    folder : path
        Its files ``*.py`` and ``*.ipynb`` are checked, in the order of their names; no hidden ones, whose
        names begin with a dot.
    exercise : str or int
        The number.
    jobs : int
        How many programs run at once.
    time_limit, memory_limit
        For each program, as for :func:`gpulesson.exercises.check`.

    Yields
    ------
    tuple of Path and Report
        The file, and the answer; or the exception that broke the check itself, which stops no other.

    Raises
    ------
    UsageError
        There is no such folder or exercise, no Python file in it, or a number is not positive.

    Examples
    --------
    >>> for file, report in check_folder("submissions", 4, jobs=2):  # doctest: +SKIP
    ...     print(file.stem, report.passed)
    ada True
    """
    if not Path(folder).is_dir():
        raise UsageError(f"there is no folder {folder} (looked for in {Path.cwd()})")
    files = [path for path in sorted(Path(folder).iterdir()) if is_program(path)]
    if not files:
        raise UsageError(
            f"there is no Python file or notebook in {folder}; put one file for each learner into it"
        )
    if jobs < 1:
        raise UsageError(f"jobs is {jobs}; give 1 or more")
    require_positive(time_limit, memory_limit)
    try:
        find(exercise)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return _checked(files, exercise, jobs, time_limit, memory_limit)


def is_program(path: Path) -> bool:
    """Tell whether a file of a folder is one to check."""
    return path.suffix in (".py", ".ipynb") and not path.name.startswith(".")


def _checked(
    files: list[Path], exercise: str | int, jobs: int, time_limit: float, memory_limit: int
) -> Generator[tuple[Path, Report | Exception]]:
    def one(file: Path, warm: WarmProcess | None) -> Report | Exception:
        try:
            return check(file, exercise, time_limit=time_limit, memory_limit=memory_limit, warm=warm)
        except Exception as error:  # a full disk, a file that has gone: the others go on
            return error

    with ThreadPoolExecutor(jobs) as pool, warm_process() as warm:
        reports = [(file, pool.submit(one, file, warm)) for file in files]
        try:
            for file, report in reports:
                yield file, report.result()
        finally:  # also when nobody asks for the rest
            pool.shutdown(wait=False, cancel_futures=True)
            end_running()
