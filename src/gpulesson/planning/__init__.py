"""
Will it fit, and how fast can it be: answered on the practice GPU, before there is a real one.

A few steps of a program run as they are, and are written down. Everything else is worked out from that
record. The modules:

===============  ============================================================================================
``plan``         the question; ``command`` asks it on a command line
``answer``       the answer: in words, as numbers, as a picture (``picture``)
``record``       what is written down: allocations, operators, waits
``recorder``     how it is written down, while the program runs on the practice GPU
``programs``     a program in a process of its own (``child``), a function in this one
``batches``      the loaders of a program: which batch size feeds its steps, how to give it another
``dry``          shapes only, for what is too large to be computed here
``cuda_rules``   what CUDA's operators keep otherwise than the CPU's
``kinds``        what each allocation is for
``peak``         the moment of most memory, and what is there then
``caching``      PyTorch's caching allocator, simulated
``fitting``      what it makes of a record; whether that fits on a GPU
``scaling``      any batch, from the records of two
``cost``         arithmetic, bytes and launches of one operator
``gpus``         what GPUs can do at most, from ``gpus.csv``
``floor``        the least time of a step on one of them
``ranks``        memory and least time of a step on several
``links``        what joins GPUs, from ``links.csv``
===============  ============================================================================================
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulesson.planning.answer import Plan
    from gpulesson.planning.programs import ProgramFailed

__all__ = ["Plan", "ProgramFailed"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: PyTorch and the practice GPU come with it."""
    if name == "ProgramFailed":
        from gpulesson.planning.programs import ProgramFailed

        return ProgramFailed
    if name == "Plan":
        from gpulesson.planning.answer import Plan

        return Plan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
