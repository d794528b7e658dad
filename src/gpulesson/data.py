"""The data of the lessons: iris, an excerpt of Fashion-MNIST or all of it, and batches."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpulesson._arguments import flags, refuse, whole_number
from gpulesson._files import printable

__all__ = ["Batches", "DataError", "Images", "Iris", "excerpt_folder", "load_fashion_mnist", "load_iris"]


class DataError(RuntimeError):
    """A data set cannot be read or downloaded, or the library that does it is missing."""


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
        How many images: ``"fashion-mnist excerpt, 6000/1000"``, or ``"fashion-mnist, 60000/10000"`` for all.
    """

    train_images: Tensor
    train_targets: Tensor
    test_images: Tensor
    test_targets: Tensor
    class_names: tuple[str, ...]
    source: str

    def __repr__(self) -> str:
        return f"<{self.source}: 28 × 28 images of {len(self.class_names)} classes>"


def excerpt_folder() -> Path:
    """Return the folder of the excerpt, in torchvision's layout: it may be read-only, and needs no network.

    Of each of the ten classes it has the first 600 training and the first 100 test images of Fashion-MNIST.

    Returns
    -------
    Path

    Examples
    --------
    >>> from torchvision.datasets import FashionMNIST
    >>> len(FashionMNIST(excerpt_folder(), train=True))
    6000
    """
    return Path(__file__).with_name("excerpt")


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
    iris = _needed("sklearn.datasets").load_iris()
    features = torch.tensor(iris.data, dtype=torch.float32)
    source = "iris (scikit-learn)"
    if widely_copied:
        features[[34, 37]] = torch.tensor([4.9, 3.1, 1.5, 0.1])
        source = "iris (scikit-learn, samples 34 and 37 as in the widely copied file)"
    targets = torch.tensor(iris.target, dtype=torch.int64)
    return Iris(features, targets, tuple(iris.feature_names), tuple(map(str, iris.target_names)), source)


def load_fashion_mnist(folder: str | Path | None = None) -> Images:
    """Load the excerpt of Fashion-MNIST that the package brings; or, from a folder, what is there.

    Parameters
    ----------
    folder : path, optional
        What ``torchvision.datasets.FashionMNIST`` finds in it is loaded, and all of Fashion-MNIST downloaded
        into it (30 MB) if nothing is there.

    Returns
    -------
    Images

    Raises
    ------
    DataError
        torchvision is missing, or can neither read what is in the folder nor download into it.
    TypeError
        `folder` is not a path.

    References
    ----------
    H. Xiao, K. Rasul and R. Vollgraf, "Fashion-MNIST", 2017, https://arxiv.org/abs/1708.07747

    Examples
    --------
    >>> load_fashion_mnist().source
    'fashion-mnist excerpt, 6000/1000'
    """
    if not (folder is None or isinstance(folder, str | os.PathLike)):
        refuse("the folder", folder, "the path of a folder", "give a string or a pathlib.Path")
    place = excerpt_folder() if folder is None else Path(folder).expanduser()
    theirs = _needed("torchvision.datasets").FashionMNIST
    try:
        train, test = (theirs(place, train=train, download=folder is not None) for train in (True, False))
    except Exception as error:  # a file that is cut short can raise any of six kinds
        found = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        if folder is None:
            raise DataError(
                f"the excerpt in {place} is damaged ({found}): install gpulesson again"
            ) from error
        raise DataError(
            f"torchvision can neither read Fashion-MNIST in {place} nor download it there ({found}). Is "
            "there a network? If files are there already, delete them and run again. Without a folder, the "
            "excerpt that the package brings is loaded."
        ) from error
    for part in (train, test):
        if len(part.data) != len(part.targets):
            raise DataError(
                f"{part.raw_folder} holds {len(part.data)} images, but {len(part.targets)} labels: they do "
                "not belong together. Delete them and run again, to download them."
            )
    counts = len(train), len(test)
    kind = "" if counts == (60_000, 10_000) else " excerpt"
    source = f"fashion-mnist{kind}, {counts[0]}/{counts[1]}"
    return Images(train.data, train.targets, test.data, test.targets, tuple(theirs.classes), source)


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


def _needed(module: str) -> Any:
    """Import a library that only some functions use, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        package = {"sklearn": "scikit-learn"}.get(library, library)
        raise DataError(
            f"this needs {library}, which does not load ({error}). Install it: pip install {package}"
        ) from error
