"""Finds the learner's line that is running."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from gpulesson.exercises.trace import Site
from gpulesson.practice.events import is_library, where

_TORCH = Path(torch.__file__).parent
_WORKERS = (str(_TORCH / "amp"), str(_TORCH / "optim"))


def here() -> Site:
    """Return the learner's line that is running."""
    return Site(*where())


def made_here(made: Any) -> Site:
    """Return the learner's line that makes an object, not a line of the object's own ``__init__``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        own = frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is made
        if not own and not is_library(frame.f_code.co_filename):
            return Site(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return Site()


def way() -> list[tuple[str, Site]]:
    """Return the learner's functions that are running, with their lines, the outermost first."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not is_library(code.co_filename):
            found.append((f"{code.co_name}:{code.co_firstlineno}", Site(code.co_filename, frame.f_lineno)))
        frame = frame.f_back
    return found[::-1]


def parted(one: list[tuple[str, Site]], other: list[tuple[str, Site]]) -> tuple[Site, Site]:
    """Return where two ways part: their lines in the last function that both have in common."""
    found = Site(), Site()
    for (here, line), (there, elsewhere) in zip(one, other, strict=False):
        if here != there:
            break
        found = line, elsewhere
        if line != elsewhere:
            break
    return found


def running_file() -> str:
    """Return the file whose lines outside functions are running: during an import the imported one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and not is_library(code.co_filename):
            return code.co_filename
        frame = frame.f_back
    return ""


def learners() -> Iterator[FrameType]:
    """Yield the frames of the learner's that are running, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def gpu_named() -> str:
    """Return a variable of the learner's that holds a GPU, or an attribute of one; empty if none does."""
    for frame in learners():
        for name, value in (*frame.f_locals.items(), *frame.f_globals.items()):
            if _is_gpu(value):
                return name
            if getattr(type(value), "__module__", "") == "__main__" and hasattr(value, "__dict__"):
                inner = next((key for key, part in vars(value).items() if _is_gpu(part)), "")
                if inner:
                    return f"{name}.{inner}"
    return ""


def _is_gpu(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type not in ("cpu", "meta")
    return type(value) is str and re.fullmatch(r"(cuda|mps|xpu)(:\d+)?", value) is not None


def inside_optimizers() -> bool:
    """Tell whether an optimizer or a gradient scaler is at work, below the learner's line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_WORKERS):
            return True
        frame = frame.f_back
    return False
