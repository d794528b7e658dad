"""Python runs this file when it starts in a process started by one with a practice GPU.

The module ``environment`` has put this folder into PYTHONPATH. The file uses nothing newer than Python 3.6,
since any Python may run it. It does not import the package, only the one file that waits for PyTorch.
"""

import importlib.util
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib takes time
_NAME = "practice_gpu.arrival"


def _wait_for_torch(settings: str) -> None:
    if _NAME not in sys.modules:
        path = os.path.join(os.path.dirname(_FOLDER), "arrival.py")  # noqa: PTH118, PTH120
        spec = importlib.util.spec_from_file_location(_NAME, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[_NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    sys.modules[_NAME].start_with_torch(settings)


def _run_the_one_in_our_way() -> None:
    """Run the sitecustomize that ours hides: Linux distributions have one."""
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


_settings = globals().get("settings") or os.environ.get("PRACTICE_GPU")
if _settings and sys.version_info >= (3, 10):
    _wait_for_torch(_settings)
if __name__ == "sitecustomize":
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    _run_the_one_in_our_way()
