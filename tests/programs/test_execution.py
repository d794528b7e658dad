"""A program runs as ``python`` runs it: compared with ``python``."""

from __future__ import annotations

import subprocess
import sys

import pytest

TELL = """
import sys
from pathlib import Path
print(__name__, __package__ or "", Path(__file__).name, sys.argv[1:], Path(sys.argv[0]).name)
print(Path(sys.path[0]).resolve().name, sys.modules["__main__"].__dict__ is globals())
"""
EXECUTE = (
    "import sys; from gpulesson_tools.programs.execution import Program, execute; "
    "execute(Program.of(sys.argv[1:]))"
)


@pytest.mark.parametrize(
    "program", [["alone.py", "-x"], ["pack/inner.py"], ["-m", "pack.inner", "--epochs", "3"], ["-m", "pack"]]
)
def test_it_sees_what_it_sees_when_python_runs_it(tmp_path, program):
    (tmp_path / "pack").mkdir()
    for name in ("alone.py", "pack/__init__.py", "pack/__main__.py", "pack/inner.py"):
        (tmp_path / name).write_text("" if name.endswith("__init__.py") else TELL)
    said = [
        subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        for words in (program, ["-c", EXECUTE, *program])
    ]
    assert said[0].stdout == said[1].stdout and "__main__" in said[0].stdout


def test_a_script_with_relative_imports_runs_as_a_part_of_its_package(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "data.py").write_text("rows = 3")
    (tmp_path / "pack" / "train.py").write_text("from .data import rows\nprint(rows, __package__)")
    command = [sys.executable, "-c", EXECUTE, "pack/train.py"]
    assert subprocess.check_output(command, cwd=tmp_path, text=True) == "3 pack\n"


@pytest.mark.parametrize("program", [["-m", "nowhere"], ["nowhere.py"]])
def test_a_program_that_is_not_there(tmp_path, program):
    command = [sys.executable, "-c", EXECUTE, *program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "nowhere" in done.stderr.splitlines()[-1]
