"""The programs of this folder, and the table of how they ran, ``docs/libraries.json``."""

import ast
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
TABLE = FOLDER.parents[1] / "docs" / "libraries.json"
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class Program:
    """One program, read without importing its library.

    Attributes
    ----------
    name : str
        The file's name, without its ending.
    what : str
        The first line of its docstring: what it does.
    library : str
        What ``pip install`` takes.
    tolerance : float
        How far, absolutely and relatively, its results may be from the CPU's; 0: equal to the bit.
    """

    name: str
    what: str
    library: str
    tolerance: float = 0.0


def read(file: Path) -> Program:
    """Read a program's docstring and its constants ``LIBRARY`` and ``TOLERANCE``."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    constants = {
        part.targets[0].id.lower(): ast.literal_eval(part.value)  # type: ignore[attr-defined]
        for part in tree.body
        if isinstance(part, ast.Assign) and getattr(part.targets[0], "id", None) in ("LIBRARY", "TOLERANCE")
    }
    return Program(file.stem, (ast.get_docstring(tree) or "").partition("\n")[0], **constants)


PROGRAMS = {file.stem: read(file) for file in sorted(FOLDER.glob("use_*.py"))}


def run(words: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, without a real GPU and without a network."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
    )


def write_row(file: Path, name: str, row: dict[str, Any]) -> None:
    """Put the row of a program that has just run into the table; the others of this PyTorch stay."""
    about = {"torch": version("torch"), "python": platform.python_version(), "system": platform.system()}
    table = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"about": {}, "rows": {}}
    kept = table["rows"] if about.items() <= table["about"].items() else {}
    about["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    found = {key: value for key, value in sorted({**kept, name: row}.items()) if key in PROGRAMS}
    text = json.dumps({"about": about, "rows": found}, indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")
