"""The practice GPU takes the types of numbers that CUDA takes, and refuses the others in CUDA's words."""

import warnings
from itertools import islice
from typing import Any

import database
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map_only

from practice_gpu import practice_gpu
from practice_gpu.operators import dtypes

SMALL = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
OTHERS = "bool float16 bfloat16 float32 float64 complex64 complex128"
TYPES = [*SMALL, *(getattr(torch, name) for name in OTHERS.split())]

EXCEPTIONS = {
    (
        "_efficient_attention_forward",
        "_flash_attention_forward",
    ): "CUDA's own, with no counterpart on the CPU; scaled_dot_product_attention uses the CPU's",
    ("nansum", "nanmean"): "of complex numbers, which the CPU cannot sum without NaN",
    ("sampled_addmm",): "of sparse matrices in half precision, which the CPU does not know",
    ("stft",): "of bfloat16, which the CPU refuses before any operator runs",
}
"""Parts of the names of operators of which the practice GPU takes other types than CUDA, and why."""

R = torch.arange(12).reshape(3, 4)
WORDS = {
    "mm": (lambda x: x @ x.T, "\"addmm_cuda\" not implemented for 'Long'"),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x), "\"baddbmm_cuda\" not implemented for 'Long'"),
    "linear": (lambda x: F.linear(x, x), "\"addmm_cuda\" not implemented for 'Long'"),
    "linear with bias": (lambda x: F.linear(x, x, x[0, :3]), "\"addmm_cuda\" not implemented for 'Long'"),
    "addmm_": (lambda x: x[:, :3].addmm_(x, x.T), "\"addmm_cuda\" not implemented for 'Long'"),
    "mm, written to": (lambda x: torch.mm(x, x.T, out=x.new_empty(3, 3)), '"addmm_cuda" not implemented for'),
    "bmm": (lambda x: torch.bmm(x[None], x.T[None]), "\"baddbmm_cuda\" not implemented for 'Long'"),
    "mv": (lambda x: x @ x[0], "\"addmv_impl_cuda\" not implemented for 'Long'"),
    "dot": (lambda x: x[0].int() @ x[0].int(), "\"dot\" not implemented for 'Int'"),
    "conv2d": (
        lambda x: F.conv2d(x[None, None], x[None, None]),
        "getCudnnDataTypeFromScalarType() not supported for Long",
    ),
    "max_pool2d": (
        lambda x: F.max_pool2d(x[None, None], 2),
        "\"max_pool2d_with_indices_out_cuda_frame\" not implemented for 'Long'",
    ),
    "avg_pool2d": (
        lambda x: F.avg_pool2d(x[None, None], 2),
        "\"avg_pool2d_out_cuda_frame\" not implemented for 'Long'",
    ),
    "histc": (lambda x: torch.histc(x.half()), "HalfTensor is not supported"),
    "histogram": (
        lambda x: torch.histogram(x.float(), 3),
        "Could not run 'aten::histogram.bin_ct' with arguments from the 'CUDA' backend.",
    ),
    "sizes that do not fit": (  # come first
        lambda x: x @ x,
        "mat1 and mat2 shapes cannot be multiplied (3x4 and 3x4)",
    ),
    "two types": (
        lambda x: x @ x.T.float(),
        "expected mat1 and mat2 to have the same dtype, but got: long int != float",
    ),
    "images of bytes": (
        lambda x: F.conv2d(x.byte()[None, None], x[None, None].float()),
        "Input type (torch.cuda.ByteTensor) and weight type (torch.cuda.FloatTensor) should be the same",
    ),
    "bool": (  # a type that the CPU refuses, too, in other words
        lambda x: F.avg_pool3d((x > 5)[None, None, None], (1, 2, 2)),
        "\"avg_pool3d_out_cuda\" not implemented for 'Bool'",
    ),
}
"""What CUDA says, asked as ``tests/practice_gpu/stand_in.py`` does."""


@pytest.mark.parametrize(("function", "text"), WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_types_that_cuda_refuses_are_refused_in_its_words(function, text, inference):
    with practice_gpu(force=True), torch.inference_mode(inference):
        with pytest.raises(RuntimeError) as caught:
            function(R.cuda())
        if "not implemented for 'Long'" in text:
            function(R.clone())  # on the host all is as ever
    assert str(caught.value).removeprefix("mm: ").startswith(text)
    implemented = "not implemented for" in text or "Could not run" in text
    assert type(caught.value) is (NotImplementedError if implemented else RuntimeError)


def test_some_reductions_take_what_others_refuse(gpu):
    x, index = (R > 5).cuda(), torch.zeros_like(R).cuda()
    with pytest.raises(NotImplementedError, match="cuda_scatter_gather_base_kernel_func"):
        x.scatter_reduce(0, index, x, "amax")
    assert x.scatter_reduce(0, index, x, "sum").is_cuda


def test_of_nothing_nothing_is_refused(gpu):
    x = R.cuda()
    assert (x[:0] @ x.T).shape == (0, 3)


HALF = {
    "avg_pool3d": lambda x: F.avg_pool3d(x.reshape(1, 1, 2, 4, 4), 2),
    "multi_margin_loss": lambda x: F.multi_margin_loss(
        x.reshape(4, 8), torch.tensor([0, 1, 2, 7], device=x.device)
    ),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(
        x.reshape(4, 8), torch.tensor([[1, 2, -1, 0, 0, 0, 0, 0]] * 4, device=x.device)
    ),
    "rrelu": lambda x: F.rrelu(x, 0.25, 0.25, training=True),
    "fft": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "rfft2": lambda x: torch.view_as_real(torch.fft.rfft2(x.reshape(4, 8))),
    "irfftn": lambda x: torch.fft.irfftn(torch.fft.rfftn(x.reshape(2, 2, 8))),
}


@pytest.mark.parametrize("function", HALF.values(), ids=HALF)
def test_half_precision_that_only_cuda_knows_is_computed_in_float32(function):
    torch.manual_seed(0)
    given = torch.randn(32).half()
    exact = given.float().requires_grad_()
    expected = function(exact)
    expected.sum().backward()
    with pytest.raises(RuntimeError):  # in PyTorch's newer versions a NotImplementedError
        function(given)
    with practice_gpu(force=True):
        x = given.cuda().requires_grad_()
        found = function(x)
        found.sum().backward()
        assert found.is_cuda and found.dtype is torch.float16 and x.grad.dtype is torch.float16
        assert_close(found.cpu(), expected.half(), rtol=1e-2, atol=1e-3)
        assert_close(x.grad.cpu(), exact.grad.half(), rtol=1e-2, atol=1e-3)


def test_half_precision_is_written_where_it_belongs(gpu):
    x = torch.tensor([1.5, -0.5], device="cuda").half()
    result = F.rrelu_(x, 0.25, 0.25, training=True)
    assert result is x and x.tolist() == [1.5, -0.125]


def test_matrices_are_multiplied_into_another_type():
    if not hasattr(torch.ops.aten.mm, "dtype"):
        pytest.skip("this PyTorch has no out_dtype=")
    x = torch.tensor([[1.0, 2.0**-9]]).bfloat16()
    with practice_gpu(force=True):
        there = x.cuda()
        for found in (
            torch.mm(there, there.T, out_dtype=torch.float32),
            torch.bmm(there[None], there.T[None], out_dtype=torch.float32)[0],
        ):
            assert found.is_cuda and found.tolist() == [[1 + 2.0**-18]]  # more digits than bfloat16 has


def test_fourier_transforms_in_half_precision_take_powers_of_two():
    text = "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision"
    with practice_gpu(force=True):
        x = torch.rand(4, 6, device="cuda")
        for call in (
            lambda: torch.fft.fft(x.half()),
            lambda: torch.fft.rfft2(x.half()),
            lambda: torch.fft.irfft(x.half()),
        ):
            with pytest.raises(RuntimeError, match=text):
                call()
        assert torch.fft.fft(x.half(), n=8).dtype is torch.complex32
        assert torch.fft.fft(x.half(), dim=0).is_cuda
        assert torch.fft.fft(x.bfloat16()).dtype is torch.complex64  # bfloat16 has no complex type
        with pytest.raises(RuntimeError, match="Unsupported dtype Half"):
            torch.fft.fft(x.cpu().half())


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_histograms_of_integers_are_counted(dtype):
    values = torch.tensor([0, 1, 1, 3, 7])
    with practice_gpu(force=True):
        found = torch.histc(values.to(dtype).cuda(), bins=4, min=0, max=7)
        assert found.is_cuda and found.dtype is dtype
        assert found.tolist() == torch.histc(values.float(), bins=4, min=0, max=7).tolist()


def test_the_table_is_that_of_this_pytorch():
    """An older one differs little; for a newer one the table is to be made anew: ``stand_in.py`` says how."""

    def numbers(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in version.split("+")[0].split(".")[:2])

    assert numbers(torch.__version__) <= numbers(dtypes._file()["torch"])


def call(op: Any, sample: Any) -> str | None:
    """Run one sample on the practice GPU, and return its error."""
    values = (sample.input, sample.args, sample.kwargs)
    first, args, kwargs = tree_map_only(torch.Tensor, lambda t: t.detach().clone().to("cuda"), values)
    function = getattr(torch.fft, op.name[4:]) if op.name.startswith("fft.") else op  # not the one imported
    try:
        function(first, *args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:100]
    return None


@pytest.mark.slow
@database.SHARES
def test_every_operator_takes_the_types_that_cuda_takes(every):
    """All types of which the database says that one device takes them, and the other does not."""
    pairs, wrong = 0, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in database.operators(every):
            for dtype in TYPES:
                if (dtype in op.dtypes) == (wanted := dtype in op.dtypesIfCUDA):
                    continue
                samples = [
                    sample
                    for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=False), 4)
                    if all(
                        leaf.numel() for leaf in tree_leaves(sample.input) if isinstance(leaf, torch.Tensor)
                    )
                ]
                with practice_gpu(force=True):
                    errors = [call(op, sample) for sample in samples]
                pairs += 1
                if any(errors) is wanted or not errors:
                    wrong[f"{database.full_name(op)}, {dtype}"] = next(filter(None, errors), "no error")
    print(f"{pairs} pairs of operator and type in which CUDA differs from the CPU; {len(wrong)} not as CUDA")
    for name, problem in wrong.items():
        print(f"  {name}: {problem}")
    parts = [part for names in EXCEPTIONS for part in names]
    assert pairs > 150 / every
    assert not [name for name in wrong if not any(part in name for part in parts)]
    if every == 1:
        assert all(any(part in name for name in wrong) for part in parts)


@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.randn(3, dtype=torch.int64, device="cuda"),
        lambda: torch.randn_like(torch.ones(3, dtype=torch.int64, device="cuda")),
        lambda: torch.ones(3, dtype=torch.int64, device="cuda").normal_(),
    ],
    ids=["randn", "randn_like", "normal_"],
)
def test_whole_numbers_are_not_drawn_from_a_normal_distribution(function):
    expected = r"^\"normal_kernel_cuda\" not implemented for 'Long'$"
    with practice_gpu(force=True), pytest.raises(NotImplementedError, match=expected):
        function()
