"""For pytest: a fixture and an option, so that any project can test its CUDA code on a machine without a GPU.

Installing practice-gpu registers it as a pytest plugin; it imports PyTorch only when a test or the project
needs it.
"""

import argparse
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Union

import pytest

from practice_gpu import arrival

if TYPE_CHECKING:
    from practice_gpu.device.gpu import PracticeGPU
    from practice_gpu.interface import RealGPU


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for a whole run."""
    group = parser.getgroup("practice GPU", "simulated CUDA GPUs on the CPU")
    group.addoption("--practice-gpu", action="store_true", help="run all tests on a practice GPU")
    group.addoption("--practice-gpu-count", type=int, default=1, metavar="N", help="how many (default: 1)")
    group.addoption(
        "--practice-gpu-memory", default="8 GiB", metavar="SIZE", help='memory of each (default: "8 GiB")'
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start before pytest imports anything of the project, which may check for a GPU."""
    _start(early_config, early_config.known_args_namespace)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that sets the fixture's options; start if a conftest has loaded this plugin."""
    config.addinivalue_line(
        "markers", 'practice_gpu(memory="8 GiB", count=1, force=False): options of the practice_gpu fixture'
    )
    _start(config, config.option)


def _start(config: pytest.Config, options: argparse.Namespace) -> None:
    if not getattr(options, "practice_gpu", False):  # pytest has read the options before a conftest's plugin
        return
    from practice_gpu.processes.environment import settings
    from practice_gpu.sizes import check_count, parse_size

    memory, count = options.practice_gpu_memory, options.practice_gpu_count
    try:
        check_count(count)
        parse_size(memory)
    except ValueError as error:
        raise pytest.UsageError(f"--practice-gpu: {error}") from None
    if arrival.start_with_torch(settings(memory, count, force=False)):
        config.add_cleanup(arrival.end)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say that the GPUs of this run are simulated."""
    if not config.option.practice_gpu:
        return None
    count, memory = config.option.practice_gpu_count, config.option.practice_gpu_memory
    return f"practice GPU: {count} of {memory}, simulated on the CPU unless there is a real one"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begin each test with an empty log, and reset the peak of memory."""
    gpu = arrival.running()
    if gpu is not None:
        gpu.clear_events()
        for allocator in gpu.ledger.allocators:
            allocator.reset_peak()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Cut the practice GPU's frames out of a failed test's traceback."""
    asked = "practice_gpu" in getattr(item, "fixturenames", ())
    if call.excinfo is not None and (asked or arrival.running() is not None):
        from practice_gpu.tracebacks import trim

        trim(call.excinfo.value)
    return (yield)


@pytest.fixture
def practice_gpu(request: pytest.FixtureRequest) -> Iterator[Union["PracticeGPU", "RealGPU"]]:
    """A practice GPU for one test, or a real GPU where there is one.

    Options go into the marker: ``@pytest.mark.practice_gpu(memory="64 MiB", count=2)``. If a practice GPU
    runs already, the test gets that one, but is skipped if its marker wants another memory or count.
    """
    from practice_gpu.interface import practice_gpu

    marker = request.node.get_closest_marker("practice_gpu")
    wanted = practice_gpu(*(marker.args if marker else ()), **(marker.kwargs if marker else {}))
    running = arrival.running()
    if marker is not None and running is not None and not wanted.is_like(running):
        pytest.skip(f"its marker asks for {wanted}, but the running practice GPU has other settings")
    with wanted as gpu:
        yield gpu
