"""Call listeners as a program uses PyTorch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gpulesson.data import Batches

_PATCHED: dict[str, tuple[tuple[Any, str], ...]] = {
    "new_module": ((nn.Module, "__init__"), (nn.Module, "__setstate__")),
    "module": ((nn.Module, "__call__"),),
    "parallel": ((nn.DataParallel, "__init__"),),
    "new_optimizer": ((Optimizer, "__init__"),),
    "zero_grad": ((Optimizer, "zero_grad"), (nn.Module, "zero_grad")),
    "backward": ((torch.autograd, "backward"),),
    "grad": ((torch.autograd, "grad"),),
    "new_loader": ((DataLoader, "__init__"),),
    "epoch": ((DataLoader, "__iter__"),),
    "batch": ((_BaseDataLoaderIter, "__next__"),),
    "row": ((TensorDataset, "__getitem__"),),
    "load": ((torch, "load"),),
    "from_numpy": ((torch, "from_numpy"),),
}
_MOMENTS = dict.fromkeys(_PATCHED, ("before", "after", "end")) | {
    "step": ("before", "after"),
    "cut": ("after",),
    "function": ("after", "end"),
}
"""Events, and when listeners are called."""


@dataclass
class Call:
    """One call of PyTorch."""

    args: Sequence[Any]  # a method's object comes first
    kwargs: dict[str, Any]
    name: str = ""  # of a function
    result: Any = None
    error: Exception | None = None  # that a function raised; of others it is not known

    @property
    def first(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else None


class Hooks:
    """While open, PyTorch calls the listeners' methods ``before_EVENT``, ``after_EVENT``, ``end_EVENT``.

    They get a :class:`Call`: before it; at its end, also if it raises an error; and after it, if it raises
    none, when all listeners have been called at its end. The first listener is called first. PyTorch is
    patched only for events that a listener has a method for.

    ============================  ====================================================================
    ``new_module``, ``module``    a module is made or copied; one is called
    ``parallel``                  a ``DataParallel`` is made
    ``new_optimizer``             an optimizer is made
    ``step``, ``zero_grad``       an optimizer steps; gradients are cleared, by it or by a module
    ``backward``, ``grad``        of :mod:`torch.autograd`
    ``new_loader``, ``epoch``     a ``DataLoader`` is made; it begins an epoch
    ``batch``, ``cut``, ``row``   the next batch of a loader's iterator; one of ``Batches``; a row of a
                                  ``TensorDataset``
    ``load``, ``from_numpy``      of :mod:`torch`
    ``function``                  any function or method that takes tensors; see ``Call.name``
    ============================  ====================================================================

    Raises
    ------
    AttributeError
        If a method is named like these, but would never be called: a step has no end, there is nothing before
        a function, and a cut only has an after.

    Examples
    --------
    >>> class Count:
    ...     modules = 0
    ...
    ...     def after_module(self, call):
    ...         self.modules += 1
    >>> with Hooks(count := Count()):
    ...     _ = torch.nn.Linear(2, 2)(torch.ones(1, 2))
    >>> count.modules
    1
    """

    def __init__(self, *listeners: Any) -> None:
        self._listeners, self._undo = listeners, ExitStack()
        for listener in listeners:
            for name in dir(listener):
                moment, _, event = name.partition("_")
                if moment in ("before", "after", "end") and moment not in _MOMENTS.get(event, ()):
                    raise AttributeError(f"{type(listener).__name__}.{name} would never be called")

    def __enter__(self) -> Hooks:
        with ExitStack() as undo:
            for event, functions in _PATCHED.items():
                before, after, end = self._methods(event)
                for owner, name in functions if before or after or end else ():
                    wrapped = _wrapped(getattr(owner, name), before, after, end)
                    undo.enter_context(mock.patch.object(owner, name, wrapped))
            before, after, _ = self._methods("step")
            if before:
                hook = optimizers.register_optimizer_step_pre_hook(_step(before))
                undo.callback(hook.remove)
            if after:
                hook = optimizers.register_optimizer_step_post_hook(_step(after))
                undo.callback(hook.remove)
            if after := self._methods("cut")[1]:
                undo.enter_context(mock.patch.object(Batches, "__iter__", _cutting(Batches.__iter__, after)))
            _, after, end = self._methods("function")
            if after or end:
                undo.enter_context(_Functions(after, end))
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def _methods(self, event: str) -> list[list[_Method]]:
        """Return the listeners' methods for an event: before it, after it, at its end."""
        names = f"before_{event}", f"after_{event}", f"end_{event}"
        return [[getattr(each, name) for each in self._listeners if hasattr(each, name)] for name in names]


_Method = Callable[[Call], None]


def _wrapped(
    function: Callable[..., Any], before: list[_Method], after: list[_Method], end: list[_Method]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = Call(args, kwargs)
        try:
            _notify(before, call)
            call.result = function(*args, **kwargs)
        finally:
            _notify(end, call)
        _notify(after, call)
        return call.result

    return wrapped


def _step(methods: list[_Method]) -> Callable[..., None]:
    def step(_: Any, args: Any, kwargs: Any) -> None:
        _notify(methods, Call(args, kwargs))

    return step


def _cutting(cut: Callable[[Any], Iterator[Any]], after: list[_Method]) -> Callable[..., Iterator[Any]]:
    def cutting(batches: Any) -> Iterator[Any]:
        for batch in cut(batches):
            _notify(after, Call((batches,), {}, result=batch))
            yield batch

    return cutting


def caller() -> FrameType:
    """Return the frame of the call that a listener was called for."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename != __file__:
        frame = frame.f_back
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    result: FrameType = frame
    return result


def _notify(methods: list[_Method], call: Call) -> None:
    for method in methods:
        method(call)


class _Functions(TorchFunctionMode):
    """Calls listeners for functions that take tensors."""

    def __init__(self, after: list[_Method], end: list[_Method]) -> None:
        super().__init__()
        self._after, self._end = after, end

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        call = Call(args, kwargs or {}, getattr(func, "__name__", ""))
        try:
            call.result = func(*args, **call.kwargs)
        except Exception as error:
            call.error = error
            raise
        finally:
            _notify(self._end, call)
        _notify(self._after, call)
        return call.result
