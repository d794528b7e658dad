"""Fashion-MNIST's four files: find, verify, download (with torchvision) and read them."""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import importlib
import io
import lzma
import os
import socket
import tempfile
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor

from gpulesson._files import printable, read_file, whole_file
from gpulesson._progress import person_watches

TIMEOUT = 20.0  # seconds to wait for a server, and for each piece of its answer
AGAIN = "Delete this file and run again: it will be downloaded again."
ELSEWHERE = "Set the environment variable GPULESSON_DATA to a folder that you may write to."
EXCERPT = Path(__file__).with_name("excerpt")
MOST = 70_000  # images in all of Fashion-MNIST, so that no file of it has more


@dataclass(frozen=True)
class PublishedFile:
    """What is known of one file.

    Attributes
    ----------
    packed_size : int
    packed_sha256 : str
    md5 : dict of int to str
        The checksum of what it unpacks to, by its size in bytes: of the whole file first, then of the first
        8,000 training and the first 4,000 test examples, which this project is tested with, then of the
        excerpt that the package brings.
    """

    packed_size: int
    packed_sha256: str
    md5: dict[int, str]


# as torchvision names them
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
# SHA-256 of the packed files: src/data/fashion-mnist.jl in https://github.com/FluxML/Flux.jl at 1544f84b.
# Sizes, and MD5 of the whole unpacked files: the git-annex keys of FashionMNIST/raw in
# https://github.com/datasets-mila/datasets--fashionmnist at 1725c394, where torchvision unpacked packed files
# with the MD5 that torchvision and https://github.com/zalandoresearch/fashion-mnist list. An MD5 does not
# withstand one who may choose both of two files, but nobody can make a second file for one that is given.
FILES = {
    "train-images-idx3-ubyte": PublishedFile(
        26_421_880,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        {
            47_040_016: "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            6_272_016: "b96959cdfcb9e4fec9ac31035371f864",
            4_704_016: "cae7193a8e3dd75966f4b1f38d78ca94",
        },
    ),
    "train-labels-idx1-ubyte": PublishedFile(
        29_515,
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        {
            60_008: "9018921c3c673c538a1fc5bad174d6f9",
            8_008: "9b896ff5859130ffef156936c5914099",
            6_008: "1641b7f3205a263b146be7f1df295e66",
        },
    ),
    "t10k-images-idx3-ubyte": PublishedFile(
        4_422_102,
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        {
            7_840_016: "8181f5470baa50b63fa0f6fddb340f0a",
            3_136_016: "93064903ed60485c0037c438c97286dd",
            784_016: "c5442ce2f064c32bf3ec2983a505322f",
        },
    ),
    "t10k-labels-idx1-ubyte": PublishedFile(
        5_148,
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        {
            10_008: "15d484375f8d13e6eb1aabb0c3f46965",
            4_008: "62227c0e3467fee9522a2a7839de5c1d",
            1_008: "a00963b89d54a5ab6dc42b2b2c57c0e7",
        },
    ),
}
# The authors' own copy, before the one of torchvision, which has no HTTPS.
MIRRORS = ["https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"]


class DataError(RuntimeError):
    """Data is damaged, cannot be stored, or cannot be downloaded."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message, 10_000))  # it may hold names of files, or words of a server


class MissingDataError(DataError):
    """The data is not in the folder and was not downloaded; nothing is damaged."""


def needed(module: str) -> Any:
    """Import a library that only some functions use, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        package = {"sklearn": "scikit-learn"}.get(library, library)
        raise DataError(
            f"this needs {library}, which does not load ({error}). Install it: pip install {package}"
        ) from error


def load(folder: Path, *, download: bool, unpack: bool = False) -> tuple[list[Tensor], bool]:
    """Return the tensors of ``folder/FashionMNIST/raw``, and whether all checksums are known.

    Parameters
    ----------
    unpack : bool
        Unpack files that are there in packed form only, as torchvision's class needs them.

    Returns
    -------
    list of Tensor
        Train images, train targets, test images, test targets.
    bool
        False if a file is an excerpt without a known checksum.
    """
    raw = folder / "FashionMNIST" / "raw"
    contents = {name: _stored(raw, name, unpack) for name in FILES}
    found = {name: tensor(raw / name, content) for name, content in contents.items() if content is not None}
    verified = [_is_known(raw / name, content) for name, content in contents.items() if content is not None]
    missing = [name for name in FILES if name not in found]
    if missing and not download:
        raise MissingDataError(
            f"{raw} has no {', '.join(missing)}, and downloading is switched off: allow it "
            "(download=True), or copy the files there."
        )
    if missing:
        _fetch(raw, missing)
        return load(folder, download=False)
    for images, labels in (list(FILES)[:2], list(FILES)[2:]):
        if len(found[images]) != len(found[labels]):
            raise DataError(
                f"{raw / images} holds {len(found[images])} images, but {labels} holds {len(found[labels])} "
                "labels: they do not belong together. Delete both and run again to download them again."
            )
    return [found[name] for name in FILES], all(verified)


def excerpt() -> list[Tensor]:
    """Return the tensors of the excerpt that the package brings, in the order of `load`."""
    return [tensor(EXCERPT / name, content) for name, content in _excerpt_files().items()]


def store_excerpt(folder: Path) -> Path:
    """Write the excerpt into the folder as torchvision reads it; a file that is right already stays."""
    raw = folder / "FashionMNIST" / "raw"
    for name, content in _excerpt_files().items():
        if not (raw / name).is_file() or (raw / name).read_bytes() != content:
            with whole_file(raw / name) as file:
                file.write(content)
    return folder


def _excerpt_files() -> dict[str, bytearray]:
    return {name: bytearray(lzma.decompress((EXCERPT / f"{name}.xz").read_bytes())) for name in FILES}


def tensor(path: Path, content: bytearray) -> Tensor:
    """Read an IDX file (http://yann.lecun.com/exdb/mnist) whose header agrees with its size."""
    images = "images" in path.name
    # 08 = bytes, then the number of dimensions, then the size of each, in 4 bytes
    magic, shape, kind = (0x803, [28, 28], "28 × 28 images") if images else (0x801, [], "labels")
    start = 8 + 4 * len(shape)
    numbers = [int.from_bytes(content[i : i + 4], "big") for i in range(0, min(start, len(content)), 4)]
    if len(content) < start or numbers[:1] + numbers[2:] != [magic, *shape]:
        raise DataError(
            f"{path} is not a file of {kind}: its {len(content)} bytes begin with the numbers {numbers}, "
            f"expected {[magic, '…', *shape]}. {AGAIN}"
        )
    expected = start + numbers[1] * (28 * 28 if images else 1)
    if len(content) != expected or not numbers[1]:
        raise DataError(
            f"{path} is half-downloaded or altered: it has {len(content)} bytes, but its header announces "
            f"{numbers[1]} {kind}, which make {expected}. {AGAIN}"
        )
    values = torch.frombuffer(content, dtype=torch.uint8, offset=start).view(numbers[1], *shape)
    if not images and values.max() > 9:
        raise DataError(
            f"{path} is altered: it holds the label {int(values.max())}, expected 0 to 9. {AGAIN}"
        )
    return values if images else values.long()


def _is_known(path: Path, content: bytes | bytearray) -> bool:
    """Return whether the checksum is known for this file; raise if the bytes are wrong or another file's."""
    known = FILES[path.name].md5
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found in known.values():
        return True
    for name, other in FILES.items():
        if found in other.md5.values():
            raise DataError(
                f"{path} holds what belongs in {name}: the files were exchanged. Give them their own "
                "names, or delete all four and run again: they will be downloaded again."
            )
    if expected := known.get(len(content)):
        raise DataError(
            f"{path} is altered, or of another data set (MNIST's files have the same names): its "
            f"{len(content)} bytes have the MD5 {found}, expected {expected}. {AGAIN}"
        )
    return False


def _stored(raw: Path, name: str, unpack: bool) -> bytearray | None:
    """Return the file's content, or what the packed one holds, or None if neither is there."""
    path, packed = raw / name, raw / f"{name}.gz"
    try:
        content = read_file(path, 16 + MOST * 28 * 28)
        if content is not None:
            return content
        compressed = read_file(packed, FILES[name].packed_size)
    except OSError as error:
        raise DataError(
            f"cannot read the data folder {raw} ({error}). Repair or remove what is there, or set the "
            "environment variable GPULESSON_DATA to another folder."
        ) from error
    if compressed is None:
        return None
    content = _unpacked(packed, compressed)
    if unpack:
        try:
            with whole_file(path) as file:
                file.write(content)
        except OSError as error:
            raise DataError(
                f"torchvision needs {path}, and the packed file beside it cannot be unpacked there "
                f"({error}). {ELSEWHERE}"
            ) from error
    return content


def _unpacked(packed: Path, compressed: bytes | bytearray) -> bytearray:
    """Verify a packed file and return its content."""
    found, expected = hashlib.sha256(compressed).hexdigest(), FILES[packed.stem].packed_sha256
    if found != expected:
        raise DataError(
            f"{packed} is half-downloaded or altered: it has {len(compressed)} bytes with the SHA-256 "
            f"{found}, expected {expected}. {AGAIN}"
        )
    return bytearray(gzip.decompress(compressed))


def _fetch(raw: Path, names: list[str]) -> None:
    """Download all files with torchvision, verify and store these, if the folder is writable."""
    try:
        raw.mkdir(parents=True, exist_ok=True)
        if not os.access(raw, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(raw))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as elsewhere:
            _download(elsewhere, raw, names)
            for name in names:
                packed = Path(elsewhere, "FashionMNIST", "raw", f"{name}.gz")
                content = _unpacked(packed, packed.read_bytes())
                with whole_file(raw / name) as file:
                    file.write(content)
    except OSError as error:
        raise DataError(f"cannot write to the data folder {raw} ({error}). {ELSEWHERE}") from error


def _download(folder: str, raw: Path, names: list[str]) -> None:
    """Have torchvision's class download all of Fashion-MNIST into a folder."""
    theirs = needed("torchvision.datasets").FashionMNIST
    ours = type("FashionMNIST", (theirs,), {"mirrors": [*MIRRORS, *theirs.mirrors]})
    silence = contextlib.nullcontext() if person_watches() else contextlib.redirect_stderr(io.StringIO())
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT)  # torchvision sets none, and would wait for ever
    try:
        with silence:
            ours(folder, download=True)
    except (RuntimeError, URLError, HTTPException, ConnectionError, TimeoutError) as error:
        raise MissingDataError(
            f"{raw} has no {', '.join(names)}, and torchvision could not download it ({error}). Check the "
            "network, or copy the four files of Fashion-MNIST there."
        ) from error
    finally:
        socket.setdefaulttimeout(before)
