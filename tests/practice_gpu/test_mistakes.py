"""Every mistake of the lessons, with the type and the text of CUDA's own error."""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map_only

from practice_gpu import practice_gpu

SAME = "Expected all tensors to be on the same device, but "
GOT = (
    SAME
    + "got {} is on {}, different from other tensors on {} (when checking argument in method wrapper_CUDA_{})"
)
WORDS = (
    "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
    "{} instead (while checking arguments for embedding)"
)
TWO = SAME + "found at least two devices, {} and {}!"


def labels_not_moved():
    model = nn.Linear(4, 3).cuda()
    nn.CrossEntropyLoss()(model(torch.rand(2, 4).cuda()), torch.tensor([0, 1]))


def model_not_moved():
    nn.Linear(4, 3)(torch.rand(2, 4, device="cuda"))


def images_not_moved():
    nn.Linear(4, 3).cuda()(torch.rand(2, 4))


def images_not_moved_to_a_convolution():
    nn.Conv2d(1, 2, 3).cuda()(torch.rand(4, 1, 8, 8))


def convolution_not_moved():
    nn.Conv2d(1, 2, 3)(torch.rand(4, 1, 8, 8, device="cuda"))


def predictions_against_labels():
    return (torch.tensor([1, 2], device="cuda") == torch.tensor([1, 2])).sum()


def class_weights_not_moved():
    loss_fn = nn.CrossEntropyLoss(weight=torch.ones(3))
    loss_fn(torch.rand(2, 3, device="cuda"), torch.tensor([0, 1], device="cuda"))


def positive_weight_not_moved():
    loss_fn = nn.BCEWithLogitsLoss(pos_weight=torch.ones(3))
    loss_fn(torch.rand(2, 3, device="cuda"), torch.rand(2, 3, device="cuda"))


def to_numpy():
    torch.rand(2, device="cuda").numpy()


def hidden_state_not_moved():
    nn.LSTM(3, 4).cuda()(torch.rand(5, 2, 3, device="cuda"), (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)))


def buffer_forgotten():
    model = nn.BatchNorm1d(3)
    model.weight.data, model.bias.data = model.weight.cuda(), model.bias.cuda()
    model(torch.rand(4, 3, device="cuda"))


def embedding_of_words_on_the_host():
    nn.Embedding(5, 3).cuda()(torch.tensor([1, 2]))


def lengths_on_the_device():
    padded = torch.rand(2, 3, 4, device="cuda")
    nn.utils.rnn.pack_padded_sequence(padded, torch.tensor([3, 2], device="cuda"), batch_first=True)


def device_that_does_not_exist():
    torch.ones(2).to("cuda:7")


def index_on_the_device():
    return torch.rand(4)[torch.tensor([1, 2], device="cuda")]


def filling_by_a_mask_on_the_host():
    torch.ones(3, device="cuda").masked_fill_(torch.tensor([True, False, True]), 0)


def filling_at_indices_on_the_host():
    torch.ones(3, device="cuda").index_fill_(0, torch.tensor([0, 2]), 0)


def gradient_of_another_device():
    weight = torch.rand(2, device="cuda", requires_grad=True)
    weight.grad = torch.ones(2)


def pinning_on_the_device():
    torch.rand(2, device="cuda").pin_memory()


def generator_of_the_host():
    torch.rand(2, device="cuda", generator=torch.Generator())


def label_out_of_range():
    F.cross_entropy(torch.rand(2, 3, device="cuda"), torch.tensor([0, 3], device="cuda"))


def word_out_of_range():
    nn.Embedding(5, 3).cuda()(torch.tensor([5], device="cuda"))


def gradient_from_the_host():
    (torch.ones(2, device="cuda", requires_grad=True) * 2).backward(torch.ones(2))


def another_type_than_the_weights():
    nn.Conv2d(1, 2, 3, bias=False).cuda()(torch.rand(2, 1, 8, 8, device="cuda").double())


def words_that_are_no_integers():
    nn.Embedding(5, 3).cuda()(torch.rand(2, device="cuda"))


def words_that_are_booleans():
    nn.Embedding(5, 3).cuda()(torch.ones(2, device="cuda") > 0)


def positions_on_the_device():
    torch.rand(4, device="cuda").tensor_split(torch.tensor([1, 2], device="cuda"))


def lengths_on_the_device_of_a_loss_on_the_host():
    lengths = torch.tensor([2]).cuda(), torch.tensor([1])
    F.ctc_loss(torch.rand(2, 1, 3), torch.ones(1, 1, dtype=torch.int64), *lengths)


def attention_over_two_devices():
    q = torch.rand(1, 1, 2, 4)
    F.scaled_dot_product_attention(q.cuda(), q, q)


MISTAKES = {
    labels_not_moved: GOT.format("target", "cpu", "cuda:0", "nll_loss_forward"),
    model_not_moved: GOT.format("mat1", "cuda:0", "cpu", "addmm"),
    images_not_moved: GOT.format("mat1", "cpu", "cuda:0", "addmm"),
    images_not_moved_to_a_convolution: "Input type (torch.FloatTensor) and weight type "
    "(torch.cuda.FloatTensor) "
    "should be the same or input should be a MKLDNN tensor and weight is a dense tensor",
    convolution_not_moved: "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should "
    "be "
    "the same",
    predictions_against_labels: TWO.format("cuda:0", "cpu"),
    class_weights_not_moved: GOT.format("weight", "cpu", "cuda:0", "nll_loss_forward"),
    positive_weight_not_moved: TWO.format("cuda:0", "cpu"),
    to_numpy: "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
    "memory first.",
    hidden_state_not_moved: "Input and hidden tensors are not at the same device, found input tensor at "
    "cuda:0 and "
    "hidden tensor at cpu",
    buffer_forgotten: GOT.format("running_mean", "cpu", "cuda:0", "_native_batch_norm"),
    embedding_of_words_on_the_host: GOT.format("index", "cpu", "cuda:0", "_index_select"),
    lengths_on_the_device: "'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0 Long "
    "tensor",
    device_that_does_not_exist: "CUDA error: invalid device ordinal",
    index_on_the_device: "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
    filling_by_a_mask_on_the_host: "expected self and mask to be on the same device, but got mask on cpu and "
    "self on cuda:0",
    filling_at_indices_on_the_host: TWO.format("cuda:0", "cpu"),
    gradient_of_another_device: "attempting to assign a gradient with device type 'cpu' to a tensor with "
    "device "
    "type 'cuda'. Please ensure that the gradient and the tensor are on the same device",
    pinning_on_the_device: "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned",
    generator_of_the_host: "Expected a 'cuda' device type for generator but found 'cpu'",
    gradient_from_the_host: "invalid gradient at index 0 - expected device cuda:0 but got cpu",
    another_type_than_the_weights: "Input type (torch.cuda.DoubleTensor) and weight type "
    "(torch.cuda.FloatTensor) should be the same",
    words_that_are_no_integers: WORDS.format("torch.cuda.FloatTensor"),
    words_that_are_booleans: WORDS.format("CUDABoolType"),
    positions_on_the_device: "tensor_split expected tensor_indices_or_sections to be on cpu, but it's on "
    "cuda:0",
    lengths_on_the_device_of_a_loss_on_the_host: GOT.format(
        "input_lengths", "cuda:0", "cpu", "Tensor__ctc_loss"
    ),
    attention_over_two_devices: "Expected query, key, and value to have the same device type, but got "
    "query.device: "
    "cuda:0 key.device: cpu and value.device: cpu instead.",
}
MISTAKES |= dict.fromkeys((label_out_of_range, word_out_of_range), "CUDA error: device-side assert triggered")
TYPES = {
    to_numpy: TypeError,
    **dict.fromkeys(
        (device_that_does_not_exist, label_out_of_range, word_out_of_range), torch.AcceleratorError
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_a_mistake_fails_with_the_text_of_cuda(mistake, inference):
    if inference and mistake in (gradient_of_another_device, gradient_from_the_host):
        pytest.skip("an inference tensor cannot ask for a gradient, on any device")
    with practice_gpu(force=True), torch.inference_mode(inference), pytest.raises(Exception) as caught:
        mistake()
    assert type(caught.value) is TYPES.get(mistake, RuntimeError)
    assert str(caught.value).splitlines()[0] == MISTAKES[mistake]


def test_a_result_that_is_overwritten_before_backward_is_named_as_on_the_device():
    with practice_gpu(force=True):
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


def test_a_gradient_that_a_function_returns_on_another_device():
    with practice_gpu(force=True):
        x = torch.ones(2, device="cuda", requires_grad=True)
        Scaled.apply(3, x, False)[0].sum().backward()
        assert (x.grad.tolist(), x.grad.is_cuda) == ([3.0, 3.0], True)
        text = "returned an invalid gradient at index 0 - expected device cuda:0 but got cpu"
        with pytest.raises(RuntimeError, match=f"Function ScaledBackward {text}"):
            Scaled.apply(3, x, True)[0].sum().backward()


def test_a_gradient_without_dimensions_is_moved():
    with practice_gpu(force=True):
        x = torch.tensor(1.0, device="cuda", requires_grad=True)
        (x * 2).backward(torch.tensor(1.0))
        assert (x.grad.item(), x.grad.is_cuda) == (2.0, True)


def test_gradients_of_a_whole_batch_are_no_mistake():
    with practice_gpu(force=True):
        x = torch.rand(2, dtype=torch.float64, device="cuda", requires_grad=True)
        assert torch.autograd.gradcheck(torch.exp, x, check_batched_grad=True)


def test_what_looks_like_a_mistake_and_is_none():
    with practice_gpu(force=True):
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


@pytest.mark.parametrize("value", [0, 1.5, True, np.int64(2)], ids=repr)
@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_elements_are_set_wherever_the_indices_are(index, value, inference):
    expected, whole = torch.full((3, 4), 7.0), torch.full((3, 4), 7)
    expected[index] = whole[index] = value
    with practice_gpu(count=2, force=True), torch.inference_mode(inference):
        for device in ("cpu", "cuda:0", "cuda:1"):
            moved = tree_map_only(torch.Tensor, lambda part, to=device: part.to(to), index)
            for home in ("cpu", "cuda:0"):
                x = torch.full((3, 4), 7.0, device=home)
                n = torch.full((3, 4), 7, device=home)
                x[moved] = n[moved] = value
                assert str(x.device) == home
                assert torch.equal(x.cpu(), expected) and torch.equal(n.cpu(), whole)


def test_gradients_pass_the_elements_that_were_set():
    with practice_gpu(force=True):
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


def test_indices_that_the_host_checks_fail_as_on_the_host():
    with practice_gpu(force=True):
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
