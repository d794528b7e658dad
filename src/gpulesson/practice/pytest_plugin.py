"""A pytest fixture, so that any project can test its CUDA code on a machine without a GPU.

It is registered as a pytest plugin when gpulesson is installed; nothing is imported before a test asks for
it.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Union

import pytest

if TYPE_CHECKING:
    from gpulesson.practice.gpu import PracticeGPU
    from gpulesson.practice.interface import RealGPU


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that sets the fixture's options."""
    config.addinivalue_line(
        "markers", 'practice_gpu(memory="8 GiB", count=1, force=False): options of the practice_gpu fixture'
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Cut the practice GPU's frames out of a failed test's traceback."""
    if call.excinfo is not None and "practice_gpu" in getattr(item, "fixturenames", ()):
        from gpulesson.practice.tracebacks import trim

        trim(call.excinfo.value)
    return (yield)


@pytest.fixture
def practice_gpu(request: pytest.FixtureRequest) -> Iterator[Union["PracticeGPU", "RealGPU"]]:
    """
    A practice GPU for one test; a real GPU is used instead where there is one.

    Options go into the marker: ``@pytest.mark.practice_gpu(memory="64 MiB", count=2)``.
    """
    from gpulesson.practice.interface import practice_gpu

    marker = request.node.get_closest_marker("practice_gpu")
    with practice_gpu(*(marker.args if marker else ()), **(marker.kwargs if marker else {})) as gpu:
        yield gpu
