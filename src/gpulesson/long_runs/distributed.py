"""Train in several processes, one for each GPU: who is who, sums over all, the same batches, checkpoints.

``torchrun --nproc-per-node 4 train.py`` starts a script four times. Each process (a rank) has its own copy of
the model, ``DistributedDataParallel`` averages their gradients, and the functions here do what is left to do.
Started by ``python train.py``, the same script is a single process, and runs as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils.data import Sampler

from gpulesson._arguments import refuse, whole_number
from gpulesson.long_runs.autosave import AutoSave
from gpulesson.long_runs.ranks import DistributedError, Ranks, processes
from gpulesson.long_runs.shards import load_shards, save_shards

__all__ = [
    "DistributedError",
    "Part",
    "Parts",
    "RankAutoSave",
    "Ranks",
    "load_shards",
    "processes",
    "save_shards",
]

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Part:
    """A rank's part of a global batch.

    Attributes
    ----------
    size : int
        How many samples of the global batch are here, 0 or more.
    weight : float
        What their mean loss is multiplied by: size × ranks ÷ samples of the global batch.
    """

    size: int
    weight: float


class Parts(Sampler[list[int]]):
    """Cut the batches of one process into parts, one for each rank: a ``batch_sampler`` of a ``DataLoader``.

    However many ranks there are, the global batches are the same, in the same order, and each sample comes
    once. So a run of any number of ranks ends with the weights of one process, but for rounding.

    ``DistributedSampler`` does not give this: it repeats samples until each rank has as many, and parts of
    different sizes count alike, because ``DistributedDataParallel`` takes the mean of the ranks' gradients.
    Here the mean loss of a part is multiplied by the weight of its `Part`, and the mean of the gradients is
    the gradient of the global batch's mean loss. `RankAutoSave` shows the training loop.

    Parameters
    ----------
    samples : int
        How many the dataset has.
    batch_size : int
        Samples of a global batch, over all ranks: what the ``DataLoader`` of one process was given.
    ranks : Ranks
        From `processes`.
    shuffle : bool
        A new order each epoch, the one that ``DistributedSampler`` has for the same `seed` and epoch.
    seed : int
        The same on every rank. The global random numbers have no part in the order.
    drop_last : bool
        Leave out a last batch that is not full. With it, and a `batch_size` that the ranks divide, all
        weights are 1, as `gpulesson.training.fit` takes them to be.

    Notes
    -----
    A global batch with fewer samples than ranks leaves some ranks without any. They get its first sample, to
    compute something, with size 0 and weight 0: their gradient is zero. (Batch normalisation sees it; over
    the whole batch it needs ``nn.SyncBatchNorm``.)

    Examples
    --------
    >>> with processes() as ranks:
    ...     for rank in range(3):
    ...         parts = Parts(7, batch_size=5, ranks=Ranks(rank, rank, 3, ranks.device), shuffle=False)
    ...         print(list(parts), [part.weight for part in parts.parts])
    [[0], [5]] [0.6, 0.0]
    [[1, 2], [5]] [1.2, 1.5]
    [[3, 4], [6]] [1.2, 1.5]
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        ranks: Ranks,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.samples = whole_number("samples", samples, 1, "give len(dataset), 1 or more")
        self.global_batch_size = whole_number(
            "batch_size", batch_size, 1, "give the samples of a batch over all ranks, 1 or more"
        )
        if not isinstance(ranks, Ranks):
            refuse("ranks", ranks, "the Ranks of this run", "give what `with processes() as ranks:` gives")
        self.seed = whole_number("seed", seed, 0, "give a whole number, 0 or more")
        self.ranks, self.shuffle, self.drop_last = ranks, shuffle, drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch, counted from 0; without it, all epochs have the same."""
        self.epoch = whole_number("epoch", epoch, 0, "give the number of the epoch, counted from 0")

    def __len__(self) -> int:
        return len(self._cuts())

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(self.samples))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.samples, generator=generator).tolist()
        for start, end, first, last in self._cuts():
            yield order[start:end][first:last] or order[start : start + 1]

    @property
    def parts(self) -> list[Part]:
        """Size and weight of each batch of an epoch, on this rank."""
        return [
            Part(last - first, (last - first) * self.ranks.world_size / (end - start))
            for start, end, first, last in self._cuts()
        ]

    def weighted(self, loader: Iterable[Batch]) -> _WeightedBatches[Batch]:
        """Give each batch of the loader with its `Part`; `RankAutoSave.batches` takes the result, too."""
        return _WeightedBatches(loader, self)

    def _cuts(self) -> list[tuple[int, int, int, int]]:
        """Return where each global batch begins and ends, and this rank's part within it."""
        rank, world_size, found = self.ranks.rank, self.ranks.world_size, []
        for start in range(0, self.samples, self.global_batch_size):
            size = min(self.global_batch_size, self.samples - start)
            if size == self.global_batch_size or not self.drop_last:
                bounds = size * rank // world_size, size * (rank + 1) // world_size
                found.append((start, start + size, *bounds))
        return found


class _WeightedBatches(Iterable[tuple[Batch, Part]]):
    """A loader's batches, each with its part; what else is asked of it, the loader answers."""

    def __init__(self, loader: Iterable[Batch], parts: Parts) -> None:
        self._loader, self._parts = loader, parts

    def __iter__(self) -> Iterator[tuple[Batch, Part]]:
        return zip(self._loader, self._parts.parts, strict=True)

    def __len__(self) -> int:
        return len(self._parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class RankAutoSave(AutoSave):
    """`AutoSave` for a run of several ranks: rank 0 saves, and all go on from one file.

    Use it as `AutoSave`, on every rank. Rank 0 finds the checkpoint to go on from and tells the others, which
    read it themselves: with several machines, `folder` has to be on a disk that they share. A signal that
    reaches any rank stops all of them at the same step, with one checkpoint.

    Parameters
    ----------
    folder : path
        As in `AutoSave`.
    ranks : Ranks
        From `processes`.
    **options
        As in `AutoSave`, but for ``background``. Of ``extra``, the values of rank 0 are saved: give sums over
        ranks.

    Notes
    -----
    Exact with the same number of ranks, as `AutoSave` is: the random states of every rank are in the file.
    With another number, model, optimizer, epoch, place in the epoch and, with `Parts`, the batches are the
    same; ranks that the saved run did not have draw random numbers of their own, so that dropout and random
    transforms differ.

    Each step asks all ranks, by the CPU, whether one of them was told to stop: 0.3 ms with two ranks on two
    busy cores.

    Examples
    --------
    >>> import tempfile
    >>> from torch import nn
    >>> from torch.utils.data import DataLoader
    >>> def run(epochs, folder=tempfile.mkdtemp()):
    ...     with processes() as ranks:
    ...         model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1).to(ranks.device))
    ...         optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...         parts = Parts(8, batch_size=4, ranks=ranks)
    ...         loader = DataLoader(torch.ones(8, 2), batch_sampler=parts)
    ...         with RankAutoSave(folder, ranks=ranks, model=model, optimizer=optimizer) as saves:
    ...             for epoch in saves.epochs(epochs):
    ...                 parts.set_epoch(epoch)
    ...                 for inputs, part in saves.batches(parts.weighted(loader)):
    ...                     loss = model(inputs.to(ranks.device)).square().mean()
    ...                     optimizer.zero_grad()
    ...                     (loss * part.weight).backward()
    ...                     optimizer.step()
    ...                     saves.step()
    ...                 print("finished epoch", epoch)
    >>> run(epochs=1)
    finished epoch 0
    >>> run(epochs=2)
    finished epoch 1
    """

    def __init__(self, folder: str | os.PathLike[str], *, ranks: Ranks, **options: Any) -> None:
        super().__init__(folder, **options)
        if not isinstance(ranks, Ranks):
            refuse("ranks", ranks, "the Ranks of this run", "give what `with processes() as ranks:` gives")
        if self.background and ranks.world_size > 1:
            raise ValueError("background=True with several ranks, which wait for each save: leave it out")
        self.ranks = ranks
