"""Replace attributes of modules and classes, and restore every one of them."""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from torch.overrides import handle_torch_function, has_torch_function

Handler = Callable[..., Any]
"""Called with the practice GPU, what it replaces, and the arguments."""

_ABSENT = object()


class Patches:
    """Replacements: nothing changes before :meth:`apply`, and :meth:`undo` restores everything.

    Names that the owner does not have are skipped unless they are new on purpose;
    :mod:`practice_gpu.requirements` has already checked the names that the practice GPU needs.
    """

    def __init__(self, gpu: Any = None) -> None:
        self._gpu = gpu
        self._planned: list[tuple[Any, str, Any]] = []
        self._done: list[tuple[Any, str, Any]] = []
        self._wrapped: dict[tuple[int, str], Any] = {}
        self._lock = threading.RLock()
        self._wanted = False
        self._suspensions = 0

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Plan to set ``owner.name``, if the owner has that name (perhaps from a base class)."""
        if hasattr(owner, name):
            self._planned.append((owner, name, value))

    def add(self, owner: Any, name: str, value: Any) -> None:
        """Plan to set ``owner.name``, if the owner has no such name."""
        if not hasattr(owner, name):
            self._planned.append((owner, name, value))

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Plan to set ``owner.name``, whether or not the owner has it: PyTorch's builds differ in some."""
        self._planned.append((owner, name, value))

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Plan to set ``owner.name`` to ``make(its present value)``; a second call wraps the first."""
        if hasattr(owner, name):
            current = self._wrapped.get((id(owner), name), getattr(owner, name))
            value = self._wrapped[id(owner), name] = make(current)
            self._planned.append((owner, name, value))

    def handle(self, owner: Any, name: str, handler: Handler) -> None:
        """Plan to have ``handler(gpu, original, …)`` called instead of ``owner.name``."""
        self.wrap(owner, name, lambda original: _bound(self._gpu, handler, original))

    def follow(self) -> None:
        """Plan the same replacements in other modules that imported a name (``from torch import zeros``).

        PyTorch's own modules are left alone: they call through :mod:`torch`.
        """
        known = {}
        for owner, name, value in self._planned:
            original = vars(owner).get(name)
            if isinstance(owner, ModuleType) and callable(original):
                known[id(original)] = value
        self._planned += _holding(known)

    def release(self) -> None:
        """Restore PyTorch's functions in modules that were imported since and hold a replacement."""
        known: dict[int, Any] = {}
        for owner, name, value in self._planned:
            original = vars(owner).get(name)
            if isinstance(owner, ModuleType) and callable(original) and callable(value):
                known.setdefault(id(value), original)
        for module, attribute, original in _holding(known):
            setattr(module, attribute, original)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Undo all replacements for a while, in all threads; this thread's operators are not intercepted.

        They stay undone if :meth:`undo` is called before the end.
        """
        with self._lock:
            self._suspensions += 1
            self._adjust()
        try:
            with self._gpu.let_pass():
                yield
        finally:
            with self._lock:
                self._suspensions -= 1
                self._adjust()

    def apply(self) -> None:
        """Make all planned replacements, or none if one of them fails."""
        with self._lock:
            self._wanted = True
            self._adjust()

    def undo(self) -> None:
        """Restore everything, in reverse order."""
        with self._lock:
            self._wanted = False
            self._adjust()

    def _adjust(self) -> None:
        """Make the replacements if they are wanted and not suspended, else restore everything."""
        if not self._wanted or self._suspensions:
            self._put_back()
        elif not self._done:
            try:
                for owner, name, value in self._planned:
                    old = vars(owner).get(name, _ABSENT)
                    setattr(owner, name, value)
                    self._done.append((owner, name, old))
            except BaseException:
                self._wanted = False
                self._put_back()
                raise

    def _put_back(self) -> None:
        while self._done:
            owner, name, old = self._done.pop()
            if old is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


def _holding(known: dict[int, Any]) -> list[tuple[ModuleType, str, Any]]:
    """Return the attributes of other packages' modules that hold a `known` object, with the replacement."""
    found = []
    for name, module in list(sys.modules.items()):
        theirs = not f"{name}.".startswith(("torch.", "practice_gpu."))
        if theirs and isinstance(module, ModuleType):
            held = list(vars(module).items())
            found += [(module, key, known[id(value)]) for key, value in held if id(value) in known]
    return found


def _bound(gpu: Any, handler: Handler, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        try:
            return handler(gpu, original, *args, **kwargs)
        except TypeError:
            if not has_torch_function(args):
                raise
            # a library that was imported since compares with this function, not with the original
            return handle_torch_function(replacement, args, *args, **kwargs)

    _REPLACED[replacement] = original_of(original)
    return replacement


_REPLACED: "WeakKeyDictionary[Callable[..., Any], Callable[..., Any]]" = WeakKeyDictionary()
"""The original of each function that calls a handler."""


def original_of(value: Any) -> Any:
    """Return the PyTorch function that `value` replaces; `value` itself if it is not one of ours."""
    return _REPLACED.get(value, value) if isinstance(value, FunctionType) else value
