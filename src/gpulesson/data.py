"""The data of the lessons: iris, Fashion-MNIST or an excerpt of it, and batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpulesson import _fashion
from gpulesson._arguments import flags, refuse, whole_number
from gpulesson._fashion import DataError, MissingDataError, needed

__all__ = [
    "Batches",
    "DataError",
    "Images",
    "Iris",
    "data_folder",
    "fashion_mnist_folder",
    "load_fashion_mnist",
    "load_iris",
]

_not_asked_again: set[Path] = set()  # folders whose data this process could not download


@dataclass(frozen=True, eq=False, repr=False)
class Iris:
    """Fisher's iris flowers: 150 samples, 50 of each of 3 species.

    Attributes
    ----------
    features : Tensor
        float32 ``[150, 4]``, in cm.
    targets : Tensor
        int64 ``[150]``, 0 to 2.
    feature_names, class_names : tuple of str
    source : str
        Which copy of the data this is.
    """

    features: Tensor
    targets: Tensor
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]
    source: str

    def __repr__(self) -> str:
        return f"<{self.source}: {len(self.features)} samples of {len(self.class_names)} classes>"


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Grey images of 28 × 28 pixels in ten classes, as bytes: divide by 255 for floats from 0 to 1.

    Attributes
    ----------
    train_images, test_images : Tensor
        uint8 ``[N, 28, 28]``, on the CPU.
    train_targets, test_targets : Tensor
        int64 ``[N]``, 0 to 9.
    class_names : tuple of str
    source : str
        How many images: ``"fashion-mnist, 60000/10000"``, or ``"fashion-mnist excerpt, 6000/1000"`` for
        the excerpt that the package brings. These, and the excerpt 8000/4000 of the first ones, are verified.
        An excerpt of other counts has no known checksum, and is called
        ``"fashion-mnist excerpt (not verified), 6000/1500"``.
    """

    train_images: Tensor
    train_targets: Tensor
    test_images: Tensor
    test_targets: Tensor
    class_names: tuple[str, ...]
    source: str

    def __repr__(self) -> str:
        return f"<{self.source}: 28 × 28 images of {len(self.class_names)} classes>"


def data_folder() -> Path:
    """Return the folder that data is read from and downloaded to.

    The environment variable ``GPULESSON_DATA`` names it; otherwise it is the user's cache folder.

    Returns
    -------
    Path
        An absolute path. It need not exist yet.

    Raises
    ------
    DataError
        ``GPULESSON_DATA`` names a file, a broken link, or the home of an unknown user.
    """
    if named := os.environ.get("GPULESSON_DATA"):
        return _place(named, "GPULESSON_DATA").absolute()
    return Path(needed("pooch").os_cache("gpulesson"))


def load_iris(*, widely_copied: bool = False) -> Iris:
    """Load the iris data from scikit-learn, without a network.

    Parameters
    ----------
    widely_copied : bool
        Fisher's samples 34 and 37 (counted from 0) read 4.9, 3.1, 1.5, 0.2 and 4.9, 3.6, 1.4, 0.1. The file
        that many tutorials use, from the UCI repository, has 4.9, 3.1, 1.5, 0.1 for both. True gives that
        file's data, which reproduces numbers computed from it.

    Returns
    -------
    Iris

    References
    ----------
    J. C. Bezdek and others, "Will the real iris data please stand up?", IEEE Transactions on Fuzzy Systems 7
    (1999) 368.

    Examples
    --------
    >>> load_iris().features.shape
    torch.Size([150, 4])
    """
    flags(widely_copied=widely_copied)
    iris = needed("sklearn.datasets").load_iris()
    features = torch.tensor(iris.data, dtype=torch.float32)
    source = "iris (scikit-learn)"
    if widely_copied:
        features[[34, 37]] = torch.tensor([4.9, 3.1, 1.5, 0.1])
        source = "iris (scikit-learn, samples 34 and 37 as in the widely copied file)"
    targets = torch.tensor(iris.target, dtype=torch.int64)
    return Iris(features, targets, tuple(iris.feature_names), tuple(map(str, iris.target_names)), source)


def load_fashion_mnist(
    folder: str | Path | None = None, *, download: bool = True, stand_in: bool = True
) -> Images:
    """Load Fashion-MNIST: from the folder, else from the network, else the excerpt that the package brings.

    Parameters
    ----------
    folder : path, optional
        Holds (or will hold) ``FashionMNIST/raw``, in torchvision's layout; by default `data_folder`.
        It may be read-only if the data is there.
    download : bool
        Fetch what is missing (30 MB), by torchvision's class: from its authors' repository over HTTPS, else
        from the address that torchvision asks, over HTTP. Nothing is put into the folder before its SHA-256
        is right.
    stand_in : bool
        If the data is neither there nor can be downloaded: take the excerpt, 600 training and 100 test images
        of each class; this process does not try to download into that folder again. False raises instead.

    Returns
    -------
    Images
        `source` says how many images of Fashion-MNIST they are.

    Raises
    ------
    DataError
        A file is half-downloaded, altered, swapped with another, of another data set, or a pipe or a folder;
        the folder cannot be read or written; a library is missing; or there is no data and `stand_in` is
        False. The message names the file or folder and the remedy.
    TypeError
        `folder` is not a path; `download` or `stand_in` is not True or False.

    Notes
    -----
    The whole files, those of the first 8,000 and 4,000 examples, and those of the excerpt are compared with
    their known checksums, packed or not: one altered bit is an error. Of an excerpt of other counts, only
    sizes, headers and the range of the labels can be checked; `source` says so.

    References
    ----------
    H. Xiao, K. Rasul and R. Vollgraf, "Fashion-MNIST", 2017, https://arxiv.org/abs/1708.07747

    Examples
    --------
    >>> images = load_fashion_mnist()  # doctest: +SKIP
    >>> images.source  # doctest: +SKIP
    'fashion-mnist, 60000/10000'
    """
    flags(download=download, stand_in=stand_in)
    folder = data_folder() if folder is None else _place(folder, "the folder")
    tensors, verified = _load(folder, download, stand_in) or (_fashion.excerpt(), True)
    train_images, train_targets, test_images, test_targets = tensors
    counts = len(train_images), len(test_images)
    kind = "" if counts == (60_000, 10_000) else " excerpt" if verified else " excerpt (not verified)"
    source = f"fashion-mnist{kind}, {counts[0]}/{counts[1]}"
    return Images(train_images, train_targets, test_images, test_targets, _fashion.CLASSES, source)


def fashion_mnist_folder(
    folder: str | Path | None = None, *, download: bool = True, stand_in: bool = True
) -> Path:
    """Find the folder for ``torchvision.datasets.FashionMNIST``; download the data into it if needed.

    The files are checked as `load_fashion_mnist` does, and unpacked if only packed ones are there.

    Parameters
    ----------
    folder, download
        As in `load_fashion_mnist`.
    stand_in : bool
        If the data is neither there nor can be downloaded: return another folder, ``gpulesson-excerpt`` in
        the user's cache, with the excerpt of `load_fashion_mnist` (5.5 MB). False raises instead.

    Returns
    -------
    Path

    Raises
    ------
    DataError
        As in `load_fashion_mnist`; or only packed files are there, and the folder is read-only.

    Examples
    --------
    >>> from torchvision.datasets import FashionMNIST
    >>> folder = fashion_mnist_folder()  # doctest: +SKIP
    >>> len(FashionMNIST(folder, train=True))  # doctest: +SKIP
    60000
    """
    flags(download=download, stand_in=stand_in)
    folder = data_folder() if folder is None else _place(folder, "the folder")
    if _load(folder, download, stand_in, unpack=True):
        return folder
    cache = Path(needed("pooch").os_cache("gpulesson-excerpt"))
    try:
        return _fashion.store_excerpt(cache)
    except OSError as error:
        raise DataError(
            f"cannot write the excerpt of Fashion-MNIST into {cache} ({error}). Make this folder writable, "
            f"or copy the four files of Fashion-MNIST into {folder / 'FashionMNIST' / 'raw'}."
        ) from error


def _load(
    folder: Path, download: bool, stand_in: bool, *, unpack: bool = False
) -> tuple[list[Tensor], bool] | None:
    """Load the folder's data; None if there is none and the excerpt is to be used instead."""
    try:
        ask = download and not (stand_in and folder in _not_asked_again)
        return _fashion.load(folder, download=ask, unpack=unpack)
    except MissingDataError:
        if not stand_in:
            raise
    if download:
        _not_asked_again.add(folder)
    return None


class Batches:
    """Batches cut by index from tensors that stay where they are, for example on the GPU.

    For data that fits into the device's memory this replaces Dataset, DataLoader and the copy in every step.

    Parameters
    ----------
    *tensors : Tensor
        ``[N, …]`` each, all on one device.
    batch_size : int
        At least 1.
    shuffle : bool
        Use a fresh permutation in every pass.
    generator : torch.Generator, optional
        Draws the permutations. One on the CPU gives the same order whatever device the tensors are on.
    drop_last : bool
        Leave out a last batch that is not full.
    transform : callable, optional
        Applied to the first tensor of each batch, where it is. So images can stay bytes, a quarter of the
        memory of floats, and become floats batch by batch. It has to return a new tensor of as many samples:
        without `shuffle` it gets a view of the data, and a change in place would change the data.

    Raises
    ------
    TypeError, ValueError
        Here: an argument has the wrong type, or the tensors do not fit together. While batches are drawn: the
        transform does not return a tensor of as many samples, or would change the data. To see that, it gets
        a copy of the first batch of a pass without `shuffle`.

    Examples
    --------
    >>> batches = Batches(torch.arange(5), torch.arange(5) ** 2, batch_size=2)
    >>> [inputs.tolist() for inputs, targets in batches]
    [[0, 1], [2, 3], [4]]
    >>> images, targets = torch.tensor([[0, 51], [102, 255]], dtype=torch.uint8), torch.tensor([0, 1])
    >>> batches = Batches(images, targets, batch_size=2, transform=lambda images: images.float() / 255)
    >>> next(iter(batches))[0]
    tensor([[0.0000, 0.2000],
            [0.4000, 1.0000]])
    """

    def __init__(
        self,
        *tensors: Tensor,
        batch_size: int,
        shuffle: bool = False,
        generator: torch.Generator | None = None,
        drop_last: bool = False,
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        for position, tensor in enumerate(tensors, 1):
            if not isinstance(tensor, Tensor):
                refuse(
                    f"argument {position} of Batches",
                    tensor,
                    "a tensor",
                    "give each tensor separately, as in Batches(inputs, targets, batch_size=…); "
                    "torch.as_tensor(…) makes one from an array or a list of numbers",
                )
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if len({shape[:1] for shape in shapes}) != 1 or not shapes[0]:
            found = ", ".join(map(str, shapes)) or "no tensor"
            raise ValueError(
                f"Batches needs tensors of one length in dimension 0, found {found}: give inputs "
                "and targets of the same samples, as Batches(inputs, targets, batch_size=…)"
            )
        if len({tensor.device for tensor in tensors}) != 1:
            devices = ", ".join(str(tensor.device) for tensor in tensors)
            raise ValueError(
                f"Batches needs tensors on one device, found {devices}: move them with .to(device)"
            )
        flags(shuffle=shuffle, drop_last=drop_last)
        if not (generator is None or isinstance(generator, torch.Generator)):
            refuse("generator", generator, "a torch.Generator", "give torch.Generator().manual_seed(0)")
        if not (transform is None or callable(transform)):
            refuse("transform", transform, "a function", "give one of the inputs of a batch")
        size = "give the number of samples in a batch, 1 or more"
        self.tensors, self.batch_size = tensors, whole_number("batch_size", batch_size, 1, size)
        self.shuffle, self.drop_last = shuffle, drop_last
        self.generator, self.transform = generator, transform

    def __len__(self) -> int:
        full, rest = divmod(len(self.tensors[0]), self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        order = self._permutation() if self.shuffle else None
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            part = slice(start, start + self.batch_size)
            if order is None:
                batch = tuple(tensor[part] for tensor in self.tensors)
            else:
                batch = tuple(_rows(tensor, order[part]) for tensor in self.tensors)
            if self.transform is not None:
                view = order is None
                batch = (self._transformed(batch[0], try_out=view and start == 0), *batch[1:])
            yield batch

    def _transformed(self, inputs: Tensor, *, try_out: bool) -> Tensor:
        """Return the transformed batch; with `try_out`, of a copy, to see whether it is changed in place."""
        assert self.transform is not None
        data = inputs
        if try_out:
            with torch.inference_mode(False):  # in which a tensor would not count its changes
                inputs = inputs.clone()
        before = inputs._version if try_out else 0
        result: Any = self.transform(inputs)
        if not isinstance(result, Tensor):
            remedy = "does it end with return?"
            refuse("what the transform returned", result, f"a tensor of {len(inputs)} samples", remedy)
        if result.shape[:1] != inputs.shape[:1]:
            raise ValueError(
                f"the transform made a tensor {list(result.shape)} of one {list(inputs.shape)}: dimension 0 "
                "holds the samples and must keep its length"
            )
        # A change through inputs.numpy() is not counted; one that happens to change nothing here is.
        if try_out and (inputs._version != before or not torch.equal(_bytes(inputs), _bytes(data))):
            raise ValueError(
                "the transform changes its batch in place, which would change the data: let it make a new "
                "tensor, as images.float() / 255 does, or begin with images.clone()"
            )
        return result

    def _permutation(self) -> Tensor:
        here = self.tensors[0].device
        source = here if self.generator is None else self.generator.device
        return torch.randperm(len(self.tensors[0]), generator=self.generator, device=source).to(here)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)  # in which NaN equals itself


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return ``tensor[rows]``; faster, unless a memory format such as channels_last is to be kept."""
    return tensor.index_select(0, rows) if tensor.is_contiguous() else tensor[rows]


def _place(named: object, what: str) -> Path:
    """Return a path to a folder, which may not exist yet; `what` names it in an error."""
    if not isinstance(named, str | os.PathLike) or not isinstance(os.fspath(named), str):
        refuse(what, named, "the path of a folder", "give a string or a pathlib.Path")
    if "\0" in os.fspath(named):
        raise DataError(
            f"{what} is {os.fspath(named)!r}, but a path cannot hold a NUL character: correct it."
        )
    try:
        folder = Path(named).expanduser()
    except RuntimeError as error:
        raise DataError(
            f"{what} is {named}, and there is no such home folder: write the full path."
        ) from error
    if os.path.lexists(folder) and not folder.is_dir():
        raise DataError(
            f"{what} is {folder}, which is not a folder but a file or a broken link: name a folder."
        )
    return folder
