"""The default device, in its three forms, decides where new tensors are made on the practice GPU."""

import numpy as np
import pytest
import torch

from practice_gpu import practice_gpu

MAKERS = {
    "ones": lambda: torch.ones(2),
    "tensor": lambda: torch.tensor([1, 2]),
    "as_tensor": lambda: torch.as_tensor([1.0]),
    "Linear": lambda: torch.nn.Linear(2, 1).weight,
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_with_block_decides_and_the_inner_one_wins(gpu, name):
    with torch.device("cuda"):
        assert MAKERS[name]().device == torch.device("cuda:0")
        with torch.device("cpu"):
            assert MAKERS[name]().device == torch.device("cpu")
    assert MAKERS[name]().device == torch.device("cpu")


@pytest.mark.parametrize("name", MAKERS)
def test_set_default_device_decides_until_it_is_set_back(gpu, name):
    torch.set_default_device("cuda")
    assert MAKERS[name]().device == torch.device("cuda:0")
    with torch.device("cpu"):
        assert MAKERS[name]().device == torch.device("cpu")
    torch.set_default_device(None)
    assert MAKERS[name]().device == torch.device("cpu")


def test_from_numpy_and_an_explicit_device_ignore_it():
    with practice_gpu(force=True), torch.device("cuda"):
        assert torch.from_numpy(np.ones(2)).device == torch.device("cpu")
        assert torch.ones(2, device="cpu").device == torch.device("cpu")
