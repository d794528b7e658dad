"""The data of the lessons: iris, Fashion-MNIST or its offline stand-in, regression data, and batches."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpulesson import _fashion, _standin
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
    "regression_data",
]

GOING_ON = "Going on with digits as a stand-in: accuracies will differ."


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
        What the images are and how many: ``"fashion-mnist, 60000/10000"``,
        ``"fashion-mnist excerpt, 8000/4000"`` or ``"digits stand-in, 60000/10000"``.
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
        It need not exist yet.
    """
    if named := os.environ.get("GPULESSON_DATA"):
        return Path(named).expanduser()
    return Path(needed("pooch").os_cache("gpulesson"))


def load_iris(*, widely_copied: bool = False) -> Iris:
    """Load the iris data, from scikit-learn, without network.

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
    """Load Fashion-MNIST: from the folder, else from the network, else a stand-in that needs neither.

    Parameters
    ----------
    folder : path, optional
        Holds (or will hold) ``FashionMNIST/raw``, in torchvision's layout; by default `data_folder`.
        It may be read-only if the data is there. A folder of the stand-in, from `fashion_mnist_folder`, is
        recognised.
    download : bool
        Fetch what is missing (30 MB), verified by the checksums that torchvision lists.
    stand_in : bool
        If there is no data and none can be had: warn, and make images of the same shapes and counts from
        scikit-learn's digits. False raises instead, also if `folder` is one of the stand-in.

    Returns
    -------
    Images
        `source` says what they are.

    Raises
    ------
    DataError
        A file is half-downloaded or altered; the folder cannot be read or written; a library is missing; or
        there is no data and `stand_in` is False. The message names the file or folder and the remedy.

    Warns
    -----
    UserWarning
        The stand-in is used; the message says why.

    References
    ----------
    H. Xiao, K. Rasul and R. Vollgraf, "Fashion-MNIST", 2017, https://arxiv.org/abs/1708.07747

    Examples
    --------
    >>> images = load_fashion_mnist()  # doctest: +SKIP
    >>> images.source  # doctest: +SKIP
    'fashion-mnist, 60000/10000'
    """
    folder = data_folder() if folder is None else Path(folder).expanduser()
    try:
        if _standin.marked(folder):
            return _images(_stored_digits(folder, stand_in), _standin.CLASSES, _standin.SOURCE)
        tensors = _fashion.load(folder, download=download)
    except MissingDataError as reason:
        if not stand_in:
            raise
        warnings.warn(f"{reason} {GOING_ON}", stacklevel=2)
        return _digits()
    names = tuple(needed("torchvision.datasets").FashionMNIST.classes)
    whole = (len(tensors[0]), len(tensors[2])) == (60_000, 10_000)
    return _images(tensors, names, "fashion-mnist" if whole else "fashion-mnist excerpt")


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
        If there is no data and none can be had: warn, and return another folder,
        ``gpulesson-digits-stand-in`` in the user's cache, with files of the same names, shapes and counts
        that hold scikit-learn's digits. They are made once (55 MB). `load_fashion_mnist` says of this folder
        what it holds; torchvision cannot, and its ``classes`` are those of Fashion-MNIST. False raises
        instead, also if `folder` is one of the stand-in.

    Returns
    -------
    Path

    Raises
    ------
    DataError
        As in `load_fashion_mnist`; or only packed files are there, and the folder is read-only.

    Warns
    -----
    UserWarning
        The folder is that of the stand-in; the message says why.

    Examples
    --------
    >>> from torchvision.datasets import FashionMNIST
    >>> folder = fashion_mnist_folder()  # doctest: +SKIP
    >>> len(FashionMNIST(folder, train=True))  # doctest: +SKIP
    60000
    """
    folder = data_folder() if folder is None else Path(folder).expanduser()
    try:
        if _standin.marked(folder):
            _stored_digits(folder, stand_in)
        else:
            _fashion.load(folder, download=download)
            _fashion.unpack(folder)
        return folder
    except MissingDataError as reason:
        if not stand_in:
            raise
        warnings.warn(f"{reason} {GOING_ON}", stacklevel=2)
    needed("sklearn")
    cache = Path(needed("pooch").os_cache("gpulesson-digits-stand-in"))
    try:
        return _standin.store(cache)
    except OSError as error:
        raise DataError(
            f"cannot write the stand-in data into {cache} ({error}). Make this folder writable, or copy the "
            f"four files of Fashion-MNIST into {folder / 'FashionMNIST' / 'raw'}."
        ) from error


def regression_data(
    samples: int = 1000, features: int = 20, *, noise: float = 0.1, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Make data for a regression: targets are a random linear function of the inputs, plus noise.

    Parameters
    ----------
    samples, features : int
    noise : float
        Standard deviation of the noise in the targets; its square is the lowest MSE that a model can reach.
    seed : int
        The same seed gives the same data.

    Returns
    -------
    inputs : Tensor
        float32 ``[samples, features]``, standard normal.
    targets : Tensor
        float32 ``[samples, 1]``; variance ``1 + noise**2`` on average.

    Examples
    --------
    >>> inputs, targets = regression_data(8, 3)
    >>> inputs.shape, targets.shape
    (torch.Size([8, 3]), torch.Size([8, 1]))
    """
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, features, generator=generator)
    weights = torch.randn(features, 1, generator=generator) / features**0.5
    targets = inputs @ weights + noise * torch.randn(samples, 1, generator=generator)
    return inputs, targets


class Batches:
    """Batches cut by index from tensors that stay where they are, for example on the GPU.

    For data that fits into the device's memory this replaces Dataset, DataLoader and the copy in every step.

    Parameters
    ----------
    *tensors : Tensor
        ``[N, …]`` each, all on one device.
    batch_size : int
    shuffle : bool
        Use a fresh permutation in every pass.
    generator : torch.Generator, optional
        Draws the permutations. One on the CPU gives the same order whatever device the tensors are on.
    drop_last : bool
        Leave out a last batch that is not full.
    transform : callable, optional
        Applied to the first tensor of each batch, where it is. So images can stay bytes, a quarter of the
        memory of floats, and become floats batch by batch. It has to return a new tensor: without `shuffle`
        it gets a view of the data, and a change in place would change the data.

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
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: give at least 1")
        self.tensors, self.batch_size, self.shuffle = tensors, batch_size, shuffle
        self.generator, self.drop_last, self.transform = generator, drop_last, transform

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
            yield batch if self.transform is None else (self.transform(batch[0]), *batch[1:])

    def _permutation(self) -> Tensor:
        here = self.tensors[0].device
        source = here if self.generator is None else self.generator.device
        return torch.randperm(len(self.tensors[0]), generator=self.generator, device=source).to(here)


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return ``tensor[rows]``, in less time where no other memory format, as channels_last, is to be kept."""
    return tensor.index_select(0, rows) if tensor.is_contiguous() else tensor[rows]


def _digits() -> Images:
    needed("sklearn")
    return _images(_standin.digits(), _standin.CLASSES, _standin.SOURCE)


def _stored_digits(folder: Path, allowed: bool) -> list[Tensor]:
    """Read the stand-in's files, without ever adding Fashion-MNIST's to them."""
    if not allowed:
        raise MissingDataError(f"{folder} holds the stand-in data, not Fashion-MNIST: give another folder.")
    if not _standin.whole(folder):
        raise DataError(f"the stand-in data in {folder} is incomplete or altered: delete this folder.")
    return _fashion.load(folder, download=False)


def _images(tensors: list[Tensor], class_names: tuple[str, ...], source: str) -> Images:
    train_images, train_targets, test_images, test_targets = tensors
    source = f"{source}, {len(train_images)}/{len(test_images)}"
    return Images(train_images, train_targets, test_images, test_targets, class_names, source)
