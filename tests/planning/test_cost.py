from __future__ import annotations

import pytest
import torch
import torchvision
from shapes import costs_of
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode, flop_registry

FLOAT = 4  # bytes


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.qkv = nn.Embedding(50, 32), nn.Linear(32, 96)
        self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))

    def forward(self, x):
        x = self.tokens(x)
        q, k, v = (part.view(*part.shape[:2], 4, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, 2))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.mlp(x) @ self.tokens.weight.t()


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, stride=2, groups=8),
            nn.Conv2d(8, 16, 5, dilation=2, padding=4, bias=False),
            nn.ConvTranspose2d(16, 4, 2, stride=2),
        )

    def forward(self, x):
        return self.layers(x)


class First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 7, 2))

    def forward(self, x):
        return torch.baddbmm(torch.ones(2), x, self.w) + torch.einsum("bij,bjk->bik", x, self.w)


MODELS = {
    "an MLP": (
        lambda: nn.Sequential(nn.Linear(7, 30), nn.ReLU(), nn.Linear(30, 3)),
        lambda: torch.randn(5, 7, requires_grad=True),
    ),
    "convolutions": (Convolutions, lambda: torch.randn(2, 4, 17, 17)),
    "an LSTM cell": (lambda: First(nn.LSTMCell(6, 9)), lambda: torch.randn(5, 6)),
    "a Transformer": (
        lambda: nn.TransformerEncoderLayer(24, 3, 48, dropout=0.0, batch_first=True),
        lambda: torch.randn(2, 11, 24),
    ),
    "a GPT": (Gpt, lambda: torch.randint(50, (2, 13))),
    "a ResNet": (lambda: torchvision.models.resnet18(num_classes=7), lambda: torch.randn(2, 3, 64, 64)),
    "an EfficientNet": (
        lambda: torchvision.models.mobilenet_v3_small(num_classes=5),
        lambda: torch.randn(2, 3, 64, 64),
    ),
    "products of batches": (
        Products,
        lambda: torch.randn(3, 5, 7, requires_grad=True),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_flop_are_those_of_torchs_counter(name):
    make, batch = MODELS[name]
    torch.manual_seed(0)
    model, inputs = make(), batch()
    with FlopCounterMode(display=False) as counter:
        model(inputs).sum().backward()
    costs = costs_of(lambda: model(inputs).sum().backward())
    assert sum(each.flop for _, each in costs.calls) == counter.get_total_flops() > 0


def test_a_linear_layer_reads_input_weight_and_bias_once_and_writes_its_result():
    layer, x = nn.Linear(30, 20), torch.randn(8, 30)
    (found,) = costs_of(lambda: layer(x)).of("addmm")
    assert found.nbytes == (8 * 30 + 20 * 30 + 20 + 8 * 20) * FLOAT
    assert (found.flop, found.least_flop, found.launches) == (2 * 8 * 30 * 20, 2 * 8 * 30 * 20, 1)


def test_a_linear_layers_backward():
    layer, x = nn.Linear(30, 20), torch.randn(8, 30, requires_grad=True)
    loss = (layer(x) * torch.randn(8, 20)).sum()
    costs = costs_of(loss.backward)
    of_input = (8 * 20 + 20 * 30 + 8 * 30) * FLOAT  # reads the output's gradient and the weight
    of_weight = (8 * 20 + 8 * 30 + 20 * 30) * FLOAT  # reads the output's gradient and the input
    assert [each.nbytes for each in costs.of("mm")] == [of_input, of_weight]


def test_a_convolution_forward_and_backward():
    layer = nn.Conv2d(3, 16, 3, padding=1)
    x = torch.randn(2, 3, 10, 10, requires_grad=True)
    image, weight, result = 2 * 3 * 10 * 10, 16 * 3 * 3 * 3, 2 * 16 * 10 * 10
    forward = costs_of(lambda: layer(x)).of("convolution")[0]
    assert forward.nbytes == (image + weight + 16 + result) * FLOAT
    assert forward.flop == 2 * result * 3 * 3 * 3 == 4 * forward.least_flop  # Winograd's F(4×4, 3×3)
    loss = layer(x).square().sum()
    (backward,) = costs_of(loss.backward).of("convolution_backward")
    assert backward.nbytes == (result + image + weight + image + weight + 16) * FLOAT
    assert (backward.flop, backward.launches) == (2 * forward.flop, 3)  # kernels of input, weight and bias


def test_a_first_convolutions_backward_reads_no_weight():
    layer, x = nn.Conv2d(3, 16, 3, bias=False), torch.randn(2, 3, 10, 10)
    loss = layer(x).sum()
    (backward,) = costs_of(loss.backward).of("convolution_backward")
    expanded = 1  # the gradient of a sum is one number for all
    assert backward.nbytes == (expanded + 2 * 3 * 10 * 10 + 16 * 3 * 3 * 3) * FLOAT
    assert backward.launches == 1


@pytest.mark.parametrize(
    ("layer", "rows"),
    [
        (nn.Conv2d(4, 8, 1, stride=2, bias=False), 5),  # rows 0, 2, 4, 6 and 8 of 10, columns alike
        (nn.Conv2d(4, 8, 2, stride=5, bias=False), 4),  # 0, 1, 5, 6
        (nn.Conv2d(4, 8, 3, stride=3, bias=False), 9),
        (nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False), 10),
    ],
)
def test_what_a_kernel_steps_over_is_not_read(layer, rows):
    x = torch.randn(2, 4, 10, 10)
    (found,) = costs_of(lambda: layer(x)).of("convolution")
    seen = 2 * 4 * rows * rows
    assert found.nbytes == (seen + layer.weight.numel() + layer(x).numel()) * FLOAT
    assert found.least_flop == found.flop


@pytest.mark.parametrize(
    ("size", "options", "times"),
    [(3, {}, 4), (1, {}, 1), (5, {}, 25), (3, {"stride": 2}, 1), (3, {"dilation": 2}, 1), ((1, 3), {}, 2)],
)
def test_quick_convolutions_need_fewer_products(size, options, times):
    layer, x = nn.Conv2d(4, 8, size, **options), torch.randn(2, 4, 20, 20)
    (found,) = costs_of(lambda: layer(x)).of("convolution")
    assert found.flop == times * found.least_flop


def test_softmax_reads_once_and_writes_once():
    x = torch.randn(6, 50, requires_grad=True)
    (forward,) = costs_of(lambda: x.softmax(1)).of("_softmax")
    assert (forward.nbytes, forward.flop) == (2 * 6 * 50 * FLOAT, 0)
    loss = (x.softmax(1) * torch.randn(6, 50)).sum()
    (backward,) = costs_of(loss.backward).of("_softmax_backward_data")
    assert (
        backward.nbytes == 3 * 6 * 50 * FLOAT
    )  # the gradient and the result are read, a gradient is written


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(15, 4),
        lambda x: x.t(),
        lambda x: x[1:, 2],
        lambda x: x.expand(3, 6, 10),
        lambda x: x.split(2),
        lambda x: x.detach(),
        lambda x: x.clone().unsqueeze_(0),
        lambda x: torch.empty_like(x),
        lambda x: x.new_empty(5),
        lambda x: torch.ops.aten._unsafe_view(x, [60]),
        lambda x: x.sum().item(),
        lambda x: x.is_same_size(x),
    ],
)
def test_views_allocation_and_questions_launch_nothing(view):
    name, found = costs_of(lambda: view(torch.ones(6, 10))).calls[-1]
    assert (found.nbytes, found.launches, found.flop) == (0, 0, 0), name


def test_in_place_reads_and_writes_and_an_expanded_tensor_is_read_once():
    x, row, column = torch.randn(6, 10), torch.randn(10), torch.randn(6, 1)
    assert costs_of(lambda: x.add_(row)).of("add_")[0].nbytes == (2 * 60 + 10) * FLOAT
    assert costs_of(lambda: x.mul(column.expand(6, 10))).of("mul")[0].nbytes == (2 * 60 + 6) * FLOAT
    apart = torch.randn(6, 100)[:, :1].expand(6, 10)  # 6 numbers, far from each other
    assert costs_of(lambda: x.mul(apart)).of("mul")[0].nbytes == (2 * 60 + 6) * FLOAT
    assert costs_of(lambda: x.mul(x)).of("mul")[0].nbytes == 2 * 60 * FLOAT
    assert costs_of(lambda: x.relu_()).of("relu_")[0].nbytes == 2 * 60 * FLOAT


def test_views_of_one_storage_are_counted_by_what_they_cover():
    x = torch.randn(6, 30)
    three = x.chunk(3, 1)  # interleaved: 60 elements each, none twice
    assert costs_of(lambda: torch.cat(three)).of("cat")[0].nbytes == 2 * 180 * FLOAT
    flat = torch.randn(100)
    assert costs_of(lambda: flat[:-1] + flat[1:]).of("add")[0].nbytes == (100 + 99) * FLOAT
    windows = flat.unfold(0, 10, 1)  # 91 windows of 10 lie in 100 elements
    assert costs_of(lambda: windows.square()).of("pow")[0].nbytes == (100 + 910) * FLOAT


@pytest.mark.parametrize(
    ("fill", "nbytes"),
    [
        (lambda x: x.zero_(), 60 * FLOAT),
        (lambda x: x.fill_(1), 60 * FLOAT),
        (lambda x: x.normal_(), 60 * FLOAT),
        (lambda x: x.copy_(torch.ones(60, dtype=torch.int8).view(6, 10)), 60 * FLOAT + 60),
        (lambda x: torch.zeros_like(x), 60 * FLOAT),
        (lambda x: x.new_ones(3), 3 * FLOAT),
        (lambda x: torch.ones(7, dtype=torch.int64), 7 * 8),
        (lambda x: torch.arange(5), 5 * 8),
        (lambda x: x.to(torch.bfloat16), 60 * FLOAT + 60 * 2),
        (lambda x: torch.add(x, 1, out=torch.empty(6, 10)), 2 * 60 * FLOAT),
        (lambda x: torch.addmm(x, torch.ones(6, 2), torch.ones(2, 10), beta=0), (12 + 20 + 60) * FLOAT),
    ],
)
def test_what_is_overwritten_is_not_read(fill, nbytes):
    x = torch.ones(6, 10)
    found = [each for _, each in costs_of(lambda: fill(x)).calls if each.launches][-1]
    assert found.nbytes == nbytes


INDICES = torch.tensor([1, 1, 4])


@pytest.mark.parametrize(
    ("read", "nbytes"),
    [
        (lambda x: F.embedding(INDICES, x), 3 * 8 + 30 * FLOAT),
        (lambda x: x[INDICES], 3 * 8 + 30 * FLOAT),
        (lambda x: x.index_select(0, INDICES), 3 * 8 + 30 * FLOAT),
        (lambda x: x.gather(0, INDICES[:, None]), 3 * 8 + 3 * FLOAT),
        (lambda x: x.index_add_(0, INDICES, torch.ones(3, 10)), 3 * 8 + 30 * FLOAT),
        (lambda x: x.index_put_((INDICES,), torch.ones(())), 3 * 8 + FLOAT),
        (lambda x: x.index_add(0, INDICES, torch.ones(3, 10)), 3 * 8 + 30 * FLOAT + 2 * 60 * FLOAT),
        (lambda x: F.nll_loss(x, INDICES.repeat(2)), 6 * 8 + 2 * FLOAT),  # the loss, the sum of the weights
        (lambda x: x.triu(), 60 * FLOAT),
    ],
)
def test_of_a_table_that_is_read_by_index_nothing_is_counted(read, nbytes):
    x = torch.ones(6, 10)
    found = [each for _, each in costs_of(lambda: read(x)).calls if each.launches][-1]
    assert found.nbytes == nbytes


def test_the_backward_of_an_embedding_writes_the_whole_table():
    table = nn.Embedding(100, 10)
    loss = table(INDICES).square().sum()
    (found,) = costs_of(loss.backward).of("embedding_dense_backward")
    assert found.nbytes == 3 * 8 + 30 * FLOAT + 1000 * FLOAT


def test_dropout_in_one_kernel_writes_a_mask_of_bytes():
    x = torch.ones(6, 10)
    (found,) = costs_of(lambda: torch.native_dropout(x, 0.5, True)).of("native_dropout")
    assert found.nbytes == 60 * FLOAT + 60 * FLOAT + 60


def test_pooling_backward_takes_its_input_for_the_shape_only():
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    loss = F.max_pool2d(x, 2).square().sum()
    (found,) = costs_of(loss.backward).of("max_pool2d_with_indices_backward")
    small, large = 2 * 3 * 4 * 4, 2 * 3 * 8 * 8
    assert found.nbytes == small * FLOAT + small * 8 + large * FLOAT


def adam(**options):
    weights = [nn.Parameter(torch.ones(size)) for size in (100, 30)]
    for each in weights:
        each.grad = torch.ones_like(each)
    optimizer = torch.optim.Adam(weights, **options)
    optimizer.step()
    return costs_of(optimizer.step)


def test_foreach_adam_launches_once_a_list_and_counts_every_tensor():
    costs = adam(foreach=True)
    weight = 130 * FLOAT
    for name, times in {
        "_foreach_lerp_": 3,  # reads the average and the gradient, writes the average
        "_foreach_mul_": 2,
        "_foreach_addcmul_": 3,
        "_foreach_sqrt": 2,
        "_foreach_addcdiv_": 4,  # weight, average, root; weight
    }.items():
        (found,) = costs.of(name)
        assert (found.nbytes, found.launches) == (times * weight, 1), name


def test_fused_adam_reads_four_lists_and_writes_three_at_once():
    (found,) = adam(fused=True).of("_fused_adam_")
    steps = 2 * FLOAT
    assert (found.nbytes, found.launches) == (7 * 130 * FLOAT + steps, 1)


def test_an_operator_on_nothing_launches_nothing():
    assert costs_of(lambda: torch.ones(0, 5) + 1).calls[-1][1].launches == 0


@pytest.fixture
def settings():
    matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, convolution.fp32_precision
    yield
    matmul.fp32_precision, convolution.fp32_precision = before


def dtype_of(function) -> str:
    return costs_of(function).calls[-1][1].dtype


def test_products_and_convolutions_follow_pytorchs_settings_of_tensorfloat(settings):
    a, image, kernel = torch.ones(4, 4), torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2)
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert dtype_of(lambda: a.mm(a)) == "float32"
    assert dtype_of(lambda: F.conv2d(image, kernel)) == "tfloat32"  # PyTorch's default
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    assert dtype_of(lambda: F.conv2d(image, kernel)) == "float32"
    torch.set_float32_matmul_precision("high")
    assert dtype_of(lambda: a.mm(a)) == "tfloat32"
    torch.set_float32_matmul_precision("highest")
    assert dtype_of(lambda: a.mm(a)) == "float32"
    assert dtype_of(lambda: a + a) == "float32"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_are_their_own(dtype):
    a = torch.ones(4, 4, dtype=dtype)
    assert dtype_of(lambda: a.mm(a)) == str(dtype).removeprefix("torch.")


def test_causal_attention_may_skip_what_is_masked():
    if torch.ops.aten._scaled_dot_product_flash_attention_for_cpu not in flop_registry:
        pytest.skip("this torch counts no operations of the CPU's attention")
    q = torch.randn(2, 4, 16, 8)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    full = costs_of(lambda: F.scaled_dot_product_attention(q, q, q)).of(name)[0]
    causal = costs_of(lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)).of(name)[0]
    assert full.flop == full.least_flop == causal.flop == 2 * causal.least_flop == 2 * 2 * 2 * 4 * 16 * 16 * 8


def test_meta_tensors_cost_the_same():
    def program(device):
        layer = nn.Conv2d(3, 8, 3, device=device)
        return costs_of(lambda: layer(torch.ones(2, 3, 9, 9, device=device)).square().mean().backward())

    assert program("meta").calls == program("cpu").calls
