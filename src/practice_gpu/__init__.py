"""A practice GPU: CUDA code runs without a GPU, really trains, and fails with CUDA's own messages.

Tensors stay ordinary CPU tensors. A ledger records which simulated device each storage is on. The practice
GPU intercepts every ATen operator, applies CUDA's same-device rules, and enters the results in the ledger;
the Python functions of PyTorch and ``torch.cuda`` answer accordingly. The modules:

======================================  ================================================================
``interface``, ``script``,              the ways in and out: ``practice_gpu``, ``start`` and ``stop``,
``command``, ``pytest_plugin``          ``run_script``, the command, the fixture and the option
``arrival``, ``startup``                how it starts in other processes: when they import PyTorch
``session``, ``requirements``           one practice GPU from beginning to end, and what it needs from PyTorch
``errors``, ``tracebacks``, ``sizes``   CUDA's texts, where a traceback ends, amounts of memory
``device``                              the devices: ``gpu`` is what its user may ask, ``ledger`` knows which
                                        storage is where, ``allocator`` the memory that it takes, ``events``
                                        is the log of copies and waits; ``streams``, ``generators``
``operators``                           every operator: where it runs (``dispatch``), which mixtures of
                                        devices CUDA refuses (``rules``), which types of numbers
                                        (``dtypes``), what varies from run to run (``determinism``), what
                                        is known about it (``facts``)
``surface``                             PyTorch's functions, methods and classes that name a device, from
                                        ``torch.cuda`` to ``torch.compile``
``graphs``                              CUDA graphs: PyTorch's ``objects`` for them, and what a ``recording``
                                        consists of
``processes``                           what several processes know and send one another: ``environment``,
                                        ``launch``, ``sharing``, ``process_groups``
``patching``                            how all this is installed and removed: ``patches``, late ``imports``,
                                        dispatch ``keys``; what is not simulated (``absent``)
======================================  ================================================================
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from practice_gpu.device.allocator import Memory
    from practice_gpu.device.events import Event
    from practice_gpu.device.gpu import PracticeGPU
    from practice_gpu.errors import PracticeError
    from practice_gpu.interface import PracticeWarning, RealGPU, practice_gpu, start, stop
    from practice_gpu.script import run_script

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

_MODULES = ("interface", "script", "errors", "device.events", "device.gpu", "device.allocator")


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, since the pytest plugin must not always load PyTorch."""
    if name in __all__:
        import_module("torch")  # first: a practice GPU that comes with it needs our modules whole
        for each in _MODULES:
            module = import_module(f"{__name__}.{each}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
