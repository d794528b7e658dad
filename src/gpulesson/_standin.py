"""Images for a machine without network: scikit-learn's digits in Fashion-MNIST's shapes and counts."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 4000  # images at a time, so that the sampling grid stays within some 25 MB


def digits(train: int = 60_000, test: int = 10_000, *, seed: int = 0) -> list[Tensor]:
    """Return train images, train targets, test images, test targets.

    The 1797 originals of 8 × 8 pixels are divided first, one in six for testing and with every class divided
    alike, so that no original has variants in both parts. Then each part is filled with variants: enlarged to
    28 × 28, shifted, turned, scaled and with noise.

    Returns
    -------
    list of 4 Tensor
        Images uint8 ``[N, 28, 28]``, targets int64 ``[N]``.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    originals, labels = load_digits(return_X_y=True)
    images = torch.tensor(originals, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    targets = torch.tensor(labels)
    parts = train_test_split(torch.arange(len(targets)), test_size=1 / 6, random_state=seed, stratify=targets)
    generator = torch.Generator().manual_seed(seed)
    result: list[Tensor] = []
    for part, count in zip(parts, (train, test), strict=True):
        # each original as often as any other, in random order
        rounds = [part[torch.randperm(len(part), generator=generator)] for _ in range(-(-count // len(part)))]
        chosen = torch.cat(rounds)[:count]
        variants = [_variants(images[some], generator) for some in torch.split(chosen, CHUNK)]
        result += [torch.cat(variants), targets[chosen]]
    return result


def _variants(images: Tensor, generator: torch.Generator) -> Tensor:
    """Turn ``[N, 1, 8, 8]`` in 0 to 1 into jittered uint8 ``[N, 28, 28]``."""

    def uniform(limit: float, *shape: int) -> Tensor:
        return (torch.rand(*shape, generator=generator) * 2 - 1) * limit

    n = len(images)
    angle = uniform(math.radians(10), n)
    scale = 1.25 + uniform(
        0.1, n
    )  # above 1: sampled from a wider field, which leaves a margin like Fashion-MNIST's
    shift = uniform(0.15, n, 2, 1)  # in half widths: about 2 pixels of 28
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(n, 2, 2)
    field = torch.cat([turn * scale.view(n, 1, 1), shift], 2)  # [N, 2, 3], the affine map of each image
    grid = F.affine_grid(field, [n, 1, 28, 28], align_corners=False)
    sampled = F.grid_sample(images, grid, align_corners=False)[:, 0]  # [N, 28, 28], zeros outside
    noise = torch.randn(n, 28, 28, generator=generator) * 0.03
    return ((sampled + noise).clamp(0, 1) * 255).round().to(torch.uint8)
