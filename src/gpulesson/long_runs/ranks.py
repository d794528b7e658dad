"""The processes that train together: how they find one another, and what they tell one another."""

from __future__ import annotations

import math
import os
import pickle
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gpulesson._arguments import described, refuse
from gpulesson._files import printable
from gpulesson.device import choose_device
from gpulesson.evaluation import Evaluation

_store: Any = dist  # mypy does not find its stores
Result = TypeVar("Result")

DEFAULT_TIMEOUT = 600.0
_NAMES = "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
_TORCHRUN = "`torchrun --nproc-per-node 2 script.py` sets all five"


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
    `sum`, `join` and `on_main` are collective: if one rank does not call them, the others wait for it until
    the timeout.
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

        A mean over all data is a sum divided by a sum; ranks have different numbers of samples, so that the
        mean of their means is another number.

        Parameters
        ----------
        value : int, float or Tensor
            Numbers, which are added without rounding in between, or tensors of the same dtype and shape.

        Returns
        -------
        int, float or Tensor
            A tensor is a new one, without gradient. In a single process, the value itself.

        Raises
        ------
        TypeError
            `value` is no number and no tensor.
        ValueError
            The ranks gave values that do not fit together.

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
        tensor = value if isinstance(value, Tensor) else None
        given = self._gather(value if tensor is None else f"{described(tensor)} on the {tensor.device.type}")
        if not any(isinstance(each, str) for each in given):
            return math.fsum(given) if any(isinstance(each, float) for each in given) else sum(given)
        if tensor is None or len(set(given)) > 1:
            found = ", ".join(f"rank {rank}: {each}" for rank, each in enumerate(given))
            raise ValueError(
                f"sum was given different things ({found}), expected numbers, or tensors of the same dtype "
                "and shape on every rank: add up what differs in length first, as value.sum()"
            )
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
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
            Without arguments. Its result is pickled to be sent, so return nothing large: of data that rank 0
            downloads, or a checkpoint that it writes, the path.

        Raises
        ------
        Exception
            What `function` raised, on every rank, so that none waits for another that has failed.

        Examples
        --------
        Resume all ranks from the one file that rank 0 has found, if there is one:

        >>> from gpulesson.checkpoint import latest
        >>> with processes() as ranks:
        ...     path = ranks.on_main(lambda: latest("no/run/yet"))
        >>> path is None
        True
        """
        if self.world_size == 1:
            return function()
        result = self._on_each(lambda: pickle.dumps(function()) if self.is_main else b"")
        sent = [result]
        dist.broadcast_object_list(sent, src=0)
        return pickle.loads(sent[0])  # type: ignore[no-any-return]

    def _on_each(self, function: Callable[[], Result]) -> Result:
        """Call a function on every rank, and return its result here; what one raises, all raise."""
        result, error = None, None
        try:
            result = function()
        except Exception as raised:
            error = raised
        errors = self._gather(_as_sent(error, self.rank) if error and self.world_size > 1 else error)
        for each in [error, *errors]:
            if each is not None:
                raise each
        return result  # type: ignore[return-value]

    def _gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def _as_sent(error: Exception, rank: int) -> Exception:
    """Return the error as other processes get it; not every error can be pickled."""
    try:
        return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return]
    except Exception:
        return DistributedError(f"rank {rank}: {type(error).__name__}: {error}")


@contextmanager
def processes(*, timeout: float = DEFAULT_TIMEOUT) -> Iterator[Ranks]:
    """Join the processes that torchrun started; without torchrun, be a single one.

    The environment says which: ``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``,
    as torchrun sets them. Each process takes the GPU with the number of its ``LOCAL_RANK``, and they speak by
    NCCL; without GPUs, or with ``GPULESSON_DEVICE=cpu``, by Gloo. Tensors on the CPU may be sent in any case.
    At the end the process group is destroyed; after an error not where several ranks speak by NCCL, which
    would wait for the others before the error is seen.

    Parameters
    ----------
    timeout : float
        Seconds to wait for the other processes, at the start and in every collective: more than rank 0 needs
        for what the others wait for, such as a download or a checkpoint.

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

    Examples
    --------
    >>> from torch import nn
    >>> from torch.nn.parallel import DistributedDataParallel
    >>> with processes() as ranks:
    ...     model = DistributedDataParallel(nn.Linear(2, 1).to(ranks.device))
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
    numbers = _numbers()
    ranks = Ranks(*numbers, _own_device(numbers[1])) if numbers else Ranks(0, 0, 1, _own_device(None))
    on_gpu = ranks.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(ranks.device)
    store = _common_store(ranks, timeout) if numbers else _store.HashStore()
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=store,
            rank=ranks.rank,
            world_size=ranks.world_size,
            timeout=timedelta(seconds=timeout),
        )
    except Exception as error:
        raise DistributedError(
            f"rank {ranks.rank} of {ranks.world_size} found the others, but could not connect to all of them "
            f"within {timeout:g} s: {printable(error)}. See what the other ranks say; with several network "
            "interfaces, name the right one in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
        ) from error
    done = False
    try:
        with _watching_the_launcher():
            yield ranks
        done = True
    finally:  # after an error, NCCL would wait for ranks that do not end their group; torchrun ends them all
        if dist.is_initialized() and (done or not on_gpu or ranks.world_size == 1):
            dist.destroy_process_group()
    if ranks.world_size > 1:
        # Gloo's threads outlive the group. One that frees the tensors of the last collective while Python
        # ends would abort the process (pytorch/pytorch#179291): let them be done.
        time.sleep(0.2)


def _numbers() -> tuple[int, int, int] | None:
    """Read rank, local rank and world size as torchrun sets them; None where there is none of it."""
    found = {name: os.environ[name] for name in _NAMES if os.environ.get(name)}
    if not found.keys() & {"RANK", "LOCAL_RANK", "WORLD_SIZE"}:
        return None
    said = " ".join(f"{name}={printable(value, 100)}" for name, value in found.items())
    if missing := [name for name in _NAMES if name not in found]:
        raise DistributedError(
            f"the environment has {said}, but no {', '.join(missing)}: {_TORCHRUN}; for a single process, "
            f"unset {', '.join(found)}"
        )
    texts = [found[name] for name in _NAMES if name != "MASTER_ADDR"]
    rank, local_rank, world_size, port = (int(text) if text.isdecimal() else -1 for text in texts)
    if not 0 <= local_rank <= rank < world_size or not 0 < port < 2**16:
        raise DistributedError(
            f"the environment has {said}, expected whole numbers with 0 ≤ LOCAL_RANK ≤ RANK < WORLD_SIZE, "
            f"and a MASTER_PORT from 1 to 65535: {_TORCHRUN}"
        )
    return rank, local_rank, world_size


def _own_device(local_rank: int | None) -> torch.device:
    device = choose_device()
    if device.type != "cuda":
        return device if local_rank is None else torch.device("cpu")
    if local_rank is None:
        return torch.device("cuda", device.index or 0)
    if local_rank >= (count := torch.cuda.device_count()):
        raise DistributedError(
            f"LOCAL_RANK is {local_rank}, and this machine shows {count} GPU{'s' * (count > 1)}, expected "
            f"one for each process: start {count} of them, --nproc-per-node {count}, or see whether "
            f"CUDA_VISIBLE_DEVICES ({os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}) hides some; "
            "GPULESSON_DEVICE=cpu goes on without GPUs"
        )
    return torch.device("cuda", local_rank)


def _common_store(ranks: Ranks, timeout: float) -> Any:
    """Return a store that the ranks of this attempt share, in which nothing is stored yet."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    where = f"{printable(address)}:{port}"
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun itself
    until = time.monotonic() + timeout
    try:
        store = _store.TCPStore(
            address,
            port,
            ranks.world_size,
            is_master=ranks.is_main and not served,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            use_libuv=os.name != "nt",  # PyTorch for Windows has none
        )
        return _store.PrefixStore(_attempt(store, ranks, until), store)
    except dist.DistError as error:
        if "EADDRINUSE" in str(error):
            raise DistributedError(
                f"rank 0 cannot listen on {where}, for the port is in use, by another run or by a second "
                "rank 0, expected a free one: take another, `torchrun --master-port 29501` (or MASTER_PORT), "
                "or let `torchrun --standalone` find one"
            ) from error
        raise DistributedError(
            f"rank {ranks.rank} of {ranks.world_size} got no answer from rank 0 at {where} within "
            f"{timeout:g} s: see whether that process runs, and whether MASTER_ADDR and MASTER_PORT are the "
            f"same everywhere. ({printable(error, 200)})"
        ) from error


def _attempt(store: Any, ranks: Ranks, until: float) -> str:
    """Agree on a name that no attempt had before.

    With ``--max-restarts``, torchrun starts all processes again beside the store of those that died, in which
    a new process would find the address of a dead one, and wait for it. (A count of the restarts is no name:
    each machine has its own.) So each rank calls itself by a new name. A call is answered under that name, so
    that no answer can be old, and rank 0 goes on answering until every rank has used the name it was given.
    """
    mine = uuid.uuid4().hex
    if not ranks.is_main:
        store.set(f"rank {ranks.rank}", mine)
        name: str = store.get(f"answer to {mine}").decode()
        store.set(f"{name} has rank {ranks.rank}", "")
        return name
    others = range(1, ranks.world_size)
    while missing := [rank for rank in others if not store.check([f"{mine} has rank {rank}"])]:
        for rank in missing:
            if store.check([f"rank {rank}"]):
                store.set(f"answer to {store.get(f'rank {rank}').decode()}", mine)
        if time.monotonic() > until:
            some = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            raise DistributedError(
                f"{ranks.world_size - len(missing)} of {ranks.world_size} ranks came in time, and rank 0 "
                f"waits for rank {some}: see whether they run and what they say, whether WORLD_SIZE="
                f"{ranks.world_size} is right, and give processes(timeout=…) more seconds if they are slow"
            )
        time.sleep(0.01)
    return mine


@contextmanager
def _watching_the_launcher() -> Iterator[None]:
    """End this process once torchrun is gone, as after SIGKILL; an `AutoSave` saves before."""
    launcher, done = os.getppid(), threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            if os.getppid() != launcher:
                print("torchrun is gone, and this process ends, too", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=watch, daemon=True)
    if "TORCHELASTIC_RUN_ID" in os.environ and os.name == "posix":
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()
