"""The helpers that the gpulesson lessons import: small, readable, and usable outside them.

>>> import torch
>>> from gpulesson.device import choose_device
>>> device = choose_device()
>>> torch.ones(3, device=device).sum().item()
3.0

``practice_gpu``, ``practice``, ``plan`` and ``check`` come from the packages beside this one, on first use.
"""

from pkgutil import resolve_name
from typing import Any

__version__ = "0.1.0"

# On first use: the practice GPU patches torch, so nobody should load it without asking for it.
_ELSEWHERE = {
    "practice": "practice_gpu",
    "practice_gpu": "practice_gpu:practice_gpu",
    "plan": "gpulesson_tools.planning.plan:plan",
    "check": "gpulesson_tools.exercises:check",
}


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook that says ``%load_ext gpulesson`` the magics ``%%port`` and ``%%film``."""
    for name, function in (("port", "command:port_cell"), ("film", "film:film_cell")):
        shell.register_magic_function(resolve_name(f"gpulesson_tools.porting.{function}"), "cell", name)


def __getattr__(name: str) -> Any:
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve_name(_ELSEWHERE[name])
