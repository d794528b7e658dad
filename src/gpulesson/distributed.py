"""Train in several processes, one for each GPU: who is who, sums over all, the same batches, checkpoints.

``torchrun --nproc-per-node 4 train.py`` starts a script four times. Each process (a rank) has its own copy of
the model, ``DistributedDataParallel`` averages their gradients, and the functions here do what is left to do.
Started by ``python train.py``, the same script is a single process, and runs as well.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist
from filelock import FileLock
from torch import Tensor, nn
from torch.utils.data import Sampler

from gpulesson import checkpoint
from gpulesson._arguments import described, refuse, whole_number
from gpulesson._files import open_file, printable, whole_file
from gpulesson.autosave import AutoSave
from gpulesson.checkpoint import Checkpoint, CheckpointError
from gpulesson.device import choose_device
from gpulesson.evaluation import Evaluation

_store: Any = dist  # mypy does not find its stores
Result = TypeVar("Result")
Batch = TypeVar("Batch")

DEFAULT_TIMEOUT = 600.0
_NAMES = "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
_TORCHRUN = "`torchrun --nproc-per-node 2 script.py` sets all five"
_DIGESTS = "digests.sha256"


class DistributedError(RuntimeError):
    """The processes cannot come together; the message says what was found, and what to do."""


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, seen from one of them; `processes` gives it.

    Attributes
    ----------
    rank : int
        Number of this process among all, from 0.
    local_rank : int
        Its number among those of this machine, which is that of its GPU.
    world_size : int
        How many processes there are.
    device : torch.device
        Where this one computes.

    Notes
    -----
    `sum`, `join` and `on_main` are collective: every rank has to call them, in the same order. If one does
    not, the others wait for it until the timeout.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one that prints and saves."""
        return self.rank == 0

    def sum(self, value: Any) -> Any:
        """Return the sum of a number or a tensor over all ranks, on every rank.

        A mean over all data is a sum divided by a sum: ranks have different numbers of samples, so that the
        mean of their means would be another number.

        Parameters
        ----------
        value : int, float or Tensor
            A number on every rank, or a tensor of the same dtype and shape. Numbers are added without
            rounding in between; one float makes the sum a float.

        Returns
        -------
        int, float or Tensor
            A tensor is a new one, and has no gradient. In a single process, the value itself.

        Raises
        ------
        TypeError
            `value` is no number and no tensor.
        ValueError
            The ranks gave values that do not fit together; the message tells what each gave.

        Examples
        --------
        >>> with processes() as ranks:
        ...     loss, samples = ranks.sum(46.5), ranks.sum(100)
        >>> loss / samples
        0.465
        """
        if not isinstance(value, Tensor | int | float):
            refuse("value", value, "a number or a tensor", "give a loss times its samples, or a count")
        if self.world_size == 1:
            return value
        tensor = isinstance(value, Tensor)
        given = self._gather(f"{described(value)} on the {value.device.type}" if tensor else value)
        if not any(isinstance(each, str) for each in given):
            return math.fsum(given) if any(isinstance(each, float) for each in given) else sum(given)
        if len(set(given)) > 1:
            found = ", ".join(f"rank {rank}: {each}" for rank, each in enumerate(given))
            raise ValueError(
                f"sum was given different things ({found}), expected numbers, or tensors of the same dtype "
                "and shape on every rank: add up what differs in length first, as value.sum()"
            )
        total = value.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    def join(self, evaluation: Evaluation) -> Evaluation:
        """Return what `gpulesson.evaluation.evaluate` would have found on the data of all ranks together.

        Give each rank its own part of the data, without repetition, as
        ``Subset(dataset, range(ranks.rank, len(dataset), ranks.world_size))``; every part needs a sample.

        Examples
        --------
        >>> with processes() as ranks:
        ...     print(ranks.join(Evaluation(0.5, None, None, 8)))
        loss 0.5000 on 8 samples
        """
        if not isinstance(evaluation, Evaluation):
            refuse("evaluation", evaluation, "an Evaluation", "give what evaluate(…) returned")
        samples = self.sum(evaluation.samples)
        loss = self.sum(evaluation.loss * evaluation.samples) / samples
        if evaluation.confusion is None:
            return Evaluation(loss, evaluation.accuracy, None, samples)
        confusion = self.sum(evaluation.confusion)
        counted = int(confusion.sum())
        accuracy = int(confusion.trace()) / counted if counted else math.nan
        return Evaluation(loss, accuracy, confusion, samples)

    def on_main(self, function: Callable[[], Result]) -> Result:
        """Call a function on rank 0 alone, and return its result on every rank; the others wait.

        Parameters
        ----------
        function : callable
            Without arguments. Its result is pickled to be sent, so return nothing large; for data that rank
            0 alone shall download, or a checkpoint that it shall write, a path.

        Raises
        ------
        Exception
            What `function` raised, on every rank, so that none waits for another that has failed.

        Examples
        --------
        Save on rank 0, and resume all ranks from the one file that rank 0 has found:

        >>> import tempfile
        >>> from gpulesson.checkpoint import latest, load_checkpoint, resume, save_checkpoint
        >>> model, folder = nn.Linear(2, 1), Path(tempfile.mkdtemp())
        >>> with processes() as ranks:
        ...     _ = ranks.on_main(lambda: save_checkpoint(folder / "1.pt", model=model, epoch=1))
        ...     path = ranks.on_main(lambda: latest(folder))
        >>> resume(load_checkpoint(path), model=model)
        1
        """
        if self.world_size == 1:
            return function()
        answer: list[Any] = [None]
        if self.is_main:
            try:
                answer = [pickle.dumps(result := function())]
            except Exception as error:
                dist.broadcast_object_list([_as_sent(error)], src=0)
                raise
        dist.broadcast_object_list(answer, src=0)
        if self.is_main:
            return result
        if isinstance(answer[0], Exception):
            raise answer[0]
        return pickle.loads(answer[0])  # type: ignore[no-any-return]

    def _gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def _as_sent(error: Exception) -> Exception:
    """Return the error as other processes get it; not every error can be pickled."""
    try:
        return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return]
    except Exception:
        return DistributedError(f"rank 0: {type(error).__name__}: {error}")


@contextmanager
def processes(*, timeout: float = DEFAULT_TIMEOUT) -> Iterator[Ranks]:
    """Join the processes that torchrun started; without torchrun, be a single one.

    The environment says which: ``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``,
    as torchrun sets them. Where there are GPUs, each process takes the one with the number of its
    ``LOCAL_RANK``, and the processes speak by NCCL; elsewhere by Gloo, on the CPU. (``GPULESSON_DEVICE=cpu``
    leaves GPUs alone; of a device that it names, several processes take the kind only.) Tensors on the CPU
    may be sent in any case. At the end, also after an error, the process group is destroyed.

    Parameters
    ----------
    timeout : float
        Seconds: how long to wait for the other processes, at the start and in every collective. Longer than
        rank 0 needs for what the others wait for, such as a download or a checkpoint.

    Yields
    ------
    Ranks

    Raises
    ------
    DistributedError
        The environment is incomplete or contradicts itself, this machine has fewer GPUs than processes, the
        port is in use, or not all processes came within the timeout; the message names those missing.
    DeviceError
        ``GPULESSON_DEVICE`` names a device that is not there.

    Notes
    -----
    Under torchrun, a process whose launcher is gone sends itself SIGTERM: nobody else would end it.

    With ``--max-restarts``, torchrun 2.15 starts all processes again beside the store of those that died, in
    which a new process would find the address of a dead one, and wait for it. Therefore rank 0 first agrees
    with each of the others on a name for this attempt, under which nothing is stored yet. (A count of the
    restarts is no such name: each machine has its own.)

    References
    ----------
    PyTorch, "torchrun (Elastic Launch)", https://docs.pytorch.org/docs/stable/elastic/run.html

    Examples
    --------
    >>> with processes() as ranks:
    ...     model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1).to(ranks.device))
    ...     if ranks.is_main:
    ...         print("ranks:", ranks.world_size)
    ranks: 1
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 1e9:
        raise ValueError(f"timeout={timeout!r}: give a number of seconds, more than 0")
    if not dist.is_available():
        raise DistributedError(
            f"this torch ({torch.__version__}) is built without torch.distributed: install one that has it, "
            "as those of pytorch.org for Linux, macOS and Windows do"
        )
    if dist.is_initialized():
        raise DistributedError(
            "this process has a process group already, expected none: leave out init_process_group, which "
            "processes() calls, and end one `with processes()` before the next"
        )
    place = _place()
    device = _own_device(place)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    limit = timedelta(seconds=timeout)
    store = _store.HashStore() if place is None else _common_store(place, timeout)
    place = place or _Place(0, 0, 1, "", 0)
    try:
        dist.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.world_size, timeout=limit
        )
    except Exception as error:
        raise DistributedError(
            f"rank {place.rank} of {place.world_size} found the others, but could not connect to all of them "
            f"within {timeout:g} s: {printable(error)}. See what the other ranks say; with several network "
            "interfaces, name the right one in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
        ) from error
    if "TORCHELASTIC_RUN_ID" in os.environ and os.name == "posix":
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        yield Ranks(place.rank, place.local_rank, place.world_size, device)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class _Place(NamedTuple):
    """What the environment says of this process."""

    rank: int
    local_rank: int
    world_size: int
    address: str
    port: int


def _place() -> _Place | None:
    """Read the environment that torchrun sets; None where there is none of it."""
    found = {name: os.environ[name] for name in _NAMES if os.environ.get(name)}
    if not found.keys() & {"RANK", "LOCAL_RANK", "WORLD_SIZE"}:
        return None
    said = " ".join(f"{name}={printable(value, 100)}" for name, value in found.items())
    if missing := [name for name in _NAMES if name not in found]:
        raise DistributedError(
            f"the environment has {said}, but no {', '.join(missing)}: {_TORCHRUN}; for a single process, "
            f"unset {', '.join(found)}"
        )

    def wrong(expected: str) -> NoReturn:
        raise DistributedError(f"the environment has {said}, expected {expected}: {_TORCHRUN}")

    try:
        rank, local_rank, world_size, port = (
            int(found[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")
        )
    except ValueError:
        wrong("whole numbers in all but MASTER_ADDR")
    if not 0 <= local_rank <= rank < world_size:
        wrong("0 ≤ LOCAL_RANK ≤ RANK < WORLD_SIZE")
    if not 0 < port < 2**16:
        wrong("a port from 1 to 65535")
    return _Place(rank, local_rank, world_size, found["MASTER_ADDR"], port)


def _own_device(place: _Place | None) -> torch.device:
    device = choose_device()
    if place is None:
        return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
    if device.type != "cuda":
        return torch.device("cpu")
    if place.local_rank >= (count := torch.cuda.device_count()):
        raise DistributedError(
            f"LOCAL_RANK is {place.local_rank}, and this machine shows {count} GPU{'s' * (count > 1)}, "
            f"expected one for each process: start {count} of them, --nproc-per-node {count}, or see whether "
            f"CUDA_VISIBLE_DEVICES ({os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}) hides some; "
            "GPULESSON_DEVICE=cpu goes on without GPUs"
        )
    return torch.device("cuda", place.local_rank)


def _common_store(place: _Place, timeout: float) -> Any:
    """Return a store that the ranks of this attempt share, in which nothing is stored yet."""
    where = f"{printable(place.address)}:{place.port}"
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun itself
    until = time.monotonic() + timeout
    try:
        store = _store.TCPStore(
            place.address,
            place.port,
            place.world_size,
            is_master=place.rank == 0 and not served,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
        )
        return _store.PrefixStore(_attempt(store, place, until), store)
    except dist.DistError as error:
        if "EADDRINUSE" in str(error):
            raise DistributedError(
                f"rank 0 cannot listen on {where}, for the port is in use, by another run or by a second "
                "rank 0, expected a free one: take another, `torchrun --master-port 29501` (or MASTER_PORT), "
                "or let `torchrun --standalone` find one"
            ) from error
        raise DistributedError(
            f"rank {place.rank} of {place.world_size} got no answer from rank 0 at {where} within "
            f"{timeout:g} s: see whether that process runs, and whether MASTER_ADDR and MASTER_PORT are the "
            f"same everywhere. ({printable(error, 200)})"
        ) from error


def _attempt(store: Any, place: _Place, until: float) -> str:
    """Agree on a name that no attempt had before; keys of those that died may still be in the store.

    Each rank calls itself by a new name. A call is answered under that name, so that no answer can be old,
    and rank 0 goes on answering until every rank has used the name that it was given.
    """
    mine = uuid.uuid4().hex
    if place.rank:
        store.set(f"rank {place.rank}", mine)
        name: str = store.get(f"answer to {mine}").decode()
        store.set(f"{name} has rank {place.rank}", "")
        return name
    while missing := [
        rank for rank in range(1, place.world_size) if not store.check([f"{mine} has rank {rank}"])
    ]:
        for rank in missing:
            if store.check([f"rank {rank}"]):
                store.set(f"answer to {store.get(f'rank {rank}').decode()}", mine)
        if time.monotonic() > until:
            some = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            raise DistributedError(
                f"{place.world_size - len(missing)} of {place.world_size} ranks came in time, and rank 0 "
                f"waits for rank {some}: see whether they run and what they say, whether WORLD_SIZE="
                f"{place.world_size} is right, and give processes(timeout=…) more seconds if they are slow"
            )
        time.sleep(0.01)
    return mine


def _end_with(launcher: int) -> None:
    """End this process once the launcher is gone, as after SIGKILL: an `AutoSave` saves before."""
    while os.getppid() == launcher:
        time.sleep(0.5)
    print("torchrun is gone, and this process ends, too", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


class Part(NamedTuple):
    """A rank's part of a global batch: how many samples, and what to multiply their mean loss by."""

    size: int
    weight: float


class Parts(Sampler[list[int]]):
    """Cut the batches of one process into parts, one for each rank: a ``batch_sampler`` of a ``DataLoader``.

    However many ranks there are, the global batches are the same, in the same order, and each sample comes
    once. So a run of any number of ranks ends with the weights of one process, but for rounding.

    ``DistributedSampler`` alone does not give this. It repeats samples until each rank has as many, and it
    cuts the data into batches a rank: the last batch then counts repeated samples, or parts that differ in
    size as if they were equal, because ``DistributedDataParallel`` takes the mean of the ranks' gradients.
    Here the mean loss of a part is multiplied by its `weight`, its size × ranks ÷ samples of the global
    batch, and the mean of the gradients is the gradient of the global batch's mean loss.

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
        weights are 1.

    Notes
    -----
    A global batch with fewer samples than ranks leaves some ranks without any. They get its first sample, to
    compute something, with size 0 and weight 0: their gradient is zero. (Batch normalisation sees it.)
    Batch normalisation over the whole batch needs ``nn.SyncBatchNorm``; without it, a rank sees its part.

    Examples
    --------
    >>> with processes() as ranks:
    ...     for rank in range(3):
    ...         parts = Parts(7, batch_size=5, ranks=replace(ranks, rank=rank, world_size=3), shuffle=False)
    ...         print(list(parts), [part.weight for part in parts.parts])
    [[0], [5]] [0.6, 0.0]
    [[1, 2], [5]] [1.2, 1.5]
    [[3, 4], [6]] [1.2, 1.5]

    A training loop:

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> data = TensorDataset(torch.ones(7, 2), torch.ones(7, 1))
    >>> with processes() as ranks:
    ...     model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1).to(ranks.device))
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     parts = Parts(len(data), batch_size=4, ranks=ranks, seed=1)
    ...     loader = DataLoader(data, batch_sampler=parts)
    ...     for epoch in range(2):
    ...         parts.set_epoch(epoch)
    ...         total = 0.0
    ...         for (inputs, targets), part in parts.weighted(loader):
    ...             loss = nn.functional.mse_loss(model(inputs.to(ranks.device)), targets.to(ranks.device))
    ...             optimizer.zero_grad()
    ...             (loss * part.weight).backward()
    ...             optimizer.step()
    ...             total += loss.item() * part.size
    ...         mean = ranks.sum(total) / len(data)
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
        return len(self._ends())

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(self.samples))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.samples, generator=generator).tolist()
        start = 0
        for end in self._ends():
            batch, start = order[start:end], end
            first, last = self._bounds(len(batch))
            yield batch[first:last] or batch[:1]

    @property
    def parts(self) -> list[Part]:
        """Size and weight of each batch of an epoch, on this rank."""
        parts, start = [], 0
        for end in self._ends():
            whole, start = end - start, end
            first, last = self._bounds(whole)
            parts.append(Part(last - first, (last - first) * self.ranks.world_size / whole))
        return parts

    def weighted(self, loader: Iterable[Batch]) -> _Weighted[Batch]:
        """Give each batch of the loader with its `Part`; `RankAutoSave.batches` takes the result, too."""
        return _Weighted(loader, self)

    def _ends(self) -> list[int]:
        ends = list(range(self.global_batch_size, self.samples + 1, self.global_batch_size))
        if not self.drop_last and self.samples % self.global_batch_size:
            ends.append(self.samples)
        return ends

    def _bounds(self, whole: int) -> tuple[int, int]:
        rank, world_size = self.ranks.rank, self.ranks.world_size
        return whole * rank // world_size, whole * (rank + 1) // world_size


class _Weighted(Iterable[tuple[Batch, Part]]):
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
    """`gpulesson.autosave.AutoSave` for a run of several ranks: rank 0 saves, and all go on from one file.

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

    Each step asks all ranks whether one of them was told to stop, by the CPU: about a tenth of a millisecond
    on one machine.

    Examples
    --------
    >>> import tempfile
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
        self._overdue = self._others_cut_off = 0

    def _acquire(self) -> FileLock:
        lock = self._new_lock()

        def acquire() -> None:
            nonlocal lock
            lock = super(RankAutoSave, self)._acquire()

        self.ranks.on_main(acquire)
        return lock

    def _latest(self) -> Path | None:
        return self.ranks.on_main(super()._latest)

    def _load(self, path: Path) -> Checkpoint:
        """Load a checkpoint with the random states of this rank."""
        found = super()._load(path)
        extra = found.extra if isinstance(found.extra, dict) else {}
        states = extra.pop("ranks", None)
        if states is None:
            states = [] if self.ranks.is_main else [None]  # one process saved it: rank 0 has its states
        if self.ranks.rank < len(states) and isinstance(states[self.ranks.rank], Tensor):
            return replace(found, **_unpacked(states[self.ranks.rank]))
        if not self.ranks.is_main:
            found = replace(found, rng=_other_random_states(found.rng, self.ranks.rank))
            if isinstance(found.position, dict) and isinstance(found.position.get("begun"), dict):
                found.position["begun"]["rng"] = found.rng
        return found

    def _complete(self, content: dict[str, Any]) -> None:
        if self.ranks.world_size > 1:
            own = {name: content[name] for name in ("rng", "position")}
            content["extra"]["ranks"] = [*map(_as_tensor, self.ranks._gather(_packed(own)))]

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        self.ranks.on_main(lambda: super(RankAutoSave, self)._write(path, content))
        self.path = path

    def _tell(self, message: str) -> None:
        if self.ranks.is_main:
            super()._tell(message)

    def _asked(self) -> bool:
        if self.ranks.world_size == 1:
            return super()._asked()
        return self._agree() is not None

    def _cut_off(self) -> NoReturn:
        if self.ranks.world_size > 1:
            self._agree(cut_off=True)
        super()._cut_off()

    def _next(self, batches: Iterator[Any], workers: bool) -> Any:
        batch = super()._next(batches, workers)
        if workers and self.ranks.world_size > 1:  # those of another rank may have ended
            self._agree()
            if self._others_cut_off:
                self._stop()
        return batch

    def _agree(self, *, cut_off: bool = False) -> int | None:
        """Tell all ranks what each has seen; return the number of a signal that came to any."""
        late = self.ranks.is_main and super()._late()  # by one clock
        flags = torch.tensor([self._signal or 0, int(late), int(cut_off)])
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        number, self._overdue, self._others_cut_off = flags.tolist()
        self._signal = number or self._signal  # which may have come just now
        return number or None

    def _late(self) -> bool:
        return bool(self._overdue) if self.ranks.world_size > 1 else super()._late()


def _packed(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _as_tensor(content: bytes) -> Tensor:
    """Put bytes into a tensor: as lists of numbers they would be too many values for a checkpoint."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _unpacked(packed: Tensor) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(
        io.BytesIO(packed.numpy().tobytes()), map_location="cpu", weights_only=True
    )
    return state


def _other_random_states(rng: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return random states that follow from those of rank 0, and are others."""
    before = checkpoint._rng_state()
    try:
        checkpoint._set_rng_state(rng)
        seed = int(torch.randint(2**31, ())) + rank
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed)
        return checkpoint._rng_state()
    finally:
        checkpoint._set_rng_state(before)


def save_shards(
    folder: str | os.PathLike[str],
    ranks: Ranks,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    extra: Any = None,
) -> Path:
    """Save a model that is spread over the ranks (FSDP2, ``fully_shard``): each rank writes what it holds.

    The files are those of ``torch.distributed.checkpoint``, beside ``run.pt`` with `extra`. A list of their
    SHA-256 is written last, as ``digests.sha256``: a folder without it is of a save that was not finished,
    and is not loaded. ``sha256sum -c digests.sha256`` verifies it without Python. Of what all ranks hold
    alike, as with ``DistributedDataParallel``, one copy is written.

    Parameters
    ----------
    folder : path
        New for each save, as ``shards/step-001000``; with several machines, on a disk that they share. What
        an unfinished save left in it is replaced.
    ranks : Ranks
        From `processes`; every rank has to call this.
    model, optimizer
        Their state is saved by the names of the parameters, so that another number of ranks can load it.
    extra : object, optional
        Tensors and plain values of rank 0 that the run needs besides: ``{"epoch": 3}``, a scheduler's state.

    Returns
    -------
    Path
        The `folder`.

    Raises
    ------
    CheckpointError
        On every rank: the folder holds a finished save or other files, or one rank could not write.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "step-000100"
    >>> with processes() as ranks:
    ...     model = nn.Linear(2, 1)
    ...     _ = save_shards(folder, ranks, model=model, extra={"epoch": 3})
    ...     load_shards(folder, ranks, model=model)
    {'epoch': 3}
    """
    folder = Path(folder)
    ranks.on_main(lambda: _make_room(folder))
    with _as_checkpoint_error(f"{printable(folder)} was not written"):
        _shards().save(_state(model, optimizer), checkpoint_id=folder)
    own = ranks._gather(_reported(lambda: _digests_of(folder.glob(f"__{ranks.rank}_*.distcp"))))
    _raise_first(own)

    def seal() -> None:
        with _as_checkpoint_error(f"{printable(folder)} was not written"):
            with whole_file(folder / "run.pt") as file:
                torch.save({"extra": extra}, file)
                file.seek(0)
                torch.load(file, weights_only=True)
            digests = _digests_of([folder / ".metadata", folder / "run.pt"])
            for each in own:
                digests |= each
            with whole_file(folder / _DIGESTS) as file:
                file.writelines(f"{digest}  {name}\n".encode() for name, digest in sorted(digests.items()))

    ranks.on_main(seal)
    return folder


def load_shards(
    folder: str | os.PathLike[str],
    ranks: Ranks,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
) -> Any:
    """Load what `save_shards` wrote, with any number of ranks, after verifying every byte of it.

    Parameters
    ----------
    folder, ranks, model, optimizer
        As in `save_shards`. Each rank reads what it needs; together they verify the digests of all files.

    Returns
    -------
    object
        The `extra` that was saved.

    Raises
    ------
    CheckpointError
        On every rank: a file is missing, damaged or one too many, the save was not finished, or model or
        optimizer have other names or shapes. Then nothing has been changed.

    Notes
    -----
    The digests find accidents. They are no signature: torch reads its own ``.metadata`` by ``pickle``, which
    can run code, so load only what you or your run wrote.
    """
    folder = Path(folder)
    _raise_first(ranks._gather(_reported(lambda: _verify(folder, ranks))))
    state = _state(model, optimizer)
    dcp = _shards()
    with _as_checkpoint_error(f"{printable(folder)} was not loaded"):
        saved = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        unused = [name for name in saved if name not in _names(state)]
        if unused:
            raise CheckpointError(
                f"{printable(folder)} does not fit; nothing was loaded: it holds "
                f"{printable(', '.join(unused[:6]))}, which the model and optimizer given have not. Give "
                "those that were saved"
            )
        dcp.load(state, checkpoint_id=folder)
        _set_state(model, optimizer, state)
        with open_file(folder / "run.pt") as file:
            return torch.load(file, weights_only=True)["extra"]


def _shards() -> Any:
    import torch.distributed.checkpoint as dcp  # takes a second

    return dcp


def _state(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    if optimizer is not None:
        state["optimizer"] = get_optimizer_state_dict(model, optimizer)
    return state


def _set_state(model: nn.Module, optimizer: torch.optim.Optimizer | None, state: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    set_model_state_dict(model, state["model"])
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, state["optimizer"])


def _names(state: dict[str, Any]) -> set[str]:
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    return set(flatten_state_dict(state)[0])


def _make_room(folder: Path) -> None:
    """Make the folder, without what an unfinished save has left in it."""
    with _as_checkpoint_error(f"{printable(folder)} was not written"):
        folder.mkdir(parents=True, exist_ok=True)
        there = list(folder.iterdir())
        ours = [each for each in there if each.suffix == ".distcp" or each.name.startswith(".")]
        if any(each.name == _DIGESTS for each in there) or set(there) - {*ours, folder / "run.pt"}:
            names = ", ".join(sorted(printable(each.name) for each in there)[:6])
            raise CheckpointError(
                f"{printable(folder)} was not written: it holds {names} already, expected a new folder: give "
                "each save its own, as shards/step-001000"
            )
        for each in there:
            each.unlink()


def _digests_of(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files, by name."""
    digests = {}
    for path in files:
        with open_file(path) as file:
            digests[path.name] = checkpoint._sha256(file, path.stat().st_size).decode()
    return digests


def _verify(folder: Path, ranks: Ranks) -> None:
    """Compare the names of all files, and the digests of this rank's share of them."""
    where = printable(folder)
    try:
        lines = (folder / _DIGESTS).read_text("utf-8").splitlines()
        listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    except FileNotFoundError:
        what = "this save was not finished" if folder.is_dir() else "there is no such folder"
        raise CheckpointError(f"{where} has no {_DIGESTS}: {what}. Take an earlier one that has it") from None
    there = {path.name for path in folder.iterdir()} - {_DIGESTS}
    for names, what in ((listed.keys() - there, "lacks"), (there - listed.keys(), "holds also")):
        if names:
            raise CheckpointError(
                f"{where} {what} {printable(', '.join(sorted(names)[:6]))}, expected the {len(listed)} files "
                f"that {_DIGESTS} lists. Copy the folder anew from its source, or take an earlier one"
            )
    share = sorted(listed)[ranks.rank :: ranks.world_size]
    for name, digest in _digests_of(folder / name for name in share).items():
        if digest != listed[name]:
            raise CheckpointError(
                f"{where}: {printable(name)} is damaged or cut short, its digest is not the one in "
                f"{_DIGESTS}. Copy the folder anew from its source, or take an earlier one"
            )


def _reported(function: Callable[[], Result]) -> Result | CheckpointError:
    """Return the error instead of raising it, to be told to the other ranks."""
    try:
        return function()
    except (CheckpointError, OSError, ValueError) as error:
        return error if isinstance(error, CheckpointError) else CheckpointError(printable(error))


def _raise_first(results: list[Any]) -> None:
    for each in results:
        if isinstance(each, CheckpointError):
            raise each


@contextmanager
def _as_checkpoint_error(failed: str) -> Iterator[None]:
    """Turn what torch raises, which may be a BaseException of its own, into a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{failed}. {type(error).__name__}: {printable(error)}") from error
    except BaseException as error:
        if isinstance(failures := getattr(error, "failures", None), dict):  # CheckpointException, by rank
            rank, (cause, _) = next(iter(failures.items()))
            raise CheckpointError(
                f"{failed}. Rank {rank}: {type(cause).__name__}: {printable(cause)}"
            ) from error
        raise
