"""Mistakes fail with the type and the message of CUDA's error, and what only looks like a mistake works."""

import itertools
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map_only

from practice_gpu import practice_gpu

SAME = "Expected all tensors to be on the same device, but "
GOT = SAME + "got {} is on {}, different from other tensors on {} (when checking argument in method {})"
TWO = SAME + "found at least two devices, {} and {}!"
ASSERTED = "CUDA error: device-side assert triggered"


def there(*shape):
    return torch.rand(*shape, device="cuda")


def leave_a_buffer_behind():
    model = nn.BatchNorm1d(3)
    model.weight.data, model.bias.data = model.weight.cuda(), model.bias.cuda()
    model(there(4, 3))


MISTAKES = {
    "labels_not_moved": (
        lambda: nn.CrossEntropyLoss()(nn.Linear(4, 3).cuda()(there(2, 4)), torch.tensor([0, 1])),
        GOT.format("target", "cpu", "cuda:0", "wrapper_CUDA_nll_loss_forward"),
    ),
    "to_numpy": (
        lambda: there(2).numpy(),
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
        "memory first.",
    ),
    "buffer_forgotten": (
        leave_a_buffer_behind,
        GOT.format("running_mean", "cpu", "cuda:0", "wrapper_CUDA__native_batch_norm"),
    ),
    "device_that_does_not_exist": (lambda: torch.ones(2).to("cuda:7"), "CUDA error: invalid device ordinal"),
    "label_out_of_range": (
        lambda: F.cross_entropy(there(2, 3), torch.tensor([0, 3], device="cuda")),
        ASSERTED,
    ),
    "gradient_from_the_host": (
        lambda: (there(2).requires_grad_() * 2).backward(torch.ones(2)),
        "invalid gradient at index 0 - expected device cuda:0 but got cpu",
    ),
    "another_type_than_the_weights": (
        lambda: nn.Conv2d(1, 2, 3, bias=False).cuda()(there(2, 1, 8, 8).double()),
        "Input type (torch.cuda.DoubleTensor) and weight type (torch.cuda.FloatTensor) should be the same",
    ),
    "words_that_are_booleans": (
        lambda: nn.Embedding(5, 3).cuda()(there(2) > 0),
        "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but "
        "got CUDABoolType instead (while checking arguments for embedding)",
    ),
    "lengths_on_the_device_of_a_loss_on_the_host": (
        lambda: F.ctc_loss(torch.rand(2, 1, 3), torch.ones(1, 1).long(), torch.tensor([2]).cuda(), (1,)),
        GOT.format("input_lengths", "cuda:0", "cpu", "wrapper_CUDA_Tensor__ctc_loss"),
    ),
}
"""What is done, and CUDA's message; oracle.py and the pages of error messages have the others."""
TYPES = {
    "to_numpy": TypeError,
    **dict.fromkeys(("device_that_does_not_exist", "label_out_of_range"), torch.AcceleratorError),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_a_mistake_fails_with_the_text_of_cuda(mistake, inference):
    if inference and mistake == "gradient_from_the_host":
        pytest.skip("an inference tensor cannot ask for a gradient, on any device")
    call, text = MISTAKES[mistake]
    with practice_gpu(force=True), torch.inference_mode(inference), pytest.raises(Exception) as caught:
        call()
    assert type(caught.value) is TYPES.get(mistake, RuntimeError)
    assert str(caught.value).splitlines()[0] == text


def test_a_result_that_is_overwritten_before_backward_is_named_as_on_the_device(gpu):
    x = torch.ones(2, device="cuda", requires_grad=True)
    y = x.sigmoid()
    with pytest.raises(RuntimeError, match=re.escape("inplace operation: [torch.cuda.FloatTensor [2]]")):
        y.add_(1).sum().backward()


class Scaled(torch.autograd.Function):
    """Two results, of which one may go unused; the gradient comes from the host if it is asked to."""

    @staticmethod
    def forward(ctx, factor, x, host):
        ctx.factor, ctx.host = factor, host
        return x * factor, x + 1

    @staticmethod
    def backward(ctx, gradient, unused):
        assert gradient.device == unused.device
        assert unused.tolist() == [0.0] * len(unused)
        result = gradient * ctx.factor
        return None, result.cpu() if ctx.host else result, None


def test_a_gradient_that_a_function_returns_on_another_device(gpu):
    x = torch.ones(2, device="cuda", requires_grad=True)
    Scaled.apply(3, x, False)[0].sum().backward()
    assert (x.grad.tolist(), x.grad.is_cuda) == ([3.0, 3.0], True)
    text = "returned an invalid gradient at index 0 - expected device cuda:0 but got cpu"
    with pytest.raises(RuntimeError, match=f"Function ScaledBackward {text}"):
        Scaled.apply(3, x, True)[0].sum().backward()


def test_a_gradient_without_dimensions_is_moved(gpu):
    x = torch.tensor(1.0, device="cuda", requires_grad=True)
    (x * 2).backward(torch.tensor(1.0))
    assert (x.grad.item(), x.grad.is_cuda) == (2.0, True)


def test_gradients_of_a_whole_batch_are_no_mistake(gpu):
    x = torch.rand(2, dtype=torch.float64, device="cuda", requires_grad=True)
    assert torch.autograd.gradcheck(torch.exp, x, check_batched_grad=True)


def test_what_looks_like_a_mistake_and_is_none(gpu):
    x = torch.ones(3, device="cuda")
    assert (x * torch.tensor(2.0)).is_cuda  # a scalar without dimensions may stay on the host
    assert x[torch.tensor([0, 2])].is_cuda  # and so may indices
    assert torch.where(x > 0, x, torch.tensor(0.0)).is_cuda
    assert (x + 1).is_cuda


INDICES = {
    "a mask": torch.eye(3, 4) > 0,
    "a mask of rows": torch.tensor([True, False, True]),
    "a mask of columns": (..., torch.tensor([True, False, True, True])),
    "rows": torch.tensor([0, 2]),
    "columns": (slice(None), torch.tensor([[0], [2]])),
    "rows and columns": (torch.tensor([0, 2]), torch.tensor([1, 1])),
    "a list": [0, 2],
    "an array": np.array([0, 2]),
    "no dimensions": torch.tensor(1),
    "no tensor": (1, slice(2)),
}


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_elements_are_set_wherever_the_indices_are(two, inference):
    wrong = []
    with torch.inference_mode(inference):
        for (name, index), value in itertools.product(INDICES.items(), (0, 1.5, True, np.int64(2))):
            for home, device in itertools.product(("cpu", "cuda:0"), ("cpu", "cuda:0", "cuda:1")):
                moved = tree_map_only(torch.Tensor, lambda part, to=device: part.to(to), index)
                for seven in (7.0, 7):
                    expected, found = torch.full((3, 4), seven), torch.full((3, 4), seven, device=home)
                    expected[index] = found[moved] = value
                    if str(found.device) != home or not torch.equal(found.cpu(), expected):
                        wrong.append((name, value, home, device, seven))
    assert not wrong


def test_gradients_pass_the_elements_that_were_set(gpu):
    x = torch.ones(3, device="cuda", requires_grad=True)
    y = x * 2
    y[torch.tensor([True, False, False])] = 0
    y[torch.tensor([2])] = torch.tensor(5.0, device="cuda")
    y.sum().backward()
    assert x.grad.is_cuda and x.grad.tolist() == [0, 2, 0]


def test_values_to_set_have_to_be_with_the_tensor():
    here, there = torch.tensor([0, 2]), torch.rand(2)
    with practice_gpu(force=True):
        for x, values in ((torch.ones(3), there.cuda()), (torch.ones(3, device="cuda"), there)):
            with pytest.raises(RuntimeError, match=re.escape(TWO.format("cuda:0", "cpu"))):
                x[here] = values
            x[here] = values[0]  # one number may come from anywhere


def test_indices_that_the_host_checks_fail_as_on_the_host(gpu):
    x = torch.ones(3, 4, device="cuda")
    for attempt in (lambda: x[3], lambda: x.sum(2), lambda: x.select(0, 5)):
        with pytest.raises(IndexError):
            attempt()


def test_with_two_devices_the_text_names_both():
    with (
        practice_gpu(count=2, force=True),
        pytest.raises(RuntimeError, match=re.escape(TWO.format("cuda:0", "cuda:1"))),
    ):
        torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1")
