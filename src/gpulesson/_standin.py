"""Images for a machine without network: scikit-learn's digits in Fashion-MNIST's shapes and counts."""

from __future__ import annotations

import hashlib
import math
import os
import struct
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from gpulesson._files import read_file, whole_file

SOURCE = "digits stand-in"
CLASSES = tuple("0123456789")
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""Fashion-MNIST's names, in the order of `digits`."""
MARK = "STAND-IN.txt"
RECIPE = "recipe 1"  # to be raised when `digits` makes other images: files of an older one are made anew
NOTE = """\
The files in this folder have the names and the format of Fashion-MNIST's, but they hold scikit-learn's
digits, as images of 28 x 28 pixels: a stand-in for machines without a network. gpulesson made them. You may
delete the folder.
"""
LARGEST = 16 + 60_000 * 28 * 28  # bytes of a file, that of the training images
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


def marked(folder: Path) -> bool:
    """Return whether ``folder/FashionMNIST/raw`` says that it holds the stand-in."""
    return os.path.lexists(_raw(folder) / MARK)


def stored(folder: Path) -> dict[str, bytearray] | None:
    """Return the stand-in's files in the folder, by name, if all are as `store` wrote them."""
    raw = _raw(folder)
    try:
        mark = read_file(raw / MARK, 10_000) or b""
        contents = {name: read_file(raw / name, LARGEST) or bytearray() for name in FILES}
    except OSError:
        return None
    lines = mark.decode("utf-8", "replace").splitlines()
    whole = RECIPE in lines and all(_line(name, content) in lines for name, content in contents.items())
    return contents if whole else None


def store(folder: Path) -> Path:
    """Write the digits into the folder, in the layout in which torchvision reads Fashion-MNIST; once.

    The mark comes first, with the checksums of the files, so that they are never there without it. Each file
    comes in one piece; where two processes write at the same time, they write the same.
    """
    if stored(folder) is None:
        raw = _raw(folder)
        contents = [_idx(tensor) for tensor in digits()]
        lines = [_line(name, content) for name, content in zip(FILES, contents, strict=True)]
        mark = "\n".join([NOTE, RECIPE, *lines, ""]).encode()
        for name, content in zip((MARK, *FILES), (mark, *contents), strict=True):
            with whole_file(raw / name) as file:
                file.write(content)
    return folder


def _raw(folder: Path) -> Path:
    return folder / "FashionMNIST" / "raw"


def _idx(tensor: Tensor) -> bytes:
    """Return the IDX format of bytes: 0, 0, 8, the number of dimensions, the dimensions, the values."""
    values = tensor.to(torch.uint8).numpy()
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def _line(name: str, content: bytes | bytearray) -> str:
    return f"{hashlib.sha256(content).hexdigest()}  {name}"
