"""The state of one practice GPU: its devices, their memory, the log."""

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch.nn.parameter import is_lazy

from practice_gpu import errors
from practice_gpu.device.allocator import Memory
from practice_gpu.device.events import BETWEEN, TO_DEVICE, TO_HOST, Event, EventLog, report
from practice_gpu.device.ledger import CPU, HOST, Ledger, wraps_others
from practice_gpu.patching import keys

NAME = "Practice GPU (simulated on the CPU)"


class OperatorMode(Protocol):
    """What other modules use of a thread's operator mode, :class:`practice_gpu.operators.dispatch.Operators`.

    Attributes
    ----------
    asleep : bool
        Operators run as if there were no practice GPU.
    placement : int or None
        The device on which a factory function in progress makes its tensors; None outside such a function.
    alone : bool
        No other mode intercepts this thread's operators.
    """

    asleep: bool
    placement: int | None

    @property
    def alone(self) -> bool: ...


class Capture(Protocol):
    """What other modules use of a CUDA graph's capture, :class:`practice_gpu.graphs.recording.Recording`.

    Attributes
    ----------
    thread : int
        The thread that captures.
    streams : list of stream
        The captured stream, and those that have waited for it since.
    """

    thread: int
    streams: list[Any]

    def refuse_wait(self) -> None:
        """Invalidate the capture and raise CUDA's error: the host may not wait during a capture."""

    def copy(self, kind: str, nbytes: int, non_blocking: bool, pinned: bool) -> None:
        """Record a copy between the host and a device, or between devices, or refuse it as CUDA does."""

    def copied(self, source: torch.Tensor, result: torch.Tensor) -> None:
        """Record that `result` was made as a copy of `source`."""


class ThreadState(threading.local):
    """State that each thread has separately."""

    current = 0
    """The current device."""
    mode: OperatorMode | None = None
    call: str | None = None
    """Name of the read in progress, for the log: ``if tensor``, ``float()``, …"""
    quiet = False
    """What happens now is part of something that the log already has."""

    def __init__(self, count: int) -> None:
        self.streams: list[Any] = [None] * count
        """The current stream of each device; None: the default one."""


class PracticeGPU:
    """One simulated machine with CUDA devices.

    Parameters
    ----------
    capacity : int
        Bytes of memory on each device.
    count : int
        Number of devices.

    Attributes
    ----------
    simulated : bool
        True: this is not a GPU.
    name : str
        What ``torch.cuda.get_device_name`` returns.
    """

    simulated = True
    name = NAME

    def __init__(self, capacity: int, count: int) -> None:
        self.capacity = capacity
        self.count = count
        self.devices = tuple(torch.device("cuda", index) for index in range(count))
        self.ledger = Ledger(count, capacity)
        self.log = EventLog()
        self.device_generators: WeakValueDictionary[int, torch.Generator] = WeakValueDictionary()
        """By address, since a generator loses its Python object on its way through an operator."""
        self.generators = tuple(self.new_generator(index) for index in range(count))
        """The default generator of each device."""
        self.graph_storages: dict[int, Any] = {}
        """By address: storages that captures made and tensors hold."""
        self.process_groups: dict[str, Any] = {}
        """By name: the groups that the program made with NCCL."""
        self.has_followers = False
        """Whether a process was started that has a practice GPU like this one."""
        self.capture: Capture | None = None
        """The capture of a CUDA graph in progress: one at a time."""
        self.thread_state = ThreadState(count)
        self.watch_thread: Callable[[], None] = lambda: None
        """Install an operator mode in a thread that is older than the practice GPU and now uses a device."""

    # -- for users

    @property
    def events(self) -> tuple[Event, ...]:
        """Copies and waits so far, summed by line of code."""
        return self.log.events

    def report(self) -> str:
        """Return a table of the copies and waits so far, by line of code, for a terminal."""
        return report(self.events)

    def clear_events(self) -> None:
        """Forget the copies and waits so far."""
        self.log.clear()

    def memory(self, device: int | str | torch.device | None = None) -> Memory:
        """Return the simulated memory of a device, by default the current one, in bytes."""
        return self.ledger.allocators[self.number(device)].memory()

    @property
    def was_used(self) -> bool:
        """Whether any tensor has been on a device."""
        return any(allocator.memory().requests for allocator in self.ledger.allocators)

    # -- for the other modules

    @property
    def current(self) -> int:
        """Number of this thread's current device."""
        return self.thread_state.current

    @current.setter
    def current(self, index: int) -> None:
        self.thread_state.current = index

    @property
    def streams(self) -> list[Any]:
        """The current stream of each device in this thread; None: the default one."""
        return self.thread_state.streams

    def index_of(self, device: torch.device) -> int:
        """Return the number of a ``cuda`` device, or -1 for any other."""
        if device.type != "cuda":
            return CPU
        index = self.current if device.index is None else device.index
        if not 0 <= index < self.count:
            raise errors.invalid_ordinal()
        return index

    def number(self, device: Any = None) -> int:
        """Return the number of the device given to a ``torch.cuda`` function (None: the current one)."""
        if device is None:
            return self.current
        index = self.index_of(as_device(device.idx if isinstance(device, torch.cuda.device) else device))
        if index < 0:
            raise ValueError(f"Expected a cuda device, but got: {device}")
        return index

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Return the device that `tensor` is on; the CPU if that is not a simulated one."""
        index = self.ledger.index(tensor)
        return HOST if index < 0 else self.devices[index]

    def new_generator(self, index: int) -> "DeviceGenerator":
        """Return a new random-number generator for device `index`."""
        generator = DeviceGenerator()
        generator.gpu, generator.index = self, index
        self.device_generators[generator._cdata] = generator  # type: ignore[attr-defined]
        return generator

    def check_generator(self, generator: torch.Generator | None, index: int) -> None:
        """Raise CUDA's error if a random operator on device `index` got a generator of the wrong type."""
        if generator is not None:
            address: int = generator._cdata  # type: ignore[attr-defined]
            found = "cuda" if address in self.device_generators else generator.device.type
            expected = "cuda" if index >= 0 else "cpu"
            if found != expected:
                raise errors.wrong_generator(expected, found)

    def capture_here(self) -> Capture | None:
        """Return the capture of a CUDA graph that is in progress in this thread."""
        capture = self.capture
        return capture if capture is not None and capture.thread == threading.get_ident() else None

    def let_pass(self) -> "Bypass":
        """Let this thread's operators run as if there were no practice GPU."""
        return Bypass(self.thread_state.mode)

    def copy(self, tensor: torch.Tensor, target: int, call: str, non_blocking: bool = False) -> torch.Tensor:
        """Return a copy of `tensor` on device `target`, outside autograd, and log it as `call`."""
        if self.thread_state.mode is None:
            self.watch_thread()
        if is_lazy(tensor):
            tensor = tensor.data  # a parameter without a shape has nothing else
        if target >= 0:
            self.ledger.use()
            self.ledger.allocators[target].require(tensor.numel() * tensor.element_size())
        self.record_copy(self.ledger.index(tensor), target, call, tensor, non_blocking)
        if wraps_others(type(tensor)):
            return self._copy_wrapped(tensor, target, non_blocking)
        with torch._C.DisableTorchFunction(), Bypass(self.thread_state.mode):
            result = tensor.clone()
        self.ledger.place(result, target)
        if (capture := self.capture_here()) is not None:
            capture.copied(tensor, result)
        return result

    def _copy_wrapped(self, tensor: torch.Tensor, target: int, non_blocking: bool) -> torch.Tensor:
        """Copy a tensor that wraps others; its ``__torch_dispatch__`` copies those."""
        device = HOST if target < 0 else self.devices[target]
        operator: Callable[..., torch.Tensor] = torch.ops.aten._to_copy
        copy = functools.partial(operator, tensor, device=device, non_blocking=non_blocking)
        mode = self.thread_state.mode
        if mode is None:
            return copy()
        mode.placement, before = target, mode.placement
        try:
            return copy()
        finally:
            mode.placement = before

    def record_copy(
        self,
        source: int,
        target: int,
        call: str,
        tensor: torch.Tensor,
        non_blocking: bool,
        into: torch.Tensor | None = None,
    ) -> None:
        """Log the copy of `tensor` from device `source` to device `target`, perhaps `into` a given tensor."""
        if source == target:
            return
        nbytes = tensor.numel() * tensor.element_size()
        kind = BETWEEN if source >= 0 and target >= 0 else TO_DEVICE if target >= 0 else TO_HOST
        if (capture := self.capture_here()) is not None:
            on_host = tensor if source < 0 else into  # None: PyTorch makes it, pinned if non-blocking
            pinned = non_blocking if on_host is None else self.ledger.is_pinned(on_host)
            if into is not None and not (tensor.shape == into.shape and tensor.is_contiguous()):
                pinned = False  # it goes through unpinned memory
            capture.copy(kind, nbytes, non_blocking, pinned)
        elif kind is BETWEEN:
            self.record(kind, call, nbytes, waits=False)
        elif kind is TO_DEVICE:
            waits = not (non_blocking and self.ledger.is_pinned(tensor))
            self.record(kind, call, nbytes, waits, tolerated=non_blocking)
        else:
            self.record(kind, call, nbytes, waits=not non_blocking)

    def record(
        self, kind: str, call: str, nbytes: int = 0, waits: bool = True, tolerated: bool = False
    ) -> None:
        """Log one copy or wait, unless it is part of one that is logged; refuse a wait in a capture."""
        if waits and (capture := self.capture_here()) is not None:
            capture.refuse_wait()
        if not self.thread_state.quiet:
            self.log.record(kind, call, nbytes, waits, tolerated)


class DeviceGenerator(torch.Generator):
    """A CPU generator that says it belongs to a CUDA device."""

    gpu: PracticeGPU
    index = 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The simulated device."""
        return torch.device("cuda", self.index)

    def manual_seed(self, seed: int) -> torch.Generator:
        """Seed it; during the capture of a CUDA graph, CUDA refuses any but the present seed."""
        if self.gpu.capture_here() is None:
            return super().manual_seed(seed)
        if seed != self.initial_seed():
            raise errors.seeded_in_capture()
        return self

    def set_state(self, new_state: torch.Tensor) -> torch.Generator:
        """Set the state; not during the capture of a CUDA graph, whose replays would not set it."""
        if self.gpu.capture_here() is not None:
            raise errors.not_simulated("setting a generator's state while a CUDA graph is captured")
        return super().set_state(new_state)


class Bypass:
    """Lets this thread's operators bypass its operator mode."""

    def __init__(self, mode: OperatorMode | None) -> None:
        self._mode = mode
        self._key = keys.passed_by()

    def __enter__(self) -> None:
        self._key.__enter__()
        if self._mode is not None:
            self._before, self._mode.asleep = self._mode.asleep, True

    def __exit__(self, *_: object) -> None:
        self._key.__exit__(None, None, None)
        if self._mode is not None:
            self._mode.asleep = self._before


def as_device(device: Any) -> torch.device:
    """Read a device the way ``torch.cuda`` functions do: a number is a CUDA device."""
    if isinstance(device, torch.device):
        return device
    if isinstance(device, int):
        return torch.device("cuda", device)
    return torch.device(device)
