"""NCCL process groups: several processes that send one another what is on their GPUs.

Storages are in host memory, so Gloo can send them. The group calls itself NCCL, accepts what NCCL accepts,
and refuses what NCCL refuses. Every collective comes here as an operator of ``c10d``, also those of
``DistributedDataParallel`` and ``fully_shard``, which call it from C++ and from autograd's threads. An
average becomes a sum before that, since not every PyTorch lets us read an operator's reduction.
"""

import atexit
import inspect
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import torch

from practice_gpu import errors
from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.device.ledger import tensors_in
from practice_gpu.patching.absent import refused_class
from practice_gpu.patching.patches import Handler, Patches

_CARRIER = "cpu:gloo,cuda:gloo"
_NCCL = (2, 30, 7)
"""The version of NCCL to report where PyTorch was built without it."""
_BETWEEN_TWO = ("send", "recv_", "recv_any_source_")
_OF_ANY_SIZE = ("alltoall_", "alltoall_base_", "barrier", "gather_", "scatter_")
_numbers = count()
"""Numbers of this process's groups: equal in all processes, since they make the same groups."""
_REDUCING = (
    *("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base"),
    *("reduce_scatter_tensor_coalesced", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
)
_BITWISE = ("BAND", "BOR", "BXOR")
_asked = ContextVar("asked", default="")
"""The reduction in progress, if it is the average, for which Gloo computes a sum, or a bitwise one."""
_MOMENT = 0.2
_LONGEST = 80
"""Bytes of the description of a call."""


@dataclass(slots=True)
class Group:
    """A process group that the program made with NCCL.

    Its `group` uses Gloo, and has a separate `store`. `kinds` are the types of devices that it serves, such
    as only ``cuda``; `bound` is the ``device_id`` of ``init_process_group``; it is `compared` once the
    processes know one another's GPUs.
    """

    group: Any
    store: Any
    kinds: frozenset[str]
    bound: torch.device | None
    compared: bool = False


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the replacements in :mod:`torch.distributed`; none where PyTorch was built without it."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import ProcessGroup, distributed_c10d

    for owner in (torch.distributed, distributed_c10d):
        patches.set(owner, "is_nccl_available", lambda: True)
        for name in dir(distributed_c10d):
            if name.startswith("ProcessGroupNCCL"):
                group = refused_class(getattr(distributed_c10d, name), _made_by_hand)
                patches.set(owner, name, group)
    patches.handle(distributed_c10d, "_new_process_group_helper", _new_group)
    for owner in (torch.distributed, distributed_c10d):
        patches.handle(owner, "destroy_process_group", _destroy)
    patches.handle(ProcessGroup, "_start_coalescing", _coalesce)
    for name in _REDUCING:
        if hasattr(ProcessGroup, name):
            patches.handle(ProcessGroup, name, _reduce)
    patches.handle(ProcessGroup, "_get_backend_name", _backend_name)
    patches.wrap(ProcessGroup, "_device_types", lambda original: _device_types(gpu, original))
    patches.set(torch.cuda.nccl, "version", nccl_version)
    patches.set(torch._C, "_get_accelerator", lambda *_: torch.device("cuda"))  # fully_shard asks


def nccl_version() -> tuple[int, ...]:
    """Return the version of NCCL that PyTorch was built with."""
    built_with: Any = getattr(torch._C, "_nccl_version", None)
    if built_with is None:
        return _NCCL
    number = built_with()
    return number if isinstance(number, tuple) else (number >> 32, (number >> 16) & 0xFFFF, number & 0xFFFF)


def _made_by_hand(*_: Any, **__: Any) -> Any:
    raise errors.no_nccl()


# -- making a group


def _new_group(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    """Make a group with Gloo where the program wants NCCL, and let it call itself NCCL."""
    from torch.distributed import ProcessGroup, distributed_c10d

    given = inspect.signature(original).bind(*args, **kwargs).arguments
    asked_for = distributed_c10d.BackendConfig(distributed_c10d.Backend(given["backend"]))
    backends = asked_for.get_device_backend_map()
    device = given.get("device_id")
    unfinished = device is not None and device.index is None  # which PyTorch refuses
    if unfinished or not any(name.startswith("nccl") for name in backends.values()):
        return original(**given)
    backend, given["backend"] = given["backend"], _CARRIER
    for option in ("backend_options", "pg_options", "device_id"):
        given.pop(option, None)
    given["store"] = _fresh(given["store"])
    group, store = original(**given)
    if isinstance(group, ProcessGroup):  # else this process is not in it
        atexit.unregister(_let_threads_end)
        atexit.register(_let_threads_end)
        world = distributed_c10d._world
        world.pg_map[group] = (backend, store)
        world.pg_backend_config[group] = str(asked_for)
        group.bound_device_id = device
        gpu.process_groups[group.group_name] = Group(group, store, frozenset(backends), device)
    return group, store


def _fresh(store: Any) -> Any:
    """Return a part of a store without addresses of earlier processes, which torchrun leaves there.

    If the caller has already made such a part, return that one.
    """
    PrefixStore = torch.distributed.distributed_c10d.PrefixStore
    around = store.underlying_store if isinstance(store, PrefixStore) else store  # PyTorch's "default_pg"
    if isinstance(around, PrefixStore):
        return store
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"attempt {attempt}, group {next(_numbers)}", store)


def _let_threads_end() -> None:
    """Wait a moment, since Gloo's threads outlive the group.

    A thread that frees the tensors of the last collective while Python ends would abort the process
    (pytorch/pytorch#179291).
    """
    time.sleep(_MOMENT)


def _destroy(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> None:
    from torch.distributed import distributed_c10d

    original(*args, **kwargs)
    names = {*distributed_c10d._world.pg_names.values()}
    for name in gpu.process_groups.keys() - names:
        del gpu.process_groups[name]


def _coalesce(gpu: PracticeGPU, original: Handler, /, group: Any, *args: Any) -> Any:
    if group.group_name not in gpu.process_groups:
        return original(group, *args)
    from torch.distributed import distributed_c10d

    distributed_c10d._world.pg_coalesce_state.pop(group, None)  # or all later ones would wait
    raise errors.not_simulated("coalesced collectives of NCCL")


def _backend_name(gpu: PracticeGPU, original: Handler, /, group: Any, *args: Any) -> str:
    name: str = "nccl" if group.group_name in gpu.process_groups else original(group, *args)
    return name


def _device_types(gpu: PracticeGPU, original: Any) -> property:
    """Return NCCL's types of devices, so that PyTorch sends objects through the GPU."""

    def read(group: Any) -> list[torch.device]:
        ours = gpu.process_groups.get(group.group_name)
        return original.__get__(group) if ours is None else [torch.device(kind) for kind in ours.kinds]

    return property(read)


# -- collectives


def group_of(gpu: PracticeGPU, func: Any, args: Sequence[Any]) -> Group | None:
    """Return the NCCL group among an operator's arguments; None for any other group."""
    position = _positions(func).get("process_group")
    if position is None or position >= len(args):
        return None
    group = torch.distributed.ProcessGroup.unbox(args[position])
    return gpu.process_groups.get(group.group_name)


@cache
def _positions(func: Any) -> dict[str, int]:
    """Return the positions of an operator's arguments, by name."""
    return {argument.name: n for n, argument in enumerate(func._schema.arguments)}


def run(gpu: PracticeGPU, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an operator of c10d: refuse what NCCL refuses, send with Gloo, and enter the results."""
    group = group_of(gpu, func, args)
    if group is None:
        return func(*args, **kwargs)
    name = func._schema.name.rpartition(":")[2]
    home = _check(gpu, group, name, args)
    asked = _asked.get() if home >= 0 or "cpu" not in group.kinds else ""
    if asked in _BITWISE:
        raise errors.bitwise(asked)
    if name not in _BETWEEN_TWO:
        _compare_devices(group, home)
        _compare_calls(group, name, args)
    args = [*args]
    if name in ("_allgather_base_", "_reduce_scatter_base_"):  # NCCL checks only the number of elements
        args[:2] = [value.view(-1) if value.is_contiguous() else value for value in args[:2]]
    result = func(*args, **kwargs)
    if asked == "AVG" and not (name == "reduce_" and group.group.rank() != args[3]):
        return _divided(result, [*tensors_in([args[0]])], group.group.size())
    return result


def _divided(result: Any, sums: list[torch.Tensor], number: int) -> Any:
    """Wait for an operator of c10d, divide its sums, and return its result with a finished work object."""
    from torch._C import _distributed_c10d  # not every PyTorch has it

    alone = not isinstance(result, tuple | list)
    torch.distributed.Work.unbox(result if alone else result[-1]).wait()
    for tensor in sums:
        tensor.div_(number, rounding_mode=None if tensor.is_floating_point() else "trunc")
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(sums)
    work = _distributed_c10d._create_work_from_future(future).boxed()  # Gloo's work would copy at each wait
    return work if alone else type(result)([*result[:-1], work])


def _check(gpu: PracticeGPU, group: Group, name: str, args: Sequence[Any]) -> int:
    """Return the device of a collective's tensors, or raise NCCL's or PyTorch's error."""
    if name == "barrier":
        chosen = args[2] if len(args) > 2 else ()
        bound = group.bound
        return chosen[0] if chosen else gpu.current if bound is None else gpu.index_of(bound)
    tensors = [*tensors_in([*args])]
    places = {gpu.ledger.index(tensor) for tensor in tensors if not gpu.ledger.is_unplaced(tensor)}
    if not places:  # PyTorch's C++ made them, on no known device
        return -1
    kinds = {"cuda" if place >= 0 else "cpu" for place in places}
    if not kinds & group.kinds:
        raise errors.no_backend("cuda" if "cuda" in kinds else "cpu")
    if kinds == {"cpu"}:
        return -1
    if name == "recv_any_source_":
        raise errors.received_from_any()
    if "cpu" in kinds:
        raise errors.not_dense_cuda()
    if len(places) > 1:
        raise errors.several_devices()
    (home,) = places
    for tensor in tensors:
        if gpu.ledger.is_unplaced(tensor):
            gpu.ledger.place(tensor, home)
        if tensor.layout is not torch.strided:
            raise errors.not_dense_cuda()
    return home


def _compare_devices(group: Group, home: int) -> None:
    """Raise NCCL's error if two processes are on the same GPU, as NCCL does before its first collective.

    Processes that one torchrun has started count as one machine: they have the same GROUP_RANK.
    """
    size, rank = group.group.size(), group.group.rank()
    if group.compared or size == 1 or home < 0:
        return
    group.compared = True
    machine = f"{socket.gethostname()} {os.environ.get('GROUP_RANK', 0)}"
    here = f"{machine} {home}"
    group.store.set(f"gpu of {rank}", here)
    for other in range(size):
        if other != rank and group.store.get(f"gpu of {other}").decode() == here:
            raise errors.same_gpu(rank, other, home, nccl_version())


def _compare_calls(group: Group, name: str, args: Sequence[Any]) -> None:
    """Raise an error if another process makes another call, or sends more or less.

    NCCL does not check that: the processes wait for one another until its timeout. Gloo may not notice
    either.
    """
    size, rank = group.group.size(), group.group.rank()
    if size == 1:
        return
    given = [*tensors_in([args[1] if "allgather" in name else args[0]])]
    words = name.strip("_").removesuffix("_base")
    if name not in _OF_ANY_SIZE and given:
        words += f" of {sum(map(torch.numel, given))} elements, {given[0].dtype}"
    sent = torch.frombuffer(bytearray(words.encode().ljust(_LONGEST)), dtype=torch.uint8)
    received = [torch.empty_like(sent) for _ in range(size)]
    group.group._get_backend(torch.device("cpu")).allgather(received, sent).wait()
    for other in range(size):
        if other != rank and not torch.equal(received[other], sent):
            theirs = bytes(received[other].tolist()).decode().rstrip()
            raise errors.unlike_calls(rank, words, other, theirs)


# -- averages


def _reduce(gpu: PracticeGPU, original: Handler, /, group: Any, *args: Any, **kwargs: Any) -> Any:
    """Reduce by a method of a group; the reduction is an argument, or part of the options."""
    known = gpu.process_groups.get(group.group_name)
    if known is None:
        return original(group, *args, **kwargs)
    if gpu.thread_state.mode is None:
        gpu.watch_thread()
    ReduceOp = torch.distributed.ReduceOp
    given = [*args, *kwargs.values()]
    options = next((one for one in given if hasattr(one, "reduceOp")), None)
    if options is not None:
        op = options.reduceOp
    else:
        op = next((one for one in given if isinstance(one, (ReduceOp, ReduceOp.RedOpType))), ReduceOp.SUM)
    with _for_gloo(gpu, known, op, [*tensors_in(given)]) as other:
        if other is None:
            return original(group, *args, **kwargs)
        if options is None:
            args = tuple(other if one is op else one for one in args)
            kwargs = {name: other if one is op else one for name, one in kwargs.items()}
            return original(group, *args, **kwargs)
        options.reduceOp = other
        try:
            return original(group, *args, **kwargs)
        finally:
            options.reduceOp = ReduceOp.AVG


@contextmanager
def functional(gpu: PracticeGPU, func: Any, args: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield the arguments with which Gloo can run a collective operator of the compilers."""
    positions = _positions(func)
    group = args[positions["group_name"]] if "reduce_op" in positions else None
    known = gpu.process_groups.get(group if isinstance(group, str) else getattr(group, "group_name", ""))
    if known is None:
        yield args
        return
    position = positions["reduce_op"]
    with _for_gloo(gpu, known, args[position], [*tensors_in(args[0])]) as other:
        yield args if other is None else [*args[:position], "sum", *args[position + 1 :]]


@contextmanager
def _for_gloo(gpu: PracticeGPU, group: Group, op: Any, tensors: Sequence[Any]) -> Iterator[Any]:
    """Yield the sum where the program wants the average of tensors on a GPU, else None, and let `run` know.

    Gloo has no average of integers, and older versions have none at all.
    """
    ReduceOp = torch.distributed.ReduceOp
    known = "AVG", *_BITWISE
    name = op.upper() if isinstance(op, str) else ""
    name = next((each for each in known if name == each or op == getattr(ReduceOp, each)), "")
    placed = [tensor for tensor in tensors if not gpu.ledger.is_unplaced(tensor)]
    on_gpu = any(gpu.ledger.index(tensor) >= 0 for tensor in placed) or "cpu" not in group.kinds
    token = _asked.set(name)
    try:
        yield ReduceOp.SUM if name == "AVG" and on_gpu else None
    finally:
        _asked.reset(token)
