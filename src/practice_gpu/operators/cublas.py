"""cuBLAS, which multiplies matrices on a GPU: the first product makes its handle, and no capture can.

PyTorch keeps a handle for each thread, and its backward pass has threads of its own
(``ATen/cuda/CublasHandlePool.cpp``, ``torch/csrc/autograd/engine.cpp``). Handles of threads that have ended
are used again, so that here one of any thread will do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

OPERATORS = {"_addmm_activation", "addbmm", "addmm", "addmv", "baddbmm", "bmm", "dot", "mm", "mv", "vdot"}
handles: set[bool] = set()
"""True: the backward pass has one; False: a program's own thread."""


def make_handle(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Note that a matrix product runs; `practice_gpu.operators.facts` calls it before each."""
    handles.add(_in_backward())


def has_handle() -> bool:
    """Return whether a matrix product would find one here."""
    return _in_backward() in handles


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
