"""
A practice GPU: CUDA code runs on a machine without a GPU, really trains, and fails with CUDA's own messages.

Tensors stay ordinary CPU tensors. A ledger knows which simulated device each storage is on; every ATen
operator comes here, where CUDA's same-device rules are applied, and its results enter the ledger; the
Python surface and ``torch.cuda`` answer accordingly. The modules:

===============================  =======================================================================
``interface``, ``script``,       the ways in and out: ``practice_gpu``, ``start`` and ``stop``,
``command``, ``pytest_plugin``   ``run_script``, the command, the fixture and the option
``environment``, ``arrival``,    other processes: how they get to know, how it begins there (with
``startup``, ``sharing``         ``startup/sitecustomize``), tensors that go from one to another
``session``, ``gpu``             one practice GPU from beginning to end; its state, what its user may ask it
``ledger``, ``allocator``,       which storage is where, and the memory that it takes
``sizes``
``keys``, ``operators``,         every operator: how it comes here, where it runs, which mixtures of devices
``rules``, ``facts``             CUDA refuses, what must be known of it
``dtypes``, ``determinism``      what else CUDA refuses: types of numbers, and operators whose results vary
``tensors``, ``factories``,      the Python surface: attributes and methods, functions that make tensors,
``storages``, ``functions``      saving and loading, functions that compare devices themselves
``cuda``, ``streams``,           ``torch.cuda`` and ``torch.accelerator``, and what hangs on them
``generators``, ``amp``
``parallel``, ``launch``         several devices in one call; several processes, as torchrun starts them,
``process_groups``,              that send one another what is on their GPUs, as NCCL does; what
``sync_batch_norm``              ``SyncBatchNorm`` calls
``compilers``                    TorchScript, ``torch.compile``, ``torch.export``
``libraries``, ``absent``        CUDA's runtime and NVTX; what refuses
``graphs``, ``recording``        CUDA graphs: PyTorch's objects for them, and what they consist of
``errors``, ``tracebacks``       CUDA's texts, and where a traceback ends
``events``                       the log of copies and waits
``patches``, ``imports``,        how all this is put in place and taken away; what it needs of PyTorch
``requirements``
===============================  =======================================================================
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulesson.practice.allocator import Memory
    from gpulesson.practice.errors import PracticeError
    from gpulesson.practice.events import Event
    from gpulesson.practice.gpu import PracticeGPU
    from gpulesson.practice.interface import PracticeWarning, RealGPU, practice_gpu, start, stop
    from gpulesson.practice.script import run_script

__all__ = [
    "Event",
    "Memory",
    "PracticeError",
    "PracticeGPU",
    "PracticeWarning",
    "RealGPU",
    "practice_gpu",
    "run_script",
    "start",
    "stop",
]

_MODULES = ("interface", "script", "errors", "events", "gpu", "allocator")


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: the pytest plugin must not load PyTorch everywhere."""
    if name in __all__:
        import_module("torch")  # first: a practice GPU that comes with it needs our modules whole
        for each in _MODULES:
            module = import_module(f"{__name__}.{each}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
