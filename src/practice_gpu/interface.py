"""The ways in and out: a context manager and decorator, and two functions for notebooks and pages.

Modules that need private parts of PyTorch are imported only after :mod:`practice_gpu.requirements` has found
those parts.
"""

import functools
import inspect
import threading
import warnings
from collections.abc import Callable
from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from practice_gpu import errors, requirements, tracebacks
from practice_gpu.device.allocator import Memory
from practice_gpu.device.events import Event
from practice_gpu.sizes import check_count, parse_size

if TYPE_CHECKING:
    from practice_gpu.device.gpu import PracticeGPU
    from practice_gpu.session import Session, Visit

_Function = TypeVar("_Function", bound=Callable[..., Any])
_open: "list[Session]" = []
"""The open session, if there is one."""
_lock = threading.RLock()
"""Held while a session is opened or closed, and while its users are counted."""


class PracticeWarning(UserWarning):
    """The practice GPU has stepped aside."""


class RealGPU:
    """What :class:`practice_gpu` yields when it steps aside for a real GPU: same interface, no simulation.

    Attributes
    ----------
    simulated : bool
        False.
    name : str
        The GPU's name.
    events : tuple
        Empty: nothing is logged on a real GPU.
    """

    simulated = False
    events: tuple[Event, ...] = ()

    def __init__(self) -> None:
        self.name: str = torch.cuda.get_device_name()
        self.count: int = torch.cuda.device_count()

    def report(self) -> str:
        """Say that nothing was logged."""
        return f"{self.name} is a real GPU: the practice GPU stepped aside and logged nothing."

    def clear_events(self) -> None:
        """Do nothing."""

    def memory(self, device: Any = None) -> Memory:
        """Return the real GPU's memory, in bytes."""
        stats = torch.cuda.memory_stats(device)
        return Memory(
            torch.cuda.memory_allocated(device),
            torch.cuda.max_memory_allocated(device),
            torch.cuda.memory_reserved(device),
            torch.cuda.mem_get_info(device)[1],
            stats.get("allocation.all.allocated", 0),
        )


class practice_gpu(ContextDecorator):
    """Simulate CUDA GPUs: CUDA code runs on the CPU, really trains, and fails with CUDA's messages.

    Parameters
    ----------
    memory : str or int, default "8 GiB"
        Memory of each simulated device: bytes, or a text such as ``"512 MiB"``.
    count : int, default 1
        Number of simulated devices.
    force : bool, default False
        Simulate although a real GPU is present. Otherwise a warning says that the real one is used.

    Yields
    ------
    PracticeGPU or RealGPU
        It has ``report()``, ``events`` and ``memory()``; ``simulated`` says which of the two it is.

    Raises
    ------
    ValueError, TypeError
        If `memory` or `count` is not understood.
    PracticeError
        If this version of PyTorch lacks something that the simulation needs, or if another thread has
        opened a practice GPU with other settings.

    Notes
    -----
    Not simulated: time, asynchrony, CUDA's random numbers, fragmentation of memory. A CUDA graph is recorded
    and replayed, but no faster than its operators run; not simulated are other threads' work during a
    capture, streams that do not join again, and a replay inside a capture.
    A process has one practice GPU for all its threads, until the last thread that opened it closes it. Inside
    another practice GPU of the same thread the outer one stays, and the arguments are ignored.

    Examples
    --------
    >>> import torch
    >>> from practice_gpu import practice_gpu
    >>> with practice_gpu(force=True) as gpu:
    ...     x = torch.ones(3, device="cuda")
    ...     print(x.device, gpu.memory().allocated)
    cuda:0 512
    """

    def __init__(self, memory: str | int = "8 GiB", count: int = 1, force: bool = False) -> None:
        check_count(count)
        self._arguments = {"memory": memory, "count": count, "force": force}
        self._capacity = parse_size(memory)
        self._entered: list[tuple[Session, Visit] | None] = []

    def _recreate_cm(self) -> "practice_gpu":
        return practice_gpu(**self._arguments)  # type: ignore[arg-type]

    def __call__(self, function: _Function) -> _Function:
        """Decorate a function, generator or coroutine: it runs with a practice GPU from beginning to end.

        A class is refused, since its methods would run without one.
        """
        if isinstance(function, type):
            raise TypeError(
                f"practice_gpu() decorates functions, and {function.__name__} is a class: decorate its "
                "methods, or open it in the set-up of a test case"
            )
        wrapper: Any
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._recreate_cm():
                    return await function(*args, **kwargs)

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._recreate_cm():
                    return (yield from function(*args, **kwargs))

        elif inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._recreate_cm():
                    async for value in function(*args, **kwargs):
                        yield value

        else:
            wrapper = super().__call__(function)
        return wrapper  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return "practice_gpu({})".format(", ".join(f"{k}={v!r}" for k, v in self._arguments.items()))

    def is_like(self, gpu: "PracticeGPU") -> bool:
        """Return whether a practice GPU has this one's memory and count."""
        return (gpu.capacity, gpu.count) == (self._capacity, self._arguments["count"])

    def __enter__(self) -> "PracticeGPU | RealGPU":
        return self._enter(stacklevel=3)

    def _enter(self, stacklevel: int) -> "PracticeGPU | RealGPU":
        """Open it; `stacklevel` is that of :func:`warnings.warn`."""
        with _lock:
            if not _open and torch.cuda.is_available() and not self._arguments["force"]:
                real = RealGPU()
                message = (
                    f"{real.name} is present: the practice GPU steps aside (force=True simulates anyway)"
                )
                warnings.warn(message, PracticeWarning, stacklevel=stacklevel)
                self._entered.append(None)
                return real
            session = _open[-1] if _open else self._opened()
            if not (session.was_entered_here() or self.is_like(session.gpu)):
                raise errors.other_settings(session.gpu.capacity, session.gpu.count, self)
            try:
                self._entered.append((session, session.enter()))
            finally:
                _close_unused(session)
            return session.gpu

    def _opened(self) -> "Session":
        requirements.check()
        from practice_gpu.session import Session

        session = Session(self._capacity, int(self._arguments["count"]))
        session.open()
        _open.append(session)
        return session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            if error is not None and _open:
                tracebacks.trim(error)
            entered = self._take_out()
            if entered is not None:
                session, visit = entered
                try:
                    session.leave(visit)
                finally:
                    _close_unused(session)

    def _take_out(self) -> "tuple[Session, Visit] | None":
        """Remove and return what this thread entered last; one object may be open in several threads."""
        here = threading.get_ident()
        for position in reversed(range(len(self._entered))):
            entered = self._entered[position]
            if entered is None or entered[1].thread == here:
                return self._entered.pop(position)
        return self._entered.pop()


def _close_unused(session: "Session") -> None:
    """Close a session that has no users any more."""
    if not session.users and session in _open:
        _open.remove(session)
        session.close()


_started: list[practice_gpu] = []


def start(memory: str | int = "8 GiB", count: int = 1, force: bool = False) -> "PracticeGPU | RealGPU":
    """Start a practice GPU until :func:`stop`, for notebooks, whose cells cannot share a ``with`` statement.

    Parameters
    ----------
    memory, count, force
        As in :class:`practice_gpu`.

    Returns
    -------
    PracticeGPU or RealGPU
        The one that is running already, if there is one.

    Examples
    --------
    >>> import practice_gpu
    >>> gpu = practice_gpu.start(force=True)
    >>> gpu.simulated
    True
    >>> practice_gpu.stop()
    """
    context = practice_gpu(memory, count, force)
    gpu = context._enter(stacklevel=3)
    _started.append(context)
    return gpu


def stop() -> None:
    """Stop what :func:`start` started, if anything."""
    while _started:
        _started.pop().__exit__(None, None, None)
