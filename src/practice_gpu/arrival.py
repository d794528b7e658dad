"""The practice GPU comes with PyTorch: it starts when any module imports PyTorch, and not before.

This serves processes whose environment asks for it (:mod:`practice_gpu.processes.environment`), and whole
runs of pytest. Python runs this file at the start of every such process, so it imports little, and nothing
from the package.
"""

import os
import sys

TYPE_CHECKING = False  # typing takes time
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
_WATCHED = "PRACTICE_GPU_WATCHED"
"""The run of torchrun whose end a process watches for; the processes that it starts do not watch."""
_LOOK = 0.5
"""Seconds between two checks that torchrun still runs."""
_PATIENCE = 20
"""Seconds that a process has to end after torchrun has ended."""
_UNUSED = (
    'Practice GPU: no tensor was ever on it. A script has to move its model and its batches, .to("cuda")'
)
_here: "list[Any]" = []
"""What waits for PyTorch in this process, or the practice GPU that has started with it."""


def start_with_torch(text: str) -> bool:
    """Start a practice GPU as soon as PyTorch is imported; return False if one waits or runs already.

    `text` has the settings, as :func:`practice_gpu.processes.environment.settings` writes them.
    """
    if _here:
        return False
    run = os.environ.get("TORCHELASTIC_RUN_ID")  # torchrun has started this process, or one above it
    if run and os.environ.get(_WATCHED) != run:
        os.environ[_WATCHED] = run
        _end_with_parent()
    if "torch" in sys.modules:
        _start(text)
    else:
        # the program may have a file torch.py
        waiting = _AfterImport("torch", lambda: _start(text) if "torch._C" in sys.modules else None)
        sys.meta_path.insert(0, waiting)
        _here.append(waiting)
    return True


def _end_with_parent() -> None:
    """End this process soon after its parent, torchrun, has ended.

    A torchrun that is killed leaves processes that wait for one another forever.
    """
    import signal
    import threading
    import time

    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os.kill(os.getpid(), signal.SIGTERM)  # it may save something first
        time.sleep(_PATIENCE)
        os._exit(1)

    threading.Thread(target=watch, name="the end of torchrun", daemon=True).start()


def end() -> None:
    """End what :func:`start_with_torch` started: the wait for PyTorch, or the practice GPU."""
    while _here:
        _here.pop().__exit__(None, None, None)


def running() -> "Any":
    """Return the practice GPU that is open in this process, however it was opened; import nothing."""
    interface = sys.modules.get("practice_gpu.interface")
    return interface._open[-1].gpu if interface is not None and interface._open else None


def _start(text: str) -> None:
    import json

    sys.path.insert(0, _ROOT)  # for a moment: the program may not have the package on its path
    try:
        from practice_gpu.processes.environment import reach_no_other_processes
    finally:
        sys.path.remove(_ROOT)
    from practice_gpu.interface import practice_gpu

    options = json.loads(text)
    report = options.pop("report")
    context = practice_gpu(**options)
    gpu = context._enter(stacklevel=5)  # the line that imports PyTorch
    _here[:] = [context]
    if not gpu.simulated:
        reach_no_other_processes()  # a real GPU is there for them as well
    if report is not None:
        _report_at_the_end(gpu, report)


def _report_at_the_end(gpu: "Any", whole: bool) -> None:
    import atexit

    process = os.getpid()

    def report() -> None:
        if os.getpid() != process:  # it was forked
            return
        if whole:
            print(gpu.report(), file=sys.stderr)
        if _nobody_used(gpu):
            print(_UNUSED, file=sys.stderr)

    atexit.register(report)


def _nobody_used(gpu: "Any") -> bool:
    """Return whether to say that no tensor was on the GPU: only on the first rank, and not after an error."""
    failed, rank = hasattr(sys, "last_type"), os.environ.get("LOCAL_RANK", "0")
    return gpu.simulated and not (gpu.was_used or gpu.has_followers or failed or rank != "0")


class _AfterImport:
    """Waits in ``sys.meta_path`` for a module, and calls a function once, after its execution.

    If the function fails, so does the import.
    """

    def __init__(self, name: str, call: "Callable[[], None]") -> None:
        self._name = name
        self._call = call

    def __exit__(self, *_: object) -> None:
        """Stop waiting."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return what the other finders find, with the call after its execution; None for other modules."""
        if fullname != self._name:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next(filter(None, (each.find_spec(fullname, path, target) for each in others)), None)
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: "Any") -> None:
        execute = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            vars(loader).pop("exec_module", None)
            execute(module)
            if self in sys.meta_path:
                self.__exit__()
                self._call()

        loader.exec_module = exec_module
