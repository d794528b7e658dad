"""What several test modules share."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import zlib
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# The models are tiny: a second thread would wait for the first, or for the other programs of a busy machine.
# Here, because PyTorch reads it when it is first imported; for the processes that tests start, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell starts in the background ignores Ctrl-C, and so does what it starts itself: tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# With pytest-xdist, a module is one worker's, which makes its fixtures once. The two modules that share an
# environment of its own for the course are one worker's together; the first of them builds the site for all.
# What takes longest comes first, so that no worker is left alone with it at the end; what else needs the site
# comes when it is built, for else a worker would wait.
TOGETHER = dict.fromkeys(("test_downloads", "test_course"), "the course")
WITH_THE_SITE = (
    "test_browser",
    "test_errors_page",
    "test_publishing",
    "test_site",
    "test_keyboard",
    "test_print",
)
WITH_THE_SITE += (
    "test_course_pdf",
    "test_lesson_outputs",
    "test_progress_script",
    "test_results",
    "test_figures",
)
WITH_THE_SITE += ("test_policy",)
MEANWHILE = ("test_contracts", "test_recordings", "test_autosave")
MEANWHILE += ("test_process_groups", "test_attempts", "test_styles", "test_freshness", "test_commands")
MEANWHILE += ("test_distributed_scripts", "test_oracle", "test_interface")
LONGEST = (*TOGETHER, *MEANWHILE, *WITH_THE_SITE)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Modules(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            return TOGETHER.get(Path(module).stem, module)

    config.option.loadscopereorder = False  # the order is that of the next function
    return Modules(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share",
        type=int,
        default=1,
        metavar="N",
        help="run one in N of the tests marked thorough, others for each commit",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (parts := config.option.share) > 1:
        git = [shutil.which("git") or "", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout if git[0] else ""
        left_out = {
            item
            for item in items
            if item.get_closest_marker("thorough")
            and (
                "real_site" in getattr(item, "fixturenames", ())  # builds the whole site once more
                or zlib.crc32(f"{commit}{item.nodeid}".encode()) % parts
            )
        }
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))
    if hasattr(config, "workerinput"):  # a worker of pytest-xdist
        ranks = {name: rank for rank, name in enumerate(dict.fromkeys(LONGEST))}
        items.sort(key=lambda item: ranks.get(item.path.stem, len(LONGEST)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt what is there by now from garbage collection, so that those of the tests are quick."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()  # or libraries find at the end that nothing of theirs was freed, and say so


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how long the fast tests took, and the slow ones, added up over the workers."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds["slow" if "slow" in report.keywords else "fast"] += report.duration
    terminalreporter.write_line(f"fast tests {seconds['fast']:.0f} s, slow tests {seconds['slow']:.0f} s")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if marker := item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA GPU, and torch finds none here")
        if marker.kwargs.get("real") and "simulated" in torch.cuda.get_device_name():
            pytest.skip("needs a real GPU, and this one is simulated")


@pytest.fixture(autouse=True)
def nobody_wishes_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPULESSON_DEVICE of whoever runs the tests must not decide their outcome."""
    monkeypatch.delenv("GPULESSON_DEVICE", raising=False)


@pytest.fixture(scope="session")
def warm():
    """The process that has imported PyTorch once, and forks; None where the system cannot have one."""
    from warm import warm_process

    with warm_process() as process:
        yield process


@pytest.fixture
def nothing_waits():
    """Wraps batches: between the first and the last the CPU may not wait for the GPU."""
    import torch

    class Watched:
        def __init__(self, batches) -> None:
            self.batches = batches

        def __iter__(self):
            for batch in self.batches:
                torch.cuda.set_sync_debug_mode("error")
                yield batch
                torch.cuda.set_sync_debug_mode("default")

    yield Watched
    torch.cuda.set_sync_debug_mode("default")  # also after a wait, which leaves the loop by an error


@pytest.fixture
def count_operators():
    """A function that runs another and counts the ATen operators by name, backward and optimizer included."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.counts: Counter[str] = Counter()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.counts[str(func.overloadpacket)] += 1
            return func(*args, **(kwargs or {}))

    def count(fn) -> Counter[str]:
        with Counting() as mode:
            fn()
        return mode.counts

    return count


@pytest.fixture
def noxfile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The project's noxfile, as a module of its own, whose sessions no other module sees."""
    import nox  # not everywhere where these tests run

    root = Path(__file__).parents[1]
    monkeypatch.chdir(root)
    monkeypatch.delenv("UV_TORCH_BACKEND", raising=False)
    monkeypatch.setattr(nox.registry, "_REGISTRY", nox.registry._REGISTRY.copy())  # where its sessions go
    found = importlib.util.spec_from_file_location("noxfile", root / "noxfile.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
