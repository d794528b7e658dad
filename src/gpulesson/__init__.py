"""The helpers that the gpulesson lessons import: small, readable, and usable outside them.

>>> import torch
>>> from gpulesson.device import choose_device
>>> device = choose_device()
>>> torch.ones(3, device=device).sum().item()
3.0
"""

from typing import Any

__version__ = "0.1.0"


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook that says ``%load_ext gpulesson`` the magic ``%%port``."""
    from gpulesson.porting.command import port_cell

    shell.register_magic_function(port_cell, "cell", "port")


def __getattr__(name: str) -> Any:
    # Looked up on first use: the practice GPU patches torch, so nobody should load it without asking for it.
    if name == "practice_gpu":
        from gpulesson.practice import practice_gpu

        return practice_gpu
    if name == "plan":
        from gpulesson.planning.plan import plan

        return plan
    if name == "check":
        from gpulesson.exercises import check

        return check
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
