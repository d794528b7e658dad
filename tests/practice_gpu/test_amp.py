"""Autocast on the practice GPU gives the precisions that CUDA's autocast gives."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from practice_gpu import practice_gpu
from practice_gpu.surface import amp

IN_THE_HEADER_ALONE = {
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_nearest3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",  # all of them: interpolate
    "frobenius_norm", "nuclear_norm", "linalg_vector_norm", "linalg_matrix_norm",  # vector_norm, matrix_norm
    "native_layer_norm",  # layer_norm
    "nll_loss", "nll_loss2d", "mse_loss", "binary_cross_entropy_with_logits",  # so does the CPU's autocast
}  # fmt: skip


def test_the_list_is_that_of_pytorchs_header():
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    text = header.read_text(encoding="utf-8")
    named = set()
    for macro in ("AT_FORALL_FP32(_)", "AT_FORALL_FP32_SET_OPT_DTYPE(_)"):
        body = text.split(f"#define {macro}")[1].split("\n\n")[0]
        named |= set(re.findall(r"_\((\w+)", body))
    assert len(named) > 50
    assert named - IN_THE_HEADER_ALONE - set(amp.IN_FLOAT32.split()) == set()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_are_in_half_precision_and_losses_in_float32(gpu, dtype):
    x = torch.rand(4, 3, device="cuda")
    layer = nn.Linear(3, 2).cuda()
    with torch.autocast("cuda", dtype=dtype):
        logits = layer(x)
        found = {
            "linear": logits.dtype,
            "matmul": (x @ x.T).dtype,
            "relu": F.relu(logits).dtype,
            "cross_entropy": F.cross_entropy(logits, torch.tensor([0, 1, 0, 1], device="cuda")).dtype,
            "mse_loss": F.mse_loss(logits, x[:, :2]).dtype,
            "softmax": logits.softmax(1).dtype,
            "F.softmax": F.softmax(logits, dim=1).dtype,
            "layer_norm": F.layer_norm(logits, (2,)).dtype,
            "sum": logits.sum().dtype,
            "exp": torch.exp(logits).dtype,
            "pow": (logits**2).dtype,
            "sum in half": logits.sum(dtype=dtype).dtype,
        }
    half = {"linear", "matmul", "relu", "sum in half"}
    assert found == {name: dtype if name in half else torch.float32 for name in found}
    assert layer(x).dtype is torch.float32


def test_the_default_is_float16_and_the_weights_stay_in_float32(gpu):
    layer = nn.Linear(3, 2).cuda()
    with torch.autocast("cuda"):
        out = layer(torch.rand(4, 3, device="cuda"))
    out.float().sum().backward()
    assert out.dtype is torch.float16
    assert layer.weight.dtype is layer.weight.grad.dtype is torch.float32


def test_binary_cross_entropy_is_refused():
    with practice_gpu(force=True), torch.autocast("cuda"):
        p = torch.rand(3, device="cuda")
        with pytest.raises(RuntimeError, match="BCELoss are unsafe to autocast"):
            nn.BCELoss()(p, p)
        with torch.autocast("cuda", enabled=False):
            assert nn.BCELoss()(p, p).dtype is torch.float32


def test_the_cpus_own_autocast_is_restored():
    with practice_gpu(force=True), torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cuda", dtype=torch.float16):
            assert torch.get_autocast_dtype("cpu") is torch.float16
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


def test_rms_norm_is_compared_and_computed_in_float32():
    x, weight = torch.rand(2, 4), torch.ones(4)
    with practice_gpu(force=True), torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.rms_norm(x.cuda().bfloat16(), [4], weight.cuda().bfloat16()).dtype is torch.float32
        with pytest.raises(RuntimeError, match="wrapper_CUDA___fused_rms_norm"):
            torch.rms_norm(x.cuda(), [4], weight)
