"""Operators on the practice GPU: the CPU's values to the bit, and CUDA's errors about values."""

import pytest
import torch
import torch.nn.functional as F

from practice_gpu import PracticeError, practice_gpu

aten = torch.ops.aten


def made_of_others_and_with_a_kernel() -> list[str]:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    return [name for name in composite if name.startswith("aten::") and has_kernel(name, "CPU")]


ARGUMENTS = {
    "aten::silu_backward": 2,
    "aten::mish_backward": 2,
    "aten::native_channel_shuffle": 1,
}
"""Number of tensors that each takes."""


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_operators_with_a_kernel_besides_their_parts_give_the_kernels_values(inference):
    torch.manual_seed(0)
    given = [torch.randn(2, 8, 33) * 4 for _ in range(2)]
    names = made_of_others_and_with_a_kernel()
    assert names and set(names) <= ARGUMENTS.keys()
    for name in names:
        operator = getattr(aten, name.removeprefix("aten::")).default
        tensors = given[: ARGUMENTS[name]]
        more = [4] if "shuffle" in name else []
        expected = operator(*tensors, *more)
        with practice_gpu(force=True), torch.inference_mode(inference):
            found = operator(*(tensor.cuda() for tensor in tensors), *more)
            assert found.is_cuda
            assert torch.equal(found.cpu(), expected), name


def wrong_values(device):
    """Return calls, by name, with values that CUDA's kernels refuse with a ``CUDA_KERNEL_ASSERT``."""

    def t(*values):
        return torch.tensor(values, device=device)

    x = torch.rand(3, 4, device=device)
    row, seven, minus, wide = x[:1], t(7), t(-7), t([9])
    table, ones = [x.clone() for _ in range(2)]
    images = x[None, None, :2, :2]
    return {
        "binary_cross_entropy, input": lambda: F.binary_cross_entropy(t(1.5), t(1.0)),
        "binary_cross_entropy, negative": lambda: F.binary_cross_entropy(t(-0.5), t(1.0)),
        "binary_cross_entropy, target": lambda: F.binary_cross_entropy(t(0.5), t(1.5)),
        "one_hot, too few classes": lambda: F.one_hot(t(5), 3),
        "one_hot, negative": lambda: F.one_hot(t(-1, 2)),
        "take": lambda: torch.take(x, t(20)),
        "put_": lambda: x.clone().put_(t(20), t(1.0)),
        "index": lambda: x[seven],
        "index, negative": lambda: x[minus],
        "index_put": lambda: x.clone().index_put_((seven,), x[0, 0]),
        "index_select": lambda: x.index_select(0, seven),
        "index_select, columns": lambda: x.index_select(1, seven),
        "index_add": lambda: x.clone().index_add_(0, seven, row),
        "index_copy": lambda: x.clone().index_copy_(0, seven, row),
        "index_fill": lambda: x.clone().index_fill_(0, seven, 0.0),
        "index_reduce": lambda: x.clone().index_reduce_(0, seven, row, "amax"),
        "gather": lambda: x.gather(1, wide),
        "scatter": lambda: x.clone().scatter_(1, wide, row[:, :1]),
        "scatter, a number": lambda: x.clone().scatter_(1, wide, 1.0),
        "scatter_add": lambda: x.clone().scatter_add_(1, wide, row[:, :1]),
        "scatter_reduce": lambda: x.clone().scatter_reduce_(1, wide, row[:, :1], "amax"),
        "embedding": lambda: F.embedding(seven, table),
        "embedding_bag, sum": lambda: F.embedding_bag(wide, table, mode="sum"),
        "embedding_bag, mean": lambda: F.embedding_bag(wide, table, mode="mean"),
        "embedding_bag, max": lambda: F.embedding_bag(wide, table, mode="max"),
        "embedding_bag, offsets": lambda: F.embedding_bag(t(0, 1), table, t(0, 5)),
        "nll_loss": lambda: F.nll_loss(x, t(0, 1, 9)),
        "nll_loss, images": lambda: F.nll_loss(images, t([[9, 0], [0, 0]])),
        "cross_entropy": lambda: F.cross_entropy(x, t(0, 1, -9)),
        "multi_margin_loss": lambda: F.multi_margin_loss(x, t(0, 1, 9)),
        "multinomial, negative": lambda: torch.multinomial(t(-1.0, 2.0), 1),
        "multinomial, infinite": lambda: torch.multinomial(t(float("inf"), 2.0), 1),
        "multinomial, all zero": lambda: torch.multinomial(t(0.0, 0.0), 4, replacement=True),
        "bernoulli": lambda: torch.bernoulli(t(1.5)),
        "poisson": lambda: torch.poisson(t(-1.0)),
        "max_unpool2d": lambda: F.max_unpool2d(images, torch.full_like(images, 99, dtype=torch.int64), 2),
        "masked_scatter": lambda: x.clone().masked_scatter_(ones >= 0, t(1.0)),
        "_assert_async": lambda: torch._assert_async(t(0)),
        "quantile": lambda: torch.quantile(x, t(1.5)),
    }


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_values_that_kernels_assert_fail_as_on_the_device(inference):
    said = {name: error_of(call) for name, call in wrong_values("cpu").items()}
    assert None not in said.values()
    with practice_gpu(force=True), torch.inference_mode(inference):
        there = {name: error_of(call) for name, call in wrong_values("cuda").items()}
        beside = {name: error_of(call) for name, call in wrong_values("cpu").items()}
    asserted = "AcceleratorError: CUDA error: device-side assert triggered"
    assert there == dict.fromkeys(said, asserted)
    quantile = beside.pop("quantile"), said.pop("quantile")  # PyTorch 2.12 finds it later if a mode is on
    assert None not in quantile
    assert beside == said  # a tensor of the host's still fails as ever


def error_of(call):
    """Return the type and the first line of an error, or None."""
    try:
        call()
    except (RuntimeError, IndexError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


UNCHECKED = {
    "division": lambda device: torch.tensor([1], device=device) // torch.tensor([0], device=device),
    "remainder": lambda device: torch.tensor([1], device=device) % 0,
    "multilabel_margin_loss": lambda device: F.multilabel_margin_loss(
        torch.rand(2, device=device), torch.tensor([9, 0], device=device)
    ),
    "embedding_bag, offsets": lambda device: F.embedding_bag(
        torch.tensor([0, 1], device=device), torch.rand(3, 4, device=device), torch.tensor([1], device=device)
    ),
}


@pytest.mark.parametrize("call", UNCHECKED.values(), ids=UNCHECKED)
def test_values_that_cuda_does_not_look_at_are_named(call):
    with practice_gpu(force=True):
        with pytest.raises(PracticeError, match=r"CUDA .*a real GPU would go on with wrong numbers"):
            call("cuda")
        with pytest.raises(RuntimeError) as beside:
            call("cpu")
    assert not isinstance(beside.value, PracticeError)


def test_one_hot_waits_only_where_it_must_find_the_number_of_classes():
    classes = torch.tensor([[0, 2], [1, 1]])
    with practice_gpu(force=True) as gpu:
        there = classes.cuda()
        gpu.clear_events()
        assert torch.equal(F.one_hot(there, 4).cpu(), F.one_hot(classes, 4))
        assert sum(event.waits for event in gpu.events) == 1  # .cpu()
        assert F.one_hot(there).shape == (2, 2, 3)
        assert F.one_hot(there[:0], 4).shape == (0, 2, 4)
        assert sum(event.waits for event in gpu.events) == 2
