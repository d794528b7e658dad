"""Give a model's weights to other programs, and take theirs: files in the safetensors format."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from gpulesson._arguments import as_path
from gpulesson._files import printable, whole_file
from gpulesson.checkpoint.saving import as_checkpoint_error
from gpulesson.checkpoint.state import (
    RunParts,
    all_or_nothing,
    compare,
    find_mistake,
    find_not_finite,
    tensor_outline,
)
from gpulesson.checkpoint.tensorfile import DTYPES, Refused, identity, open_tensors, write

_MARK = "gpulesson weights"
"""Says that the file has a digest, so that damage to the digest's own name is found, too."""


def export_weights(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write the model's parameters and buffers into a safetensors file; an older one stays until it is whole.

    Of tensors under several names (tied weights), one is written; the file's metadata says which name stands
    for which, as ``safetensors.torch.save_model`` does it. It also has a SHA-256 of all that is in the file.

    Parameters
    ----------
    model
        On any device.
    path
        File to write, usually ``….safetensors``; missing folders are made.

    Returns
    -------
    Path
        The `path`.

    Raises
    ------
    CheckpointError
        If the file cannot be written, or the model's state holds NaN, infinite parameters, tensors of a dtype
        or layout that safetensors does not know (such as complex or sparse), or anything but tensors.

    Examples
    --------
    >>> import tempfile
    >>> path = export_weights(nn.Linear(2, 1), Path(tempfile.mkdtemp()) / "linear.safetensors")
    >>> other = nn.Linear(2, 1)
    >>> import_weights(other, path)
    """
    path = as_path("path", path)
    with as_checkpoint_error(f"{printable(path)} was not written"):
        state = _state(model)
        if spoilt := find_not_finite(model):
            raise Refused(f"the model's {printable(spoilt)} holds NaN or infinity")
        tied = {name: kept for name, kept in _first_names(state).items() if name != kept}
        tensors = {name: state[name] for name in state if name not in tied}
        with whole_file(path) as file:
            write(file, tensors, {"format": "pt", _MARK: "2", **tied})
    return path


def import_weights(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Load the weights of a safetensors file into the model: all of them, or nothing is changed.

    Every name, shape and dtype must be the model's own; one of several names for one tensor is enough, and
    more must agree. The digest of a file that `export_weights` wrote is compared (before version 2, it was
    another one); files of others have none. Until all is loaded, a copy of the old weights is kept in host
    memory.

    Raises
    ------
    CheckpointError
        If the file cannot be read, anything differs, or the model's state holds anything but tensors of a
        dtype and layout that safetensors knows.

    Examples
    --------
    >>> import tempfile
    >>> path = export_weights(nn.Linear(2, 1), Path(tempfile.mkdtemp()) / "linear.safetensors")
    >>> import_weights(nn.Linear(2, 1), path)
    """
    path = as_path("path", path)
    with as_checkpoint_error(f"{printable(path)} was not loaded"):
        state = _state(model)
        with open_tensors(path) as file:
            if file.digest is None and file.metadata.get(_MARK, "1") != "1":  # which had another digest
                raise Refused("export_weights wrote it, and its digest is gone: it is damaged")
            tensors = file.read()
        first = _first_names(state)
        under = {first[name]: name for name in tensors if name in first}  # the name that the file uses
        for name, kept in first.items():
            if name not in tensors and kept in under:
                tensors[name] = tensors[under[kept]]
        if lines := compare(tensor_outline(tensors), tensor_outline(state)):
            raise Refused("\n  ".join(["these differ", *lines]))
        for name in tensors:
            other = under[first[name]]
            if name != other and not torch.equal(_bytes(tensors[name]), _bytes(tensors[other])):
                raise Refused(
                    f"{printable(name)} and {printable(other)} are one tensor of the model, and differ in "
                    "the file"
                )
        with all_or_nothing(RunParts(model)):
            model.load_state_dict(tensors)


def _state(model: nn.Module) -> dict[str, Tensor]:
    if mistake := find_mistake(RunParts(model)):
        raise Refused(mistake)
    state: dict[str, Tensor] = model.state_dict()
    if others := [printable(name) for name, value in state.items() if not isinstance(value, Tensor)]:
        raise Refused(f"{', '.join(others)} of the model's state is no tensor")
    for name, tensor in state.items():
        if tensor.dtype not in DTYPES or tensor.layout is not torch.strided:
            raise Refused(
                f"safetensors knows no {tensor.dtype} in {tensor.layout} layout, as {printable(name)} is"
            )
    return state


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _first_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return for each name the first one of the same tensor, usually itself."""
    seen: dict[object, str] = {}
    return {name: seen.setdefault(identity(value), name) for name, value in state.items()}
