"""An environment that has nothing of this project: what a reader's first commands make of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import offline
import pytest


class Environment:
    """A fresh environment, made by uv: it has no pip. What it installs comes from the package index, or from
    uv's cache of it, where nox has the same files from; so no gigabytes are fetched again.
    """

    def __init__(self, folder: Path, uv: str) -> None:
        self.uv, self.python = uv, folder / "env" / "bin" / "python"
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "env"], check=True)

    def install(self, *what: str, folder: Path) -> None:
        command = [self.uv, "pip", "install", "--quiet", "--python", str(self.python), *what]
        for options in ["--offline"], []:
            done = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True)
            if done.returncode == 0:
                return
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"nothing can be installed: {done.stderr}")

    def take_bytecode(self) -> None:
        """Link the bytecode of the tests: files from uv are the same, and compiling them takes a minute."""
        theirs = Path(sysconfig.get_path("purelib"))
        (ours,) = self.python.parents[1].glob("lib/python*/site-packages")
        for compiled in theirs.rglob("*.pyc"):
            path = ours / compiled.relative_to(theirs)
            if path.parents[1].is_dir():
                path.parent.mkdir(exist_ok=True)
                with contextlib.suppress(OSError):  # it is there, or on another disk
                    path.hardlink_to(compiled)

    def run(self, *arguments: str, folder: Path, network: bool = True) -> subprocess.CompletedProcess[str]:
        """Run Python in a folder, with no setting of this project and no path into it."""
        ours = ("GPULESSON_", "PYTHONPATH", "VIRTUAL_ENV")
        around = os.environ if network else offline.environment() | {"UV_OFFLINE": "1"}
        names = {name: value for name, value in around.items() if not name.startswith(ours)}
        names |= {"MPLBACKEND": "Agg", "HOME": str(self.python.parents[2]), "PATH": self.path()}
        before = [] if network else offline.isolated()
        return subprocess.run(
            [*before, str(self.python), *arguments], cwd=folder, env=names, capture_output=True, text=True
        )

    def path(self) -> str:
        return os.pathsep.join([str(Path(self.uv).parent), "/usr/bin", "/bin"])
