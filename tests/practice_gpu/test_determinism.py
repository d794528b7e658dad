"""``torch.use_deterministic_algorithms``: what CUDA refuses, the practice GPU refuses, in the same words."""

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

from practice_gpu import practice_gpu
from practice_gpu.operators import determinism


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def backward(function: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> Callable[[], None]:
    def call() -> None:
        x = torch.rand(*shape).cuda().requires_grad_()
        function(x).sum().backward()

    return call


def on(function: Callable[..., object], *shape: int) -> Callable[[], object]:
    return lambda: function(torch.rand(*shape).cuda())


def upsampled(mode: str, *shape: int, **options: bool) -> Callable[[], None]:
    return backward(lambda x: F.interpolate(x, scale_factor=2, mode=mode, **options), *shape)


def grid(dimensions: int, aligned: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    size = (1, *[4] * dimensions, dimensions)
    return lambda x: F.grid_sample(x, torch.zeros(size).cuda(), align_corners=aligned)


def first(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(3, 4, dtype=torch.int64, device=x.device)


LINE, IMAGE, VOLUME = (1, 2, 4), (1, 2, 4, 4), (1, 2, 4, 4, 4)
CTC = torch.tensor([5]), torch.tensor([2])

REFUSED = [
    ("avg_pool3d_backward_cuda", backward(lambda x: F.avg_pool3d(x, 2), *VOLUME)),
    ("adaptive_avg_pool2d_backward_cuda", backward(lambda x: F.adaptive_avg_pool2d(x, 2), *IMAGE)),
    ("adaptive_avg_pool3d_backward_cuda", backward(lambda x: F.adaptive_avg_pool3d(x, 2), *VOLUME)),
    ("adaptive_max_pool2d_backward_cuda", backward(lambda x: F.adaptive_max_pool2d(x, 2), *IMAGE)),
    (
        "fractional_max_pool2d_backward_cuda",
        backward(lambda x: F.fractional_max_pool2d(x, 2, output_size=2), *IMAGE),
    ),
    (
        "fractional_max_pool3d_backward_cuda",
        backward(lambda x: F.fractional_max_pool3d(x, 2, output_size=2), *VOLUME),
    ),
    ("max_pool3d_with_indices_backward_cuda", backward(lambda x: F.max_pool3d(x, 2), *VOLUME)),
    ("max_unpooling2d_forward_out", on(lambda x: F.max_unpool2d(x, x.long() * 0, 2), *IMAGE)),
    ("upsample_linear1d_backward_out_cuda", upsampled("linear", *LINE)),
    ("upsample_bilinear2d_aa_backward_out_cuda", upsampled("bilinear", *IMAGE, antialias=True)),
    ("upsample_bicubic2d_aa_backward_out_cuda", upsampled("bicubic", *IMAGE, antialias=True)),
    ("reflection_pad1d_backward_out_cuda", backward(lambda x: F.pad(x, (1, 1), "reflect"), *LINE)),
    ("reflection_pad3d_backward_out_cuda", backward(lambda x: F.pad(x, [1] * 6, "reflect"), *VOLUME)),
    ("nll_loss2d_forward_out_cuda_template", on(lambda x: F.nll_loss(x, x[:, 0].long() * 0), *IMAGE)),
    (
        "ctc_loss_backward_gpu",
        backward(lambda x: F.ctc_loss(x.log_softmax(2), torch.ones(1, 2).long().cuda(), *CTC), 5, 1, 3),
    ),
    (
        "embedding_bag_backward_cuda_max",
        backward(lambda x: F.embedding_bag(first(x), x, mode="max"), 5, 4),
    ),
    ("put_", on(lambda x: x.put_(first(x)[0], x[0] + 1), 3, 4)),
    ("put_", on(lambda x: x.put_(first(x)[0], x[0] + 1, accumulate=True), 3, 4)),
    ("_histc_cuda with floating point input", on(torch.histc, 3, 4)),
    ("_bincount_cuda", on(lambda x: torch.bincount(first(x)[0], weights=x[0]), 3, 4)),
    ("median CUDA with indices output", on(lambda x: x.median(0), 3, 4)),
    ("median CUDA with indices output", on(lambda x: x.nanmedian(0), 3, 4)),
    ("grid_sampler_2d_backward_cuda", backward(grid(2, False), *IMAGE)),
    ("cudnn_grid_sampler_backward", backward(grid(2, True), *IMAGE)),
    ("grid_sampler_3d_backward_cuda", backward(grid(3, False), *VOLUME)),
    ("scatter_reduce_cuda_prod_", on(lambda x: x.scatter_reduce(0, first(x), x, "prod"), 3, 4)),
    (
        "scatter_reduce_cuda_kernel",
        on(lambda x: x.scatter_(0, first(x), x.clone(), reduce="multiply"), 3, 4),
    ),
    ("index_reduce_cuda", on(lambda x: x.index_reduce_(0, first(x)[:, 0], x.clone(), "amax"), 3, 4)),
]
"""The kernel that CUDA names, and a call that it refuses."""

DETERMINISTIC = {
    "AdaptiveAvgPool2d of one": backward(lambda x: F.adaptive_avg_pool2d(x, 1), *IMAGE),
    "bilinear": upsampled("bilinear", *IMAGE),
    "nearest": backward(lambda x: F.interpolate(x, scale_factor=2), *IMAGE),
    "ReflectionPad2d": backward(lambda x: F.pad(x, [1] * 4, mode="reflect"), *IMAGE),
    "ReplicationPad2d": backward(lambda x: F.pad(x, [1] * 4, mode="replicate"), *IMAGE),
    "NLLLoss of each": on(
        lambda x: F.nll_loss(x, torch.zeros(1, 4, 4, dtype=torch.int64).cuda(), reduction="none"), *IMAGE
    ),
    "NLLLoss of rows": backward(lambda x: F.nll_loss(x, first(x)[:, 0]), 3, 4),
    "EmbeddingBag": backward(lambda x: F.embedding_bag(first(x), x, mode="sum"), 5, 4),
    "Embedding": backward(lambda x: F.embedding(first(x), x), 5, 4),
    "MaxPool2d": backward(lambda x: F.max_pool2d(x, 2), *IMAGE),
    "cumsum": on(lambda x: x.cumsum(0), 3, 4),
    "kthvalue": on(lambda x: x.kthvalue(1), 3, 4),
    "median of all": on(torch.median, 3, 4),
    "histc of integers": on(lambda x: torch.histc(first(x)), 3, 4),
    "bincount": on(lambda x: torch.bincount(first(x)[0]), 3, 4),
    "index_add": on(lambda x: x.index_add_(0, first(x)[:, 0], x.clone()), 3, 4),
    "scatter_add": on(lambda x: x.scatter_add_(0, first(x), x.clone()), 3, 4),
    "scatter_reduce": on(lambda x: x.scatter_reduce(0, first(x), x, "amax"), 3, 4),
    "scatter": on(lambda x: x.scatter_(0, first(x), x.clone(), reduce="add"), 3, 4),
}


@pytest.mark.parametrize(("kernel", "call"), REFUSED)
def test_what_cuda_cannot_do_deterministically_is_refused(kernel, call):
    with practice_gpu(force=True):
        call()
        torch.use_deterministic_algorithms(True)
        with pytest.raises(RuntimeError) as caught:
            call()
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning) as warned:
            call()
    assert str(caught.value) == (
        f"{kernel} does not have a deterministic implementation, but you set "
        "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, "
        "or you can use the 'warn_only=True' option, if that's acceptable for your application. You can also "
        "file an issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding "
        "deterministic support for this operation."
    )
    text = f"{kernel} does not have a deterministic implementation, but you set 'torch.use_deterministic_"
    assert [str(warning.message).startswith(text) for warning in warned].count(True) == 1


@pytest.mark.parametrize("call", DETERMINISTIC.values(), ids=DETERMINISTIC)
def test_what_cuda_does_deterministically_is_done(call):
    torch.use_deterministic_algorithms(True)
    with practice_gpu(force=True):
        call()


def test_tensors_of_the_host_are_not_asked():
    torch.use_deterministic_algorithms(True)
    with practice_gpu(force=True):
        assert torch.histc(torch.rand(3), 4).sum() == 3


def test_a_warning_names_the_line_that_it_is_about():
    torch.use_deterministic_algorithms(True, warn_only=True)
    with practice_gpu(force=True), pytest.warns(UserWarning, match="_histc_cuda") as warned:
        torch.histc(torch.rand(3, device="cuda"))
    assert warned[0].filename == __file__


@pytest.mark.parametrize("config", [None, ":8:1", ":4096:8", ":16:8"])
def test_before_pytorch_2_10_matrix_products_ask_for_cublass_workspace(config, monkeypatch):
    monkeypatch.setattr(determinism, "CUBLAS_IS_ASKED", True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    check = determinism.check_of("addmm", "")
    check([torch.ones(2, 2)], {})
    torch.use_deterministic_algorithms(True)
    if config in (":4096:8", ":16:8"):
        check([torch.ones(2, 2)], {})
        return
    with pytest.raises(RuntimeError, match="it uses CuBLAS"):
        check([torch.ones(2, 2)], {})
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="CUBLAS_WORKSPACE_CONFIG=:4096:8"):
        check([torch.ones(2, 2)], {})


def test_pytorch_since_2_10_asks_for_no_workspace(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.use_deterministic_algorithms(True)
    with practice_gpu(force=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.rand(2, 2, device="cuda")
        if determinism.CUBLAS_IS_ASKED:
            with pytest.raises(RuntimeError, match="CuBLAS"):
                x @ x
        else:
            assert (x @ x).is_cuda
