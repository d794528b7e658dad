"""Give the loaders of a program another batch size."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from torch.utils.data import BatchSampler, DataLoader

from gpulesson.data import Batches


@contextmanager
def sizes_changed(before: int, after: int) -> Iterator[None]:
    """While it is open, give loaders that would have the batch size `before` the size `after`.

    Those are ``DataLoader``, ``BatchSampler`` and :class:`gpulesson.data.Batches`.
    """
    with ExitStack() as undo:
        for loader in (DataLoader, BatchSampler, Batches):
            changed = _with_size(loader.__init__, before, after)
            undo.enter_context(mock.patch.object(loader, "__init__", changed))
        yield


def _with_size(make: Callable[..., None], before: int, after: int) -> Callable[..., None]:
    signature = inspect.signature(make)

    @functools.wraps(make)
    def changed(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        own_sampler = given.arguments.get("batch_sampler") is not None
        given_size = given.arguments.get("batch_size", signature.parameters["batch_size"].default)
        if given_size == before and not own_sampler:
            given.arguments["batch_size"] = after
        make(*given.args, **given.kwargs)

    return changed
