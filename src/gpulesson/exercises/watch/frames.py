"""Finds the learner's line that is running."""

from __future__ import annotations

import sys
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


def running_file() -> str:
    """Return the file whose lines outside functions are running: during an import the imported one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and not is_library(code.co_filename):
            return code.co_filename
        frame = frame.f_back
    return ""


def inside_optimizers() -> bool:
    """Tell whether an optimizer or a gradient scaler is at work, below the learner's line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_WORKERS):
            return True
        frame = frame.f_back
    return False
