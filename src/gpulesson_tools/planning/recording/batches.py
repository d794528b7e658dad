"""The loaders of a program: which batch size feeds its steps, and how to give it another."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from torch.utils.data import BatchSampler, DataLoader, dataloader

from gpulesson.data import Batches
from gpulesson_tools.planning.recording.dry import tensors_in


@contextmanager
def sizes_told(tell: Callable[[int | None, int | None], None]) -> Iterator[None]:
    """While it is open, `tell` gets the batch size of each loader that hands out a batch, and the batch's."""
    draw, cut = dataloader._BaseDataLoaderIter.__next__, Batches.__iter__

    def drawing(iterator: Any) -> Any:
        batch = draw(iterator)
        tell(getattr(iterator._index_sampler, "batch_size", None), _samples(batch))
        return batch

    def cutting(batches: Batches) -> Iterator[Any]:
        for batch in cut(batches):
            tell(batches.batch_size, _samples(batch))
            yield batch

    with (
        mock.patch.object(dataloader._BaseDataLoaderIter, "__next__", drawing),
        mock.patch.object(Batches, "__iter__", cutting),
    ):
        yield


def _samples(batch: Any) -> int | None:
    """Return the length of a batch's first tensor."""
    return next((len(each) for each in tensors_in(batch) if each.dim()), None)


@contextmanager
def sizes_changed(before: int, after: int) -> Iterator[None]:
    """
    While it is open, loaders that are to have one batch size get another.

    Those are ``DataLoader``, ``BatchSampler`` and :class:`gpulesson.data.Batches`.

    Parameters
    ----------
    before, after : int
        Samples in a batch. Loaders of other sizes are left alone.
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
