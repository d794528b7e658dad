"""Will it fit, and how fast can it be: answered on the practice GPU, before there is a real one.

A few steps of a program run as they are, and are written down. All else is worked out from that record.

=============  ==========================================================================================
``plan``       the question; ``command`` asks it on a command line
``answer``     the answer: in words, as numbers, as a picture
``recording``  what is written down (``record``), by whom (``recorder``), in which process (``recorded``);
               the loaders of a program (``batches``); shapes only, for what is too large (``dry``); what
               CUDA's operators keep otherwise than the CPU's (``cuda_rules``); what each allocation is for
               (``kinds``), and what each operator costs (``cost``)
``memory``     PyTorch's caching allocator (``caching``); whether a record fits on a GPU (``fitting``), with
               any batch (``any_batch``); the moment of most memory (``peak``), and a ``picture``
``speed``      the least time of a step on one GPU (``floor``), memory and least time on several
               (``several_gpus``)
``hardware``   what GPUs can do at most (``gpus``), and what joins them (``links``), each with its table
=============  ==========================================================================================
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulesson_tools.planning.recording.recorded import ProgramFailed

__all__ = ["ProgramFailed"]


def __getattr__(name: str) -> Any:
    """Import it when it is asked for: PyTorch and the practice GPU come with it."""
    if name == "ProgramFailed":
        from gpulesson_tools.planning.recording.recorded import ProgramFailed

        return ProgramFailed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
