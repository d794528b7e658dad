"""The environment in which Python programs have simulated GPUs: how other processes get to know of them.

So it is with CUDA: every process sees the machine's GPUs. A program finds the settings in an environment
variable; that Python looks at it when it starts is owed to ``startup/sitecustomize.py``, whose folder is put
first in PYTHONPATH. What multiprocessing starts gets them by hand: a fork server may be older than the
practice GPU. Memory and log are each process's own. What happens in such a process stands in
:mod:`practice_gpu.arrival`.
"""

import json
import os
import runpy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "PRACTICE_GPU"
_PATH = "PYTHONPATH"
_FILE = Path(__file__).absolute().parents[1] / "startup" / "sitecustomize.py"


def settings(memory: str | int, count: int, force: bool, report: bool | None = None) -> str:
    """Write settings as the environment variable has them.

    With `report` the process prints the table of copies and waits in the end; with False, of the command's
    own program, only that nothing was on the GPU, if so.
    """
    return json.dumps({"memory": memory, "count": count, "force": force, "report": report})


def with_practice_gpu(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python programs get the practice GPU of these settings."""
    before = without_practice_gpu(environment)
    paths = [str(_FILE.parent), before.get(_PATH, "")]
    return {**before, VARIABLE: text, _PATH: os.pathsep.join(filter(None, paths))}


def without_practice_gpu(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python programs get none."""
    kept = {name: value for name, value in environment.items() if name != VARIABLE}
    paths = environment.get(_PATH, "").split(os.pathsep)
    if str(_FILE.parent) in paths:
        kept[_PATH] = os.pathsep.join(path for path in paths if path != str(_FILE.parent))
    return {name: value for name, value in kept.items() if value or name != _PATH}


@contextmanager
def reaching_other_processes(capacity: int, count: int) -> Iterator[None]:
    """While it is open, programs that are started get simulated GPUs like these."""
    before = {name: os.environ.get(name) for name in (VARIABLE, _PATH)}
    during = with_practice_gpu(settings(capacity, count, force=True), os.environ)
    os.environ.update({name: during[name] for name in before})
    try:
        yield
    finally:
        for name, value in before.items():
            if os.environ.get(name) != during[name]:  # the program has set it to something of its own
                if name == _PATH and name in os.environ:
                    _without_our_folder()
                continue
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def reach_no_other_processes() -> None:
    """Undo in this process's environment what brings programs that it starts a practice GPU."""
    os.environ.pop(VARIABLE, None)
    _without_our_folder()


def _without_our_folder() -> None:
    """Take our folder out of this process's PYTHONPATH."""
    kept = without_practice_gpu(os.environ).get(_PATH)
    if kept is None:
        os.environ.pop(_PATH, None)
    else:
        os.environ[_PATH] = kept


def add_patches(patches: Any, gpu: Any) -> None:
    """Plan that what multiprocessing hands a new process brings the practice GPU along."""
    from multiprocessing import spawn  # PyTorch has imported it

    text = settings(gpu.capacity, gpu.count, force=True)

    def bringing(original: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
        def preparation(name: str) -> dict[str, Any]:
            gpu.has_followers = True
            return {"practice GPU": _Brought(text), **original(name)}

        return preparation

    patches.wrap(spawn, "get_preparation_data", bringing)


class _Brought:
    """Unpickled before a new process imports the program, it does there what ``sitecustomize`` does."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return runpy.run_path, (str(_FILE), {"settings": self._text})
