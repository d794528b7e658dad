"""Run a script or a module in this process, as Python's command line runs it."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import re
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from gpulesson_tools.programs.arguments import Program


class Finished(BaseException):
    """A watcher has seen enough: the program need not go on."""


def execute(program: Program, top: Path | None = None) -> None:
    """Run a program as ``__main__``; it is compiled by ``SourceFileLoader.source_to_code``.

    Parameters
    ----------
    program : Program
    top : Path, optional
        Folders from this one up are not taken for the script's package.

    Raises
    ------
    ImportError
        If there is no such module.
    OSError
        If there is no such script.
    """
    main: Any = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    if program.is_module:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        main.__spec__ = _spec(program.name)
        path, main.__package__ = Path(main.__spec__.origin), main.__spec__.parent
        text, sys.argv = path.read_bytes(), [str(path), *program.arguments]
    else:
        path, sys.argv = Path(os.path.abspath(program.name)), program.words  # noqa: PTH100
        text, start, package = path.read_bytes(), path.resolve().parent, ""
        if re.search(rb"^\s*from\s+\.", text, re.MULTILINE):  # as python -m package.script does
            while (start / "__init__.py").exists() and start != top:
                start, package = start.parent, f"{start.name}.{package}".rstrip(".")
            main.__package__ = package
        sys.path.insert(0, str(start))
    main.__file__ = str(path)
    code = SourceFileLoader("__main__", str(path)).source_to_code(text, str(path))
    exec(code, main.__dict__)


def _spec(module: str) -> importlib.machinery.ModuleSpec:
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{module}.__main__")
    if spec is None or spec.origin is None:
        raise ImportError(f"No module named {module}")
    return spec
