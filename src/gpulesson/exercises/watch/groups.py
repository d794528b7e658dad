"""Watches whether a process joins others."""

from __future__ import annotations

import functools
from typing import Any

import torch

from gpulesson.exercises.trace import Site
from gpulesson.exercises.watch import frames
from gpulesson.practice.patches import Patches


class Groups:
    """The process group of a run."""

    def __init__(self) -> None:
        self.joined_at: Site | None = None
        """Where ``torch.distributed.init_process_group`` was called; None if nothing has called it."""

    def plan(self, patches: Patches) -> None:
        """Plan to see the call; nothing where PyTorch was built without ``torch.distributed``."""
        if not torch.distributed.is_available():
            return
        from torch.distributed import distributed_c10d

        for owner in (torch.distributed, distributed_c10d):
            patches.wrap(owner, "init_process_group", self._init)

    def _init(self, original: Any) -> Any:
        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            self.joined_at = frames.here()

        return init_process_group
