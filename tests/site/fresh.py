"""An environment that has nothing of this project: what a reader's first commands make of it."""

from __future__ import annotations

import os
import subprocess
import sys
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
