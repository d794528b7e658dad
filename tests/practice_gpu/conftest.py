"""What the practice GPU's tests share."""

from collections.abc import Iterator

import pytest
import torch

from practice_gpu import PracticeGPU, practice_gpu


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The models are tiny: a second thread would only wait for the first, or for other programs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def gpu() -> Iterator[PracticeGPU]:
    with practice_gpu(memory="1 GiB", force=True) as simulated:
        yield simulated


@pytest.fixture
def two() -> Iterator[PracticeGPU]:
    with practice_gpu(count=2, force=True) as simulated:
        yield simulated
