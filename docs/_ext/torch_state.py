"""Gives each lesson the PyTorch of a fresh process, though all lessons run in one.

sphinx-gallery calls `reset` before every script (`reset_modules` in conf.py). The first call takes a
picture of the state; every call restores it.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable
from typing import Any

SEED = 0  # a fresh process has a random seed; a build should print the same twice
_initial: dict[str, Any] = {}

# Where torch keeps a setting, and under which name. The order matters: the newer names of the precisions come
# after `set_float32_matmul_precision`, which writes them too.
ATTRIBUTES = [
    ("torch.backends.cudnn", "enabled"),
    ("torch.backends.cudnn", "benchmark"),
    ("torch.backends.cudnn", "deterministic"),
    ("torch.backends", "fp32_precision"),
    ("torch.backends.cuda.matmul", "fp32_precision"),
    ("torch.backends.cudnn", "fp32_precision"),
    ("torch.backends.cudnn.conv", "fp32_precision"),
    ("torch.backends.cudnn.rnn", "fp32_precision"),
    ("torch.utils.deterministic", "fill_uninitialized_memory"),
]


def reset(gallery_conf: dict[str, Any], script: str) -> None:
    """Restore the state before the first lesson, and seed every generator."""
    import numpy as np
    import torch

    if not _initial:
        _initial.update(picture(torch))
    stop_leftovers(torch)
    restore(torch, _initial)
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)  # every device's generator


def picture(torch: Any) -> dict[str, Any]:
    """Read every setting that `restore` writes."""
    return {
        "environment": dict(os.environ),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "attributes": [getattr(place(torch, path), name) for path, name in ATTRIBUTES],
    }


def restore(torch: Any, initial: dict[str, Any]) -> None:
    """Write PyTorch's defaults, and the settings that depend on the machine as they were."""
    os.environ.clear()
    os.environ.update(initial["environment"])
    torch.set_default_device(None)
    torch.set_default_dtype(initial["dtype"])
    torch.set_num_threads(initial["threads"])
    torch.set_grad_enabled(True)
    torch.autograd.set_detect_anomaly(False)
    if torch.are_deterministic_algorithms_enabled():  # the next line imports the compiler: seconds
        torch.use_deterministic_algorithms(False)
    torch.set_printoptions(profile="default")
    for kind in ("cpu", "cuda"):
        torch.set_autocast_enabled(kind, False)
    torch.set_float32_matmul_precision("highest")
    for (path, name), value in zip(ATTRIBUTES, initial["attributes"], strict=True):
        setattr(place(torch, path), name, value)


def place(torch: Any, path: str) -> Any:
    """Find `torch.backends.cudnn.conv`: some of these are attributes and no modules."""
    for name in path.split(".")[1:]:
        torch = getattr(torch, name)
    return torch


def stop_leftovers(torch: Any) -> None:
    """End what a lesson may have left running, and free what it left on a GPU."""
    endings: list[tuple[str, str]] = [("gpulesson.practice", "stop"), ("torch._dynamo", "reset")]
    for module, name in endings:
        end: Callable[[], object] | None = getattr(sys.modules.get(module), name, None)
        if end is not None:
            end()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        clear_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear_workspaces is not None:  # what matrix products keep would count as the next lesson's memory
            clear_workspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
