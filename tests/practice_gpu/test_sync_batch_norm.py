"""The operators of ``SyncBatchNorm``, on parts of a batch, against batch normalisation of the whole."""

import pytest
import torch
from torch.nn import functional

from practice_gpu.surface import batch_norm as ours

EPS, MOMENTUM = 1e-5, 0.1


@pytest.mark.parametrize("shape", [(7, 3), (7, 3, 4), (7, 3, 4, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_parts_are_normalised_as_the_whole(shape, affine):
    torch.manual_seed(0)
    inputs = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(shape, dtype=torch.float64)
    weight, bias = (torch.randn(3, dtype=torch.float64, requires_grad=True) if affine else None for _ in "wb")
    running = [torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    expected = [each.clone() for each in running]
    outputs = functional.batch_norm(inputs, *expected, weight, bias, True, MOMENTUM, EPS)
    outputs.backward(grad)

    with torch.no_grad():
        parts, grads = inputs.split([5, 2]), grad.split([5, 2])
        counts = torch.tensor([[part.numel() / 3] for part in parts])
        means, invstds = zip(*(ours.batch_norm_stats(part, EPS) for part in parts), strict=True)
        stats = ours.batch_norm_gather_stats_with_counts(
            inputs, torch.stack(means), torch.stack(invstds), *running, MOMENTUM, EPS, counts
        )
        normalised = [ours.batch_norm_elemt(part, weight, bias, *stats, EPS) for part in parts]
        pairs = list(zip(grads, parts, strict=True))
        reduced = [
            ours.batch_norm_backward_reduce(*pair, *stats, weight, True, affine, affine) for pair in pairs
        ]
        sums = [sum(each[n] for each in reduced) for n in range(2)]
        back = [
            ours.batch_norm_backward_elemt(*pair, *stats, weight, *sums, counts.view(-1)) for pair in pairs
        ]

    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(torch.cat(normalised), outputs.detach(), **close)
    torch.testing.assert_close(torch.cat(back), inputs.grad, **close)
    for ours_now, theirs in zip(running, expected, strict=True):
        torch.testing.assert_close(ours_now, theirs, **close)
    if affine:
        torch.testing.assert_close(reduced[0][2] + reduced[1][2], weight.grad, **close)
        torch.testing.assert_close(reduced[0][3] + reduced[1][3], bias.grad, **close)
    else:
        assert reduced[0][2] is reduced[0][3] is None


def test_sums_of_half_precision_are_kept_in_single():
    inputs = torch.full((4096, 1), 1.001, dtype=torch.float16)
    mean, invstd = ours.batch_norm_stats(inputs, EPS)
    assert mean.dtype == invstd.dtype == torch.float32
    assert mean.item() == inputs[0].item()
    assert ours.batch_norm_elemt(inputs, None, None, mean, invstd, EPS).dtype == torch.float16
