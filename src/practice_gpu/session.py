"""One practice GPU from beginning to end: everything that is installed for it, and removed."""

import atexit
import functools
import sys
import threading
from concurrent.futures.thread import _WorkItem
from contextlib import ExitStack
from typing import Any
from weakref import WeakSet

import torch
from torch.utils import _device as default_device
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from practice_gpu import tracebacks
from practice_gpu.device import generators, streams
from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.graphs import objects
from practice_gpu.operators import dispatch
from practice_gpu.operators.dispatch import Operators
from practice_gpu.patching import absent
from practice_gpu.patching.imports import UnpatchedImports
from practice_gpu.patching.patches import Patches
from practice_gpu.processes import environment, process_groups, sharing
from practice_gpu.surface import (
    amp,
    batch_norm,
    compilers,
    cuda,
    factories,
    functions,
    libraries,
    parallel,
    storages,
    tensors,
)

_UNSET = object()


class Visit:
    """A thread's use of a practice GPU, from when it first opens one to when it last closes it.

    ``undo`` restores the thread's state.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.count = 0
        self.undo = ExitStack()


class Session:
    """One practice GPU and everything that is replaced for it, from :meth:`open` to :meth:`close`."""

    def __init__(self, capacity: int, count: int) -> None:
        self.is_open = False
        self.gpu = PracticeGPU(capacity, count)
        self.users = 0
        """How many times it is open now, in all threads."""
        self._visits = threading.local()
        self._modes: WeakSet[Operators] = WeakSet()
        self._patches = Patches(self.gpu)
        absent.add_patches(self._patches)
        surface = amp, compilers, cuda, factories, functions, libraries, parallel, storages, batch_norm
        for module in (*surface, tensors, dispatch, generators, streams, objects, process_groups):
            module.add_patches(self._patches, self.gpu)
        self._patches.follow()
        tracebacks.add_patches(self._patches)
        for other_processes in (environment, sharing):
            other_processes.add_patches(self._patches, self.gpu)
        for work in (threading.Thread, _WorkItem):
            self._patches.wrap(work, "run", self._watched)
        self.gpu.watch_thread = self._watch_thread

    def open(self) -> None:
        """Replace everything, or nothing."""
        with ExitStack() as undo:
            _fill_tables()
            undo.enter_context(environment.reaching_other_processes(self.gpu.capacity, self.gpu.count))
            undo.callback(self._patches.release)
            self._patches.apply()
            undo.callback(self._patches.undo)
            imports = UnpatchedImports(self._patches.suspended)
            sys.meta_path.insert(0, imports)
            undo.callback(sys.meta_path.remove, imports)
            undo.callback(self._end_modes)
            Operators.of_no_thread = self._new_mode()
            # If this is still open when Python exits, objects are finalised later, when PyTorch can no longer
            # call a mode, for which it would have to import something.
            atexit.register(self._end_modes)
            undo.callback(atexit.unregister, self._end_modes)
            self._undo = undo.pop_all()
        self.is_open = True

    def close(self) -> None:
        """Restore everything."""
        self.is_open = False
        self._undo.close()

    def enter(self) -> Visit:
        """Count this thread as a user, and intercept its operators; pass the result to :meth:`leave`."""
        visit: Visit | None = getattr(self._visits, "current", None)
        if visit is None:
            visit = Visit()
            with visit.undo as undo:
                undo.callback(_restore_default_device, _default_device())
                undo.callback(
                    _restore_autocast, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
                )
                if self.gpu.thread_state.mode is None:
                    self._open_mode()
                    undo.callback(self._close_mode)
                visit.undo = undo.pop_all()
            self._visits.current = visit
        visit.count += 1
        self.users += 1
        return visit

    def leave(self, visit: Visit) -> None:
        """Count one user less, and restore the thread's state with its last."""
        visit.count -= 1
        self.users -= 1
        if not visit.count and visit.thread == threading.get_ident():
            del self._visits.current
            visit.undo.close()

    def was_entered_here(self) -> bool:
        """Return whether this thread is a user."""
        return hasattr(self._visits, "current")

    def _watched(self, run: Any) -> Any:
        """Return `run` with an operator mode around it, unless the thread has one."""

        @functools.wraps(run)
        def run_with_mode(work: Any, *args: Any) -> Any:
            if not self.is_open or self.gpu.thread_state.mode is not None:
                return run(work, *args)
            self._open_mode()
            try:
                return run(work, *args)
            finally:
                self._close_mode()

        return run_with_mode

    def _watch_thread(self) -> None:
        """Install an operator mode in this older thread, unless it has other modes."""
        theirs = [mode for mode in _get_current_dispatch_mode_stack() if not isinstance(mode, Operators)]
        if self.is_open and not theirs:
            self._open_mode()

    def _new_mode(self) -> Operators:
        mode = Operators(self.gpu)
        self._modes.add(mode)
        return mode

    def _open_mode(self) -> None:
        mode = self.gpu.thread_state.mode = self._new_mode()
        mode.open()

    def _close_mode(self) -> None:
        """End this thread's mode."""
        mode, self.gpu.thread_state.mode = self.gpu.thread_state.mode, None
        if isinstance(mode, Operators):
            mode.close()

    def _end_modes(self) -> None:
        """End this thread's mode; those in other threads intercept nothing and leave at the next operator."""
        Operators.of_no_thread = None
        for each in list(self._modes):
            each.end()
        if isinstance(mode := self.gpu.thread_state.mode, Operators):
            mode.close()


def _fill_tables() -> None:
    """Make PyTorch fill its tables of functions now; later it would fill them with ours."""
    default_device._device_constructors()
    torch.overrides.get_default_nowrap_functions()


def _restore_autocast(enabled: bool, dtype: torch.dtype) -> None:
    """Restore the CPU's autocast, which an ``autocast("cuda")`` that is still open has changed."""
    torch.set_autocast_enabled("cpu", enabled)
    torch.set_autocast_dtype("cpu", dtype)


def _default_device() -> Any:
    """Return what ``torch.set_default_device`` has set in this thread, or ``_UNSET``."""
    return vars(torch._GLOBAL_DEVICE_CONTEXT).get("device_context", _UNSET)


def _restore_default_device(before: Any) -> None:
    if _default_device() is before:
        return
    torch.set_default_device(None if before is _UNSET or before is None else before.device)
    if before is _UNSET:
        del torch._GLOBAL_DEVICE_CONTEXT.device_context
