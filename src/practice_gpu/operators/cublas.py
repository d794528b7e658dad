"""cuBLAS, which multiplies matrices on a GPU: its handle is made at the first product, but not in a capture.

PyTorch keeps a handle for each thread, and its backward pass runs in separate threads
(``ATen/cuda/CublasHandlePool.cpp``, ``torch/csrc/autograd/engine.cpp``). Threads reuse the handles of threads
that have ended, so here any thread's handle is enough.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

OPERATORS = {"_addmm_activation", "addbmm", "addmm", "addmv", "baddbmm", "bmm", "dot", "mm", "mv", "vdot"}
handles: set[bool] = set()
"""True: a thread of the backward pass has one; False: a thread of the program."""


def make_handle(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Record that a matrix product runs: `practice_gpu.operators.facts` has this called before each."""
    handles.add(_in_backward())


def has_handle() -> bool:
    """Return whether a matrix product would find a handle."""
    return _in_backward() in handles


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1
