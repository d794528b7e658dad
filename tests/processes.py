"""Programs of the tests, each in a separate process, forked from one that has imported what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warm import WarmProcess


def run(
    warm: WarmProcess | None,
    function: str,
    *arguments: Any,
    instead: list[str],
    folder: Path,
    environment: Mapping[str, str],
    together: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Call a function, ``"module:name"``, in a fork; without a warm process, run python `instead`.

    There is no time limit but the test's (`timeout` in pyproject.toml): a busy machine fails no test. With
    `together`, standard error goes to the output.
    """
    error = subprocess.STDOUT if together else subprocess.PIPE
    if warm is None:
        process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, *instead],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=error,
            encoding="utf-8",
        )
    else:
        process = warm.start(function, *arguments, folder=folder, environment=environment, stderr=error)
    output, errors = process.communicate()
    return subprocess.CompletedProcess([function, *arguments], process.returncode, output, errors or "")


def run_script(
    warm: WarmProcess | None, script: Path, folder: Path, *, practice: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, perhaps on the practice GPU; `environment` is added to this process's."""
    surroundings = {**os.environ, "MPLBACKEND": "Agg", **environment}
    name = str(script)
    if practice:
        begin, arguments = "practice_gpu:run_script", [name]
        instead = ["-m", "gpulesson", "practice", name]
    else:
        begin, arguments = "runpy:run_path", [name, None, "__main__"]
        instead = [name]
    return run(warm, begin, *arguments, instead=instead, folder=folder, environment=surroundings)
