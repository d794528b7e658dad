"""Run a user's script with a practice GPU, as ``python script.py`` would run it with a real one."""

import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from practice_gpu.interface import practice_gpu
from practice_gpu.tracebacks import trim


def run_script(
    path: str | Path,
    args: Sequence[str] = (),
    *,
    memory: str | int = "8 GiB",
    count: int = 1,
    force: bool = False,
    report: bool = False,
) -> int:
    """Run a script with a practice GPU.

    Parameters
    ----------
    path : str or Path
        The script.
    args : sequence of str
        Its arguments, ``sys.argv[1:]``.
    memory, count, force
        As in :class:`practice_gpu`.
    report : bool, default False
        Print the table of copies and waits at the end, on standard error.

    Returns
    -------
    int
        The exit status that ``python script.py`` would have: pass it to :func:`sys.exit`.

    Raises
    ------
    FileNotFoundError
        If there is no such script.
    """
    script = Path(path)
    if not script.is_file():
        raise FileNotFoundError(f"there is no script {str(path)!r} to run with the practice GPU")
    before = sys.argv, sys.path[:]
    sys.argv = [str(path), *args]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with practice_gpu(memory, count, force) as gpu:
            status = _run(script)
            if report:
                print(gpu.report(), file=sys.stderr)
        return status
    finally:
        sys.argv, sys.path[:] = before


def _run(script: Path) -> int:
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as request:
        return _status(request.code)
    except BaseException as error:
        trim(error)
        _show(error, str(script))
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        sys.stdout.flush()
    return 0


def _status(code: str | int | None) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _show(error: BaseException, script: str) -> None:
    """Print a traceback that begins in the script, without the frames that run it."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename != script:
        entry = entry.tb_next
    traceback.print_exception(type(error), error, entry or error.__traceback__)
