"""Fashion-MNIST's four files: find them, verify them, fetch what is missing, read them."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import importlib.util
import os
import shutil
import tempfile
import zlib
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from gpulesson._progress import person_watches

TIMEOUT = 20.0  # seconds to wait for a server's answer, and for each piece of it
RETRIES = 2  # further attempts at each mirror
AGAIN = "Delete this file and run again: it will be fetched anew."
ELSEWHERE = "Set the environment variable GPULESSON_DATA to a folder that you may write to."


class DataError(RuntimeError):
    """Data that is damaged, cannot be stored, or cannot be had."""


class MissingDataError(DataError):
    """Nothing is damaged, but the data is not in the folder and could not be fetched."""


def needed(module: str) -> Any:
    """Import a library that only some functions use, or say how to get it."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # torchvision raises RuntimeError beside a foreign torch
        library = module.partition(".")[0]
        package = {"sklearn": "scikit-learn"}.get(library, library)
        raise DataError(
            f"this needs {library}, which does not load ({error}). Install it: pip install {package}"
        ) from error


def load(folder: Path, *, download: bool) -> list[Tensor]:
    """Return train images, train targets, test images, test targets from ``folder/FashionMNIST/raw``."""
    raw = folder / "FashionMNIST" / "raw"
    try:
        names = [packed.removesuffix(".gz") for packed in _checksums()]
        missing = [name for name in names if not ((raw / name).exists() or (raw / f"{name}.gz").exists())]
        if missing and not download:
            raise MissingDataError(
                f"{raw} has no {', '.join(missing)}, and downloading is switched off: allow it "
                "(download=True), or copy the files there."
            )
        for name in missing:
            _fetch(raw, name)
        with ExitStack() as stack:
            tensors = [_read(_verified(raw / name, stack)) for name in names]
    except OSError as error:
        raise DataError(f"cannot read the data folder {raw} ({error}). {ELSEWHERE}") from error
    for i in (0, 2):
        images, labels = len(tensors[i]), len(tensors[i + 1])
        if images != labels:
            raise DataError(
                f"{raw / names[i]} holds {images} images, but {names[i + 1]} holds {labels} labels: they do "
                "not belong together. Delete both and run again: they will be fetched anew."
            )
    return tensors


def unpack(folder: Path) -> None:
    """Unpack what is there in packed form alone: torchvision's class needs it so. `load` has checked it."""
    raw = folder / "FashionMNIST" / "raw"
    for name in (packed.removesuffix(".gz") for packed in _checksums()):
        if not (raw / name).exists():
            try:
                _unpack(raw / f"{name}.gz")
            except OSError as error:
                raise DataError(
                    f"torchvision needs {raw / name}, and the packed file beside it cannot be unpacked there "
                    f"({error}). {ELSEWHERE}"
                ) from error


def _checksums() -> dict[str, str]:
    """Return torchvision's list, file name to MD5: train images, train labels, test images, test labels."""
    return dict(needed("torchvision.datasets").FashionMNIST.resources)


def _verified(path: Path, stack: ExitStack) -> Path:
    """Return `path`, or what ``path.gz`` unpacks to for as long as `stack` lives, having checked its bytes.

    Only the packed files have published checksums. Beside one, an unpacked file is held against the CRC-32 in
    gzip's trailer (RFC 1952, section 2.3.1); alone, its size and header are all that can be checked.
    """
    packed = path.with_name(path.name + ".gz")
    if not packed.exists():
        return path
    content = packed.read_bytes()
    found, expected = hashlib.md5(content, usedforsecurity=False).hexdigest(), _checksums()[packed.name]
    if found != expected:
        raise DataError(
            f"{packed} is half-downloaded or altered: it has {len(content)} bytes with the MD5 {found}, "
            f"expected {expected}. {AGAIN}"
        )
    if not path.exists():
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / path.name
        path.write_bytes(gzip.decompress(content))
    elif zlib.crc32(path.read_bytes()) != int.from_bytes(content[-8:-4], "little"):
        raise DataError(
            f"{path} is half-downloaded or altered: its {path.stat().st_size} bytes are not those of "
            f"{packed.name} beside it. {AGAIN}"
        )
    return path


def _read(path: Path) -> Tensor:
    """Read one IDX file (http://yann.lecun.com/exdb/mnist) whose header agrees with its size."""
    mnist = needed("torchvision.datasets.mnist")
    images = "images" in path.name
    # 08 = bytes, then the number of dimensions, then the size of each, in 4 bytes
    magic, shape, kind = (0x803, [28, 28], "28 × 28 images") if images else (0x801, [], "labels")
    with path.open("rb") as file:
        header = file.read(8 + 4 * len(shape))
    numbers = [int.from_bytes(header[i : i + 4], "big") for i in range(0, len(header), 4)]
    size = path.stat().st_size
    if numbers[:1] + numbers[2:] != [magic, *shape]:
        raise DataError(
            f"{path} is no file of {kind}: its {size} bytes begin with the numbers {numbers}, expected "
            f"{[magic, '…', *shape]}. {AGAIN}"
        )
    expected = len(header) + numbers[1] * (28 * 28 if images else 1)
    if size != expected or not numbers[1]:
        raise DataError(
            f"{path} is half-downloaded or altered: it has {size} bytes, but its header announces "
            f"{numbers[1]} {kind}, which make {expected}. {AGAIN}"
        )
    values: Tensor = mnist.read_image_file(path) if images else mnist.read_label_file(path)
    if not images and values.max() > 9:
        raise DataError(
            f"{path} is altered: it holds the label {int(values.max())}, expected 0 to 9. {AGAIN}"
        )
    return values


def _fetch(raw: Path, name: str) -> None:
    """Download and unpack one file so that, whatever interrupts it, no half file bears a good name."""
    try:
        raw.mkdir(parents=True, exist_ok=True)
        _unpack(_download(raw, f"{name}.gz"), fetched=True)
    except OSError as error:
        raise DataError(f"cannot write to the data folder {raw} ({error}). {ELSEWHERE}") from error


def _unpack(packed: Path, *, fetched: bool = False) -> None:
    """Unpack ``name.gz`` beside it, in one piece."""
    path = packed.with_suffix("")
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(gzip.decompress(packed.read_bytes()))
        if fetched:  # pooch's files are for one user alone; a course may share the folder
            shutil.copymode(part, packed)
        part.replace(path)
    finally:
        with suppress(OSError):  # gone already, or never there
            part.unlink()


def _download(raw: Path, name: str) -> Path:
    """Fetch one file from the first mirror that has it; pooch verifies it before it gets its name."""
    pooch, requests = needed("pooch"), needed("requests")
    bar = person_watches() and importlib.util.find_spec("tqdm") is not None
    downloader = pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT, chunk_size=1 << 13)
    checksums = {name: f"md5:{_checksums()[name]}"}
    failures = []
    for mirror in needed("torchvision.datasets").FashionMNIST.mirrors:
        try:
            source = pooch.create(raw, mirror, registry=checksums, retry_if_failed=RETRIES)
            return Path(source.fetch(name, downloader=downloader))
        except requests.HTTPError as error:
            failures.append(str(error))
        except requests.RequestException as error:
            late = isinstance(error, requests.Timeout) or "timed out" in str(error)
            why = f"no answer within {TIMEOUT:g} s" if late else "the connection failed"
            failures.append(f"{mirror}{name}: {why}")
        except ValueError:  # from pooch, which has deleted the file
            failures.append(f"{mirror}{name}: what came has another checksum than torchvision lists")
    raise MissingDataError(
        f"{raw} has no {name.removesuffix('.gz')}, and it could not be downloaded ({'; '.join(failures)}). "
        "Check the network, or copy the four files of Fashion-MNIST there."
    )
