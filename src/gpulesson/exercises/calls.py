"""Call a function of the learner's with inputs of the check's own, and say what became of it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpulesson.exercises.trace import Site, Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer


beside = ""
"""The folder of the learner's file, whose modules it may import; set by `child`."""


class Failed(Exception):
    """A call failed; `trace.facts` says how."""


def find(trace: Trace, space: dict[str, Any], name: str, *arguments: Any) -> Callable[..., Any]:
    """Return the learner's function, and note in ``trace.facts["called"]`` that it is there.

    Parameters
    ----------
    trace : Trace
    space : dict
        The program's variables.
    name : str
        Of the function, or of a class or an object that can be called like one.
    *arguments
        What it will be called with, to see whether it takes so many.

    Raises
    ------
    Failed
        There is none, it cannot be called, or not so; or it was not written in this file: the text of a
        solution was read, or a module beside it has a function of that very name.
    """
    function: Any = space.get(name)
    if not callable(function):
        trace.facts["missing"] = [name, type(function).__name__ if name in space else ""]
        raise Failed(name)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C
        signature = None
    if signature is not None:
        try:
            signature.bind(*arguments)
        except TypeError as error:
            trace.facts["unfit"] = [name, f"{name}{signature}", str(error)]
            raise Failed(name) from None
    written = _written_in(function)
    if (written and not _own(written, trace)) or (written := _beside(name)):
        trace.facts["elsewhere"] = [name, Path(written).name]
        raise Failed(name)
    trace.facts["called"] = True
    found: Callable[..., Any] = function
    return found


def _written_in(function: Any) -> str:
    """Return the file of a function's code, below partials and decorators; an empty text for a class."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__code__") and not isinstance(function, type):
        function = getattr(function, "__func__", None) or type(function).__call__
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _own(file: str, trace: Trace) -> bool:
    from gpulesson.practice.events import is_library

    return file == trace.program or is_library(file) or file in map(_file, _modules_beside())


def _file(module: Any) -> str:
    return str(getattr(module, "__file__", None) or "")


def _modules_beside() -> list[Any]:
    """Return the modules beside the file that have been imported."""
    modules = [module for module in list(sys.modules.values()) if beside and _file(module)]
    return [module for module in modules if str(Path(_file(module)).parent) == beside]


def _beside(name: str) -> str:
    """Return the module beside the file that has a function of this name, and that it has imported."""
    own = (
        _file(module) for module in _modules_beside() if _written_in(vars(module).get(name)) == _file(module)
    )
    return next(own, "")


def call(
    trace: Trace, space: dict[str, Any], doing: str, function: Callable[..., Any], *arguments: Any
) -> Any:
    """Call a function of the learner's; return what it returns. What it prints is nobody's.

    Parameters
    ----------
    trace : Trace
        Its ``facts["fell"]`` is set where the function raises anything, ``SystemExit`` included.
    space : dict
        The program's variables.
    doing : str
        What the check does, for the message: ``"feed() with 300 images"``.
    function, *arguments
        What to call, and with what.

    Raises
    ------
    Failed
        It raised.
    """
    from gpulesson.exercises.watch.observer import error_seen

    try:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            return function(*arguments)
    except (Failed, KeyboardInterrupt):
        raise
    except BaseException as error:
        seen = error_seen(error, trace.program)
        if not seen.site.line:
            seen.site = _innermost(error)
        text = next(iter(seen.message.strip().splitlines()), "") or "(no message)"
        trace.facts["fell"] = [doing, f"{seen.type}: {text}", *seen.site]
        raise Failed(doing) from None


@contextlib.contextmanager
def seen_again(trace: Trace, observer: Observer) -> Iterator[None]:
    """Where the file itself trains nothing, take what is seen of a training in the calls inside.

    Also where a call fails.
    """
    try:
        yield
    finally:
        if not trace.steps:
            again, file = observer.trace(), trace.program
            places = {seen.made: seen for seen in reversed(again.optimizers)}  # the first of each line
            trace.optimizers = [seen for site, seen in places.items() if site.file == file]
            trace.losses = [loss for loss in again.losses if loss.site.file == file]
            trace.backwards, trace.backward_at = again.backwards, again.backward_at


def _innermost(error: BaseException) -> Site:
    """Return the last line that is no library's: that of a module next to the file."""
    from gpulesson.practice.events import is_library

    site, entry = Site(), error.__traceback__
    while entry is not None:
        file = entry.tb_frame.f_code.co_filename
        if not is_library(file):
            site = Site(file, entry.tb_lineno)
        entry = entry.tb_next
    return site
