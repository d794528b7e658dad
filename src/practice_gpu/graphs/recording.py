"""A capture: the operators of a CUDA graph, recorded as they run, and undone at its end.

A device would compute nothing during a capture. Here the operators do run, to get the shapes and types of
their results; :meth:`Recording.finish` then restores what they wrote to, and fills what they made with NaN. A
replay runs the same operators on the same storages, with the Python numbers of the capture.

The recording does not keep these storages alive: a tensor's memory is freed with it, as always. What the
capture itself made and no tensor holds is made again for each replay.
"""

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from practice_gpu import errors
from practice_gpu.device import generators
from practice_gpu.device.allocator import Pool, rounded
from practice_gpu.device.events import BETWEEN
from practice_gpu.device.gpu import OperatorMode, PracticeGPU
from practice_gpu.device.ledger import CPU, CPU_BIT, HOST, address_of, tensors_in
from practice_gpu.operators import cublas
from practice_gpu.operators.dispatch import Call, facts_of

_EMPTY = torch.empty  # the unpatched function
_UNFILLED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Operators that allocate memory without writing to it."""
_LAZY_GENERATORS = torch.__version__ >= "2.12"
"""Whether PyTorch registers a generator with a graph when a capture first draws from it (since 2.12)."""


class UsedStorage(weakref.ref):  # type: ignore[type-arg]
    """A storage that a graph uses without keeping it alive.

    A capture made it in `pool`, where it takes `size` bytes; `pool` is None if it existed before. It is
    `floating` if it was made for floating-point numbers, and `shared` if another graph uses it, which may be
    replayed when no tensor holds it any more. Then, and during a replay, `kept` replaces it.
    """

    __slots__ = ("address", "floating", "kept", "nbytes", "pool", "shared", "size")
    address: int
    nbytes: int
    pool: Pool | None
    size: int
    floating: bool
    shared: bool
    kept: torch.UntypedStorage | None

    def find(self) -> torch.UntypedStorage:
        """Return the storage, or raise an error if it was freed and this graph did not make it."""
        storage: torch.UntypedStorage | None = self()
        if storage is None:
            if self.pool is None or self.pool.released:
                raise errors.stale_memory()
            storage = self.kept
        if storage is None:
            storage = self.kept = torch.UntypedStorage(self.nbytes)  # type: ignore[no-untyped-call]
            self.blank(storage)  # of a graph that was never replayed
        return storage

    def blank(self, storage: torch.UntypedStorage) -> None:
        """Fill it with NaN, or with zeros where there is no NaN, to show that nothing was computed."""
        _bytes(storage).fill_(0xFF if self.floating else 0)


@dataclass(frozen=True, slots=True)
class View:
    """A tensor, as a view of a storage."""

    storage: UsedStorage
    dtype: torch.dtype
    offset: Any
    size: torch.Size
    stride: tuple[Any, ...]
    conjugate: bool
    negative: bool

    def tensor(self) -> torch.Tensor:
        """Return such a tensor."""
        found = self.storage.find()
        made = _EMPTY(0, dtype=self.dtype, device=HOST).set_(found, self.offset, self.size, self.stride)
        if self.conjugate:
            made = torch._conj(made)
        if self.negative:
            made = torch._neg_view(made)
        return made

    def fill(self, result: torch.Tensor) -> None:
        """Store what a replay has computed."""
        if self.storage() is None:
            self.storage.kept = result.untyped_storage()
        else:
            self.tensor().copy_(result)


@dataclass(slots=True)
class Node:
    """One operator of a graph.

    Attributes
    ----------
    call, args, kwargs
        Tensors on devices are replaced by views; host tensors are copies made at the capture.
    results : tuple of (View or None)
        For each tensor that it returns, where to store it; None for an argument or a view of one.
    generator : torch.Generator or None
        The generator to draw from, for an operator that takes none.
    unfilled : bool
        It allocates memory without writing to it.
    released : tuple of UsedStorage
        Storages that no later operator uses.
    """

    call: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    results: tuple[View | None, ...]
    generator: torch.Generator | None = None
    unfilled: bool = False
    released: tuple[UsedStorage, ...] = ()

    def run(self) -> None:
        """Compute it again."""
        if not (self.unfilled and self.results[0] is not None and self.results[0].storage() is not None):
            args, kwargs = _map(View, View.tensor, (self.args, self.kwargs))
            if self.generator is None:
                result = self.call(*args, **kwargs)
            else:
                with generators.in_place_of_the_hosts(self.generator):
                    result = self.call(*args, **kwargs)
            for place, tensor in zip(self.results, tensors_in(result), strict=False):
                if place is not None:
                    place.fill(tensor)
        for storage in self.released:
            if not storage.shared:
                storage.kept = None

    def storages(self) -> Iterator[UsedStorage]:
        """Yield all storages that it uses."""
        views: list[View] = []
        _map(View, views.append, (self.args, self.kwargs, self.results))
        for view in views:
            yield view.storage


class Recording(TorchDispatchMode):
    """The capture of one graph, in the thread that begins it.

    `known` are the generators registered with the graph. ``copies`` has the kind and bytes of each copy
    between host and device. When the host tries to wait, the capture is ``spoilt``: CUDA refuses everything
    after that.
    """

    def __init__(
        self, gpu: PracticeGPU, mode: OperatorMode, stream: Any, pool: Pool, known: Sequence[torch.Generator]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.thread = threading.get_ident()
        self.streams: list[Any] = [stream]
        self.nodes: list[Node] = []
        self.copies: list[tuple[str, int]] = []
        self.spoilt = False
        self._gpu, self._mode, self._pool = gpu, mode, pool
        self._own: dict[int, UsedStorage] = {}
        self._others: dict[int, UsedStorage] = {}
        self._before: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
        self._states: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        for generator in (*gpu.generators, *known):
            self._remember_state(generator)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in practice_gpu.operators.dispatch

    def start(self) -> None:
        """Begin."""
        self._pool.capturing = True
        self._gpu.capture = self
        self.__enter__()  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        """End, and undo what the operators computed."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._gpu.capture = None
        self._pool.capturing = False
        with torch._C._DisableTorchDispatch():
            for written, content in self._before.values():
                _bytes(written).copy_(content)
            for storage in self._own.values():
                held: torch.UntypedStorage | None = storage()
                if held is not None:
                    storage.blank(held)
        for generator, state in self._states.values():
            generator.set_state(state)
        self._before.clear()
        self._release()

    def _release(self) -> None:
        """Find the last operator that uses each storage of the capture."""
        seen: set[int] = set()
        for node in reversed(self.nodes):
            last = {
                id(storage): storage
                for storage in node.storages()
                if storage.pool is not None and id(storage) not in seen
            }
            seen |= last.keys()
            node.released = tuple(last.values())

    # -- called by the practice GPU

    def refuse_wait(self) -> None:
        """Invalidate the capture and raise CUDA's error: the host may not wait during a capture."""
        self.spoilt = True
        raise errors.capturing()

    def copy(self, kind: str, nbytes: int, non_blocking: bool, pinned: bool) -> None:
        """Record a copy between the host and a device, or between devices, or refuse it as CUDA does."""
        if kind != BETWEEN and not pinned:
            raise errors.captured_copy()
        if kind != BETWEEN and not non_blocking:
            self.refuse_wait()
        self.copies.append((kind, nbytes))

    def copied(self, source: torch.Tensor, result: torch.Tensor) -> None:
        """Record that `result` was made as a copy of `source`."""
        clone: Any = torch.ops.aten.clone.default
        self.nodes.append(Node(clone, (self._view(source),), {}, (self._new(result),)))

    # -- operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        call = Call(func, facts_of(func), args, kwargs or {})
        if self._mode.asleep:
            return call()
        tensors = list(call.tensors())
        on_device = any(self._is_on_device(tensor) for tensor in tensors)
        if not on_device and not self._makes_on_device(call, tensors):
            return call()  # the host's work, done once
        if self.spoilt:
            raise errors.capture_spoilt()
        if on_device and call.facts.name.removesuffix("_") in cublas.OPERATORS and not cublas.has_handle():
            self.spoilt = True
            raise errors.no_cublas_handle()
        noted = self._noted(call, on_device)
        if on_device:
            self._remember_written(call)
        if call.facts.generator:
            self._know(call.kwargs.get("generator"))
        result = call()
        self._note(call, noted, tensors, result)
        return result

    def _makes_on_device(self, call: Call, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether an operator without tensors on a device may make one there."""
        device, placement = call.kwargs.get("device"), self._mode.placement
        if device is not None and device.type == "cuda":
            return True
        if tensors:
            return device is not None and placement is not None and placement >= 0
        return placement != CPU  # None: the device is not known yet

    def _noted(self, call: Call, on_device: bool) -> tuple[Any, Any]:
        """Return the arguments as a replay needs them."""

        def noted(tensor: torch.Tensor) -> Any:
            if call.facts.moves or self._is_on_device(tensor):
                return self._view(tensor)
            if on_device and tensor.dim() and not call.facts.host:  # CUDA would have to copy it first
                raise errors.captured_copy()
            with torch._C._DisableTorchDispatch():
                return tensor.detach().clone()  # a number, read now

        kwargs = call.kwargs
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": HOST}
        return _map(torch.Tensor, noted, (tuple(call.args), kwargs))  # type: ignore[no-any-return]

    def _note(self, call: Call, noted: tuple[Any, Any], tensors: list[torch.Tensor], result: Any) -> None:
        """Record an operator that has run, if it made something on a device or wrote there."""
        facts = call.facts
        known = {_address(tensor) for tensor in tensors}
        results = tuple(
            None if _address(tensor) in known or not self._is_on_device(tensor) else self._new(tensor)
            for tensor in tensors_in(result)
        )
        if not any(results) and not facts.written:
            return
        args, kwargs = noted
        generator = self._default_generator(tensors, result)
        if facts.generator and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": generator}
        self.nodes.append(
            Node(
                facts.call,
                args,
                kwargs,
                results,
                generator if facts.seeded else None,
                facts.name in _UNFILLED,
            )
        )

    def _default_generator(self, tensors: list[torch.Tensor], result: Any) -> torch.Generator:
        places = (self._gpu.ledger.index(tensor) for tensor in (*tensors, *tensors_in(result)))
        return self._gpu.generators[max((0, *places))]

    def _is_on_device(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on a device, or on no known one (an operator on a device made it)."""
        return self._gpu.ledger.bit(tensor) != CPU_BIT

    # -- memory

    def _view(self, tensor: torch.Tensor, storage: UsedStorage | None = None) -> View:
        return View(
            storage or self._storage(tensor),
            tensor.dtype,
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def _storage(self, tensor: torch.Tensor) -> UsedStorage:
        address = _address(tensor)
        used: UsedStorage | None = self._gpu.graph_storages.get(address)
        if used is not None:
            used.shared = used.shared or self._own.get(address) is not used
            return used
        used = self._others.get(address)
        if used is None or used() is None:
            used = self._others[address] = UsedStorage(tensor.untyped_storage())
            used.address, used.pool, used.shared, used.kept = address, None, False, None
        return used

    def _new(self, tensor: torch.Tensor) -> View:
        """Return a view of a tensor that the capture has made."""
        storage, address, table = tensor.untyped_storage(), _address(tensor), self._gpu.graph_storages
        used = table.get(address)
        if used is None:
            used = self._own[address] = table[address] = UsedStorage(storage, _forgetting(table, self._pool))
            used.address, used.pool, used.shared, used.kept = address, self._pool, False, None
            used.nbytes, used.floating = storage.nbytes(), tensor.is_floating_point() or tensor.is_complex()
            used.size = rounded(used.nbytes) if self._gpu.ledger.index(tensor) >= 0 else 0
            self._pool.live += used.size
            self._pool.peak = max(self._pool.peak, self._pool.live)
        return self._view(tensor, used)

    def _remember_written(self, call: Call) -> None:
        """Save the content of storages that the capture did not make before it is overwritten."""
        for name, tensor in call.named_tensors():
            address = _address(tensor) if name in call.facts.written else None
            if address is None or address in self._before:
                continue
            used = self._own.get(address)
            if used is None or used() is None:
                storage = tensor.untyped_storage()
                with torch._C._DisableTorchDispatch():
                    self._before[address] = storage, _bytes(storage).clone()

    # -- random numbers

    def _know(self, generator: torch.Generator | None) -> None:
        """Make sure that a generator may be used, and that its state is restored at the end."""
        address = None if generator is None else generator._cdata  # type: ignore[attr-defined]
        if generator is None or address in self._states or address not in self._gpu.device_generators:
            return
        if not _LAZY_GENERATORS:
            raise errors.unregistered_generator()
        self._remember_state(generator)

    def _remember_state(self, generator: torch.Generator) -> None:
        self._states[generator._cdata] = generator, generator.get_state()  # type: ignore[attr-defined]


def _forgetting(table: dict[int, UsedStorage], pool: Pool) -> Callable[[UsedStorage], None]:
    def forget(used: UsedStorage) -> None:
        pool.live -= used.size
        if table.get(used.address) is used:  # else another storage has the address by now
            del table[used.address]

    return forget


def _address(tensor: torch.Tensor) -> int:
    try:
        return address_of(tensor)
    except (RuntimeError, NotImplementedError):
        raise errors.not_simulated("a CUDA graph with sparse or wrapped tensors") from None


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    with torch._C._DisableTorchDispatch():
        return _EMPTY(0, dtype=torch.uint8, device=HOST).set_(storage)


def _map(kind: type, function: Callable[[Any], Any], value: Any) -> Any:
    """Return `value` with `function` applied to every `kind` in its lists, tuples and dictionaries."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, list):
        return [_map(kind, function, part) for part in value]
    if isinstance(value, tuple):
        return tuple(_map(kind, function, part) for part in value)
    if isinstance(value, dict):
        return {name: _map(kind, function, part) for name, part in value.items()}
    return value
