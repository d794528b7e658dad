"""The environment in which Python programs have simulated GPUs, as every process sees a machine's real ones.

An environment variable has the settings. Python reads it when it starts, in ``startup/sitecustomize.py``,
whose folder comes first in PYTHONPATH. Processes that multiprocessing starts get the settings with their
data, since a fork server may be older than the practice GPU. Each process has separate memory and a separate
log. See :mod:`practice_gpu.arrival` for what happens in such a process.
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
    """Return the text of the environment variable.

    If `report` is True, the process prints the table of copies and waits at its end; if False, only a line if
    nothing was on the GPU; if None, nothing.
    """
    return json.dumps({"memory": memory, "count": count, "force": force, "report": report})


def with_practice_gpu(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python programs get a practice GPU with these settings."""
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
    """Give programs that this process starts simulated GPUs like these."""
    before = {name: os.environ.get(name) for name in (VARIABLE, _PATH)}
    during = with_practice_gpu(settings(capacity, count, force=True), os.environ)
    os.environ.update({name: during[name] for name in before})
    try:
        yield
    finally:
        for name, value in before.items():
            if os.environ.get(name) != during[name]:  # the program has changed it
                if name == _PATH and name in os.environ:
                    _without_our_folder()
                continue
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def reach_no_other_processes() -> None:
    """Remove from this process's environment what gives a practice GPU to programs that it starts."""
    os.environ.pop(VARIABLE, None)
    _without_our_folder()


def _without_our_folder() -> None:
    """Remove our folder from this process's PYTHONPATH."""
    kept = without_practice_gpu(os.environ).get(_PATH)
    if kept is None:
        os.environ.pop(_PATH, None)
    else:
        os.environ[_PATH] = kept


def add_patches(patches: Any, gpu: Any) -> None:
    """Plan that multiprocessing's data for a new process starts a practice GPU there."""
    from multiprocessing import spawn  # PyTorch has already imported it

    text = settings(gpu.capacity, gpu.count, force=True)

    def bringing(original: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
        def preparation(name: str) -> dict[str, Any]:
            gpu.has_followers = True
            return {"practice GPU": _Brought(text), **original(name)}

        return preparation

    patches.wrap(spawn, "get_preparation_data", bringing)


class _Brought:
    """Does what ``sitecustomize`` does, when it is unpickled in a new process before the program's import."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return runpy.run_path, (str(_FILE), {"settings": self._text})
