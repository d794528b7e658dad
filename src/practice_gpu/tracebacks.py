"""Cut the practice GPU's frames out of a traceback, so that it ends where it would with CUDA."""

import bdb
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

from practice_gpu.device.events import is_ours, is_torch
from practice_gpu.patching.patches import Patches


def trim(error: BaseException) -> None:
    """Cut our frames out of the traceback of `error`, and of the errors that it came from, in place.

    PyTorch's frames below one of ours go as well: they show how the simulation works, not the user's program.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        current.__traceback__ = _trimmed(current.__traceback__)
        current = current.__cause__ or current.__context__


def _trimmed(entry: TracebackType | None) -> TracebackType | None:
    entries = []
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    kept: list[TracebackType] = []
    ours_above = False
    for position, entry in enumerate(entries):
        filename = entry.tb_frame.f_code.co_filename
        if is_ours(filename):
            ours_above = True
        elif ours_above and is_torch(filename) and not _user_code_below(entries[position:]):
            continue
        else:
            kept.append(entry)
    if not kept:
        return entries[0] if entries else None
    for upper, lower in zip(kept, [*kept[1:], None], strict=True):
        upper.tb_next = lower
    return kept[0]


def _user_code_below(entries: list[TracebackType]) -> bool:
    names = [entry.tb_frame.f_code.co_filename for entry in entries]
    return any(not is_ours(name) and not is_torch(name) for name in names)


def add_patches(patches: Patches) -> None:
    """Plan to trim errors where they are shown: by Python, a thread, a debugger, a notebook."""
    show, show_in_thread = sys.excepthook, threading.excepthook
    init, extract = traceback.TracebackException.__init__, traceback.extract_tb

    def excepthook(kind: type[BaseException], error: BaseException, entry: TracebackType | None) -> None:
        trim(error)
        show(kind, error, error.__traceback__)

    def trimming_init(
        self: Any, kind: Any, error: Any, entry: TracebackType | None, *args: Any, **kwargs: Any
    ) -> None:
        if isinstance(error, BaseException) and entry is error.__traceback__:
            trim(error)
            entry = error.__traceback__
        init(self, kind, error, entry, *args, **kwargs)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            trim(args.exc_value)
            trace = args.exc_value.__traceback__
            args = threading.ExceptHookArgs((args.exc_type, args.exc_value, trace, args.thread))
        show_in_thread(args)

    def in_notebook(showtraceback: Any) -> Any:
        def trimming(shell: Any, *args: Any, **kwargs: Any) -> Any:
            error = sys.exc_info()[1]
            if error is not None:
                trim(error)
            return showtraceback(shell, *args, **kwargs)

        return trimming

    def extract_tb(entry: TracebackType | None, limit: int | None = None) -> traceback.StackSummary:
        return extract(_trimmed(entry), limit)

    def in_debugger(get_stack: Any) -> Any:
        def trimming(debugger: Any, frame: Any, entry: TracebackType | None) -> Any:
            return get_stack(debugger, frame, _trimmed(entry))

        return trimming

    patches.set(sys, "excepthook", excepthook)
    patches.set(traceback, "extract_tb", extract_tb)
    patches.set(threading, "excepthook", in_thread)
    patches.set(traceback.TracebackException, "__init__", trimming_init)
    patches.wrap(bdb.Bdb, "get_stack", in_debugger)
    notebook = sys.modules.get("IPython.core.interactiveshell")
    if notebook is not None:
        patches.wrap(notebook.InteractiveShell, "showtraceback", in_notebook)
