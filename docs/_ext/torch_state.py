"""Gives each lesson the PyTorch of a fresh process, though all lessons run in one.

sphinx-gallery calls `reset` before every script (`reset_modules` in conf.py). The first call saves the
settings that lessons change; every call restores them. A lesson has to restore other settings itself.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from typing import Any

SEED = 0  # a fresh process has a random seed; a build should print the same twice
_initial: dict[str, Any] = {}


def reset(gallery_conf: dict[str, Any], script: str) -> None:
    """Restore the state before the first lesson, and seed every generator."""
    import numpy as np
    import torch

    precisions = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    if not _initial:
        _initial["environment"] = dict(os.environ)
        _initial["threads"] = torch.get_num_threads()
        _initial["precisions"] = [one.fp32_precision for one in precisions]
    stop_leftovers(torch)
    os.environ.clear()
    os.environ.update(_initial["environment"])
    torch.set_num_threads(_initial["threads"])
    for one, precision in zip(precisions, _initial["precisions"], strict=True):
        one.fp32_precision = precision
    torch.set_default_device(None)
    if torch.are_deterministic_algorithms_enabled():  # the next line imports the compiler: seconds
        torch.use_deterministic_algorithms(False)
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)  # every device's generator


def stop_leftovers(torch: Any) -> None:
    """Stop what a lesson may have left running, and free its memory on a GPU."""
    for module, name in ("practice_gpu", "stop"), ("torch._dynamo", "reset"):
        if module in sys.modules:
            getattr(sys.modules[module], name)()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        clear_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if (
            clear_workspaces is not None
        ):  # workspaces of matrix products would count as the next lesson's memory
            clear_workspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
