"""A capture: the operators of a CUDA graph, written down as they run, and taken back at its end.

A device would compute nothing meanwhile. Here the operators do run, for the shapes and types of their
results; :meth:`Recording.finish` then puts back what they have written, and fills what they have made with
NaN. A replay runs the same operators on the same storages, with the Python numbers of the capture.

Which storages these are is noted without keeping them alive: a tensor that dies gives its memory back, as
ever. What the capture itself has made and nobody holds is made again for each replay.
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

_EMPTY = torch.empty  # PyTorch's own
_UNFILLED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Operators that make memory, and leave in it what was there before."""
_LAZY_GENERATORS = torch.__version__ >= "2.12"
"""Whether PyTorch registers a generator with a graph when a capture first draws from it."""


class Memory(weakref.ref):  # type: ignore[type-arg]
    """A storage that a graph uses and does not keep alive.

    A capture made it in `pool`, where it takes `size` bytes, or it was there before: then that is None. It is
    `floating` if it was made for floating-point numbers, and `shared` if another graph uses it, which may be
    replayed when no tensor holds it any more. `kept` stands for it then, and during a replay.
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
        """Return the storage, or raise an error if one that this graph did not make has been given back."""
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
        """Fill it with what says that nothing was computed: NaN, or zero where there is no NaN."""
        _bytes(storage).fill_(0xFF if self.floating else 0)


@dataclass(frozen=True, slots=True)
class View:
    """A tensor, by its memory and what it sees of it."""

    memory: Memory
    dtype: torch.dtype
    offset: Any
    size: torch.Size
    stride: tuple[Any, ...]
    conjugate: bool
    negative: bool

    def tensor(self) -> torch.Tensor:
        """Return such a tensor."""
        storage = self.memory.find()
        made = _EMPTY(0, dtype=self.dtype, device=HOST).set_(storage, self.offset, self.size, self.stride)
        if self.conjugate:
            made = torch._conj(made)
        if self.negative:
            made = torch._neg_view(made)
        return made

    def fill(self, result: torch.Tensor) -> None:
        """Put there what a replay has computed."""
        if self.memory() is None:
            self.memory.kept = result.untyped_storage()
        else:
            self.tensor().copy_(result)


@dataclass(slots=True)
class Step:
    """One operator of a graph.

    Attributes
    ----------
    call, args, kwargs
        Tensors in them are views; what came from the host is a tensor still, as it was at the capture.
    results : tuple of (View or None)
        For each tensor that it returns, where it belongs; None for an argument or a view of one.
    generator : torch.Generator or None
        What it draws from, if it cannot be told.
    unfilled : bool
        It makes memory, and puts nothing there.
    released : tuple of Memory
        What no later operator uses.
    """

    call: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    results: tuple[View | None, ...]
    generator: torch.Generator | None = None
    unfilled: bool = False
    released: tuple[Memory, ...] = ()

    def run(self) -> None:
        """Compute it once more."""
        if not (self.unfilled and self.results[0] is not None and self.results[0].memory() is not None):
            args, kwargs = _map(View, View.tensor, (self.args, self.kwargs))
            if self.generator is None:
                result = self.call(*args, **kwargs)
            else:
                with generators.in_place_of_the_hosts(self.generator):
                    result = self.call(*args, **kwargs)
            for place, tensor in zip(self.results, tensors_in(result), strict=False):
                if place is not None:
                    place.fill(tensor)
        for memory in self.released:
            if not memory.shared:
                memory.kept = None

    def memories(self) -> Iterator[Memory]:
        """Yield all that it uses."""
        views: list[View] = []
        _map(View, views.append, (self.args, self.kwargs, self.results))
        for view in views:
            yield view.memory


class Recording(TorchDispatchMode):
    """The capture of one graph, in the thread that begins it.

    `known` are the generators that were registered with the graph. ``copies`` are kind and bytes of those
    between host and device. When the host tries to wait, the capture is ``spoilt``: CUDA refuses everything
    from then on.
    """

    def __init__(
        self, gpu: PracticeGPU, mode: OperatorMode, stream: Any, pool: Pool, known: Sequence[torch.Generator]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.thread = threading.get_ident()
        self.streams: list[Any] = [stream]
        self.steps: list[Step] = []
        self.copies: list[tuple[str, int]] = []
        self.spoilt = False
        self._gpu, self._mode, self._pool = gpu, mode, pool
        self._own: dict[int, Memory] = {}
        self._others: dict[int, Memory] = {}
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
        """End, and undo what the capture has computed."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._gpu.capture = None
        self._pool.capturing = False
        with torch._C._DisableTorchDispatch():
            for storage, content in self._before.values():
                _bytes(storage).copy_(content)
            for memory in self._own.values():
                held: torch.UntypedStorage | None = memory()
                if held is not None:
                    memory.blank(held)
        for generator, state in self._states.values():
            generator.set_state(state)
        self._before.clear()
        self._release()

    def _release(self) -> None:
        """Find after which operator each piece of memory of its own is used no more."""
        seen: set[int] = set()
        for step in reversed(self.steps):
            last = {
                id(memory): memory
                for memory in step.memories()
                if memory.pool is not None and id(memory) not in seen
            }
            seen |= last.keys()
            step.released = tuple(last.values())

    # -- what the practice GPU tells it

    def refuse_wait(self) -> None:
        """Spoil the capture and raise CUDA's error: the host may not wait meanwhile."""
        self.spoilt = True
        raise errors.capturing()

    def copy(self, kind: str, nbytes: int, non_blocking: bool, pinned: bool) -> None:
        """Note a copy between the host and a device, or between devices, or refuse it as CUDA does."""
        if kind != BETWEEN and not pinned:
            raise errors.captured_copy()
        if kind != BETWEEN and not non_blocking:
            self.refuse_wait()
        self.copies.append((kind, nbytes))

    def copied(self, source: torch.Tensor, result: torch.Tensor) -> None:
        """Note that `result` was made as a copy of `source`."""
        clone: Any = torch.ops.aten.clone.default
        self.steps.append(Step(clone, (self._view(source),), {}, (self._new(result),)))

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
            return call()  # the host's own business, done once
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
        return placement != CPU  # None: nobody knows yet where it will be

    def _noted(self, call: Call, on_device: bool) -> tuple[Any, Any]:
        """Return the arguments as a replay will want them."""

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
        """Write down an operator that has run, if it has made something on a device or written there."""
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
        self.steps.append(
            Step(
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
        """Return whether a tensor is on a device, or could be anywhere (then a device's operator made it)."""
        return self._gpu.ledger.bit(tensor) != CPU_BIT

    # -- memory

    def _view(self, tensor: torch.Tensor, memory: Memory | None = None) -> View:
        return View(
            memory or self._memory(tensor),
            tensor.dtype,
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def _memory(self, tensor: torch.Tensor) -> Memory:
        address = _address(tensor)
        memory: Memory | None = self._gpu.graph_memory.get(address)
        if memory is not None:
            memory.shared = memory.shared or self._own.get(address) is not memory
            return memory
        memory = self._others.get(address)
        if memory is None or memory() is None:
            memory = self._others[address] = Memory(tensor.untyped_storage())
            memory.address, memory.pool, memory.shared, memory.kept = address, None, False, None
        return memory

    def _new(self, tensor: torch.Tensor) -> View:
        """Return a view of a tensor that the capture has made."""
        storage, address, table = tensor.untyped_storage(), _address(tensor), self._gpu.graph_memory
        memory = table.get(address)
        if memory is None:
            memory = self._own[address] = table[address] = Memory(storage, _forgetting(table, self._pool))
            memory.address, memory.pool, memory.shared, memory.kept = address, self._pool, False, None
            memory.nbytes, memory.floating = (
                storage.nbytes(),
                tensor.is_floating_point() or tensor.is_complex(),
            )
            memory.size = rounded(memory.nbytes) if self._gpu.ledger.index(tensor) >= 0 else 0
            self._pool.live += memory.size
            self._pool.peak = max(self._pool.peak, self._pool.live)
        return self._view(tensor, memory)

    def _remember_written(self, call: Call) -> None:
        """Keep what is in memory of others before it is written to."""
        for name, tensor in call.named_tensors():
            address = _address(tensor) if name in call.facts.written else None
            if address is None or address in self._before:
                continue
            memory = self._own.get(address)
            if memory is None or memory() is None:
                storage = tensor.untyped_storage()
                with torch._C._DisableTorchDispatch():
                    self._before[address] = storage, _bytes(storage).clone()

    # -- random numbers

    def _know(self, generator: torch.Generator | None) -> None:
        """Make sure that a generator may be used, and that the capture draws nothing from it in the end."""
        address = None if generator is None else generator._cdata  # type: ignore[attr-defined]
        if generator is None or address in self._states or address not in self._gpu.device_generators:
            return
        if not _LAZY_GENERATORS:
            raise errors.unregistered_generator()
        self._remember_state(generator)

    def _remember_state(self, generator: torch.Generator) -> None:
        self._states[generator._cdata] = generator, generator.get_state()  # type: ignore[attr-defined]


def _forgetting(table: dict[int, Memory], pool: Pool) -> Callable[[Memory], None]:
    def forget(memory: Memory) -> None:
        pool.live -= memory.size
        if table.get(memory.address) is memory:  # else another storage has the address by now
            del table[memory.address]

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
    """Return `value` with `function` applied to all that is of `kind` in its lists, tuples, dictionaries."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, list):
        return [_map(kind, function, part) for part in value]
    if isinstance(value, tuple):
        return tuple(_map(kind, function, part) for part in value)
    if isinstance(value, dict):
        return {name: _map(kind, function, part) for name, part in value.items()}
    return value
