"""What the exercises' tests share."""

from __future__ import annotations

import struct

import pytest

from gpulesson import _standin


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    """No test may touch the progress of the one who runs it."""
    path = tmp_path / "data" / "progress.json"
    monkeypatch.setenv("GPULESSON_PROGRESS", str(path))
    return path


@pytest.fixture(scope="session")
def few_images(tmp_path_factory):
    """A folder like Fashion-MNIST's, with few images: a training with all of them takes ten times as long."""
    folder = tmp_path_factory.mktemp("few_images")
    raw = folder / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name, tensor in zip(_standin.FILES, _standin.digits(6000, 1500), strict=True):
        header = struct.pack(f">{1 + tensor.dim()}I", 0x800 + tensor.dim(), *tensor.shape)
        (raw / name).write_bytes(header + tensor.byte().numpy().tobytes())
    return folder
