"""Programs of the tests: each in a process of its own, forked from one that has imported what it needs."""

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

    How long it may take is the test's affair (`timeout` in pyproject.toml): a busy machine fails no test.
    `together`: what it writes to standard error comes with its output.
    """
    if warm is None:
        command = [sys.executable, *instead]
        error = subprocess.STDOUT if together else subprocess.PIPE
        return subprocess.run(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=error,
            text=True,
        )
    fork = warm.start(function, *arguments, folder=folder, environment=environment, stderr=not together)
    output, errors = fork.communicate()
    return subprocess.CompletedProcess([function, *arguments], fork.wait(), output.decode(), errors.decode())


def run_script(
    warm: WarmProcess | None, script: Path, folder: Path, *, practice: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, on the practice GPU if wished; `environment` is added to the tests' own."""
    surroundings = {**os.environ, "MPLBACKEND": "Agg", **environment}
    name = str(script)
    if practice:
        begin, arguments = "practice_gpu:run_script", [name]
        instead = ["-m", "gpulesson", "practice", name]
    else:
        begin, arguments = "runpy:run_path", [name, None, "__main__"]
        instead = [name]
    return run(warm, begin, *arguments, instead=instead, folder=folder, environment=surroundings)
