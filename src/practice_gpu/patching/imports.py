"""Modules of PyTorch that are imported late must not see, and keep, what the practice GPU has replaced.

The first optimizer imports the compiler, for instance, which copies ``torch.cuda.Event`` and many others into
its tables; torchvision imports functions by name. So while such a module is executed, the replacements are
undone.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class UnpatchedImports(MetaPathFinder):
    """Finds these modules as Python does, and executes them inside ``suspended()``."""

    def __init__(self, suspended: Callable[[], AbstractContextManager[None]]) -> None:
        self._suspended = suspended

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module of PyTorch or torchvision; None for any other."""
        if not f"{fullname}.".startswith(("torch.", "torchvision.")):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            with self._suspended():
                execute(module)

        loader.exec_module = exec_module
