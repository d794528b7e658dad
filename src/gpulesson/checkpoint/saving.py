"""Save, find, load and resume the state of a run; the format is described in `gpulesson.checkpoint`."""

import copy
import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from gpulesson._arguments import as_path, refuse
from gpulesson._files import open_file, printable, whole_file
from gpulesson.checkpoint.differences import find_wrong_versions, is_count
from gpulesson.checkpoint.plain import pack, unpack
from gpulesson.checkpoint.rng import find_wrong_rng, rng_state, set_rng_state
from gpulesson.checkpoint.state import (
    RunParts,
    all_or_nothing,
    compare,
    find_mistake,
    find_not_finite,
    find_wrong_state,
    load_optimizer,
    outline,
    tensor_outline,
    unwrapped,
)
from gpulesson.checkpoint.tensorfile import Refused, TensorFile, open_tensors, write

_MARK = "gpulesson checkpoint"
_VERSION = "3"
_TORCH_SAVE = (
    "is a file of torch.save, which is not read here, since reading it may run code. If you trust it: "
    "old = torch.load(path, weights_only=True), load old['model'] and the other states with load_state_dict, "
    "and call save_checkpoint."
)


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, is damaged, or does not fit; the message gives the remedy."""


@contextmanager
def as_checkpoint_error(failed: str) -> Iterator[None]:
    """Raise errors as a `CheckpointError` that begins with `failed`; a `CheckpointError` stays as it is."""
    try:
        yield
    except CheckpointError:
        raise
    except Refused as error:
        raise CheckpointError(f"{failed}: {error}") from error
    except Exception as error:
        raise CheckpointError(f"{failed}. {type(error).__name__}: {printable(error)}") from error


def as_folder(folder: Any) -> Path:
    if not isinstance(folder, str | os.PathLike):
        refuse("folder", folder, "the name of a folder", "give each run its own, such as 'runs/first'")
    return Path(folder)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What `load_checkpoint` read: when it was saved (ISO 8601, UTC), how far the run was, and its state.

    ``epoch`` counts finished epochs, ``step`` finished batches of the current epoch; ``position`` is what was
    saved to find this place again. ``model``, ``optimizer`` and ``scheduler`` are state dicts,
    ``generator`` and ``rng`` states of random number generators (``rng`` by name: ``"python"``, ``"numpy"``,
    ``"cpu"``, ``"cuda:0"``, …); ``outline`` names classes and the optimizer's parameters, for comparison.
    """

    path: Path
    saved: str
    epoch: int
    step: int
    # the content that `collect` puts together
    position: Any = field(repr=False)
    model: dict[str, Any] = field(repr=False)
    optimizer: dict[str, Any] | None = field(repr=False)
    scheduler: dict[str, Any] | None = field(repr=False)
    generator: Tensor | None = field(repr=False)
    rng: dict[str, Any] = field(repr=False)
    extra: Any = field(repr=False)
    outline: dict[str, str] = field(repr=False)


def save_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: nn.Module,
    epoch: int,
    step: int = 0,
    position: Any = None,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: LRScheduler | None = None,
    generator: torch.Generator | None = None,
    extra: Any = None,
) -> Path:
    """Write all that a run needs to continue. A file already at `path` stays until the new one is complete.

    The file is written beside `path`, synced, and renamed. Call it between epochs: it saves neither the
    position within an epoch (`gpulesson.checkpoint.AutoSave` does) nor the random states inside
    ``persistent_workers``. A process killed while it writes leaves a hidden ``.part`` file, which the next
    save into the folder removes (on Windows, it stays).

    Parameters
    ----------
    path
        File to write, usually ``….safetensors``; missing folders are made.
    model, optimizer, scheduler
        On any device; their ``state_dict()`` is saved, for ``DistributedDataParallel`` that of the model
        inside. With several processes, call this in one.
    epoch, step
        How many epochs are finished, and how many batches of the current one.
    position
        Tensors and plain values with which your code finds this place within the epoch again.
    generator
        The explicit generator that the run draws from, usually the shuffling loader's.
    extra
        Other tensors and plain values that the run needs: ``scaler.state_dict()``, settings, losses. Long
        lists belong in tensors, since a file may have at most 300,000 values or some 35,000 tensors. Tensors
        come back dense and on the CPU; shared ones stay shared.

    Returns
    -------
    Path
        The `path`.

    Raises
    ------
    CheckpointError
        If the file cannot be written, `epoch` or `step` is not a count, a parameter is NaN or infinite, a
        saved buffer is NaN, the parts do not belong together, or a state contains anything but dense tensors
        and plain values; the message names it: ``extra['scaler']['x']``. An existing file at `path` is not
        changed. Ctrl-C raises KeyboardInterrupt as usual.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "epoch-003.safetensors"
    >>> path = save_checkpoint(path, model=nn.Linear(2, 1), epoch=3)
    >>> load_checkpoint(path).epoch
    3
    """
    path = as_path("path", path)
    parts = RunParts(model, optimizer, scheduler, generator)
    return write_checkpoint(path, *collect(path, parts, epoch, step, position, extra))


def collect(
    path: Path, parts: RunParts, epoch: int, step: int, position: Any, extra: Any
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a checkpoint's tensors, which are those of the run, and its metadata."""
    parts = parts._replace(model=unwrapped(parts.model))
    model, optimizer, scheduler, generator = parts
    with as_checkpoint_error(f"{printable(path)} was not written"):
        for name, count in (("epoch", epoch), ("step", step)):
            if not is_count(count):
                found = printable(repr(count), 100)
                raise Refused(f"{name} is {found}, not a whole number (an int), 0 or more, below 10**12")
        if mistake := find_mistake(parts):
            raise Refused(mistake)
        if spoilt := find_not_finite(model):
            raise Refused(
                f"the model's {printable(spoilt)} holds NaN or infinity, and an existing checkpoint may be "
                "the last good state. Go back to it, with a lower learning rate or clipped gradients. To "
                "look at these weights, save them with torch.save(model.state_dict(), …)."
            )
        content = {
            "model": model.state_dict(),
            "optimizer": None if optimizer is None else optimizer.state_dict(),
            "scheduler": None if scheduler is None else scheduler.state_dict(),
            "generator": None if generator is None else generator.get_state(),
            "rng": rng_state(),
            "position": position,
            "extra": extra,
            "outline": outline(parts),
        }
        metadata = {"format": "pt", _MARK: _VERSION, "epoch": str(epoch), "step": str(step)}
        metadata["saved"] = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        return pack(content), metadata


def write_checkpoint(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> Path:
    with as_checkpoint_error(f"{printable(path)} was not written"), whole_file(path) as file:
        write(file, tensors, metadata)
    return path


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read and verify what `save_checkpoint` wrote; the tensors are on the CPU.

    So a file from any machine can be read, without GPU memory: ``load_state_dict`` copies each tensor to the
    model's device.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged, or not a checkpoint.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "last.safetensors"
    >>> path = save_checkpoint(path, model=nn.Linear(2, 1), epoch=1)
    >>> load_checkpoint(path).model["weight"].shape
    torch.Size([1, 2])
    """
    path = as_path("path", path)
    with _opened(path) as file:
        epoch, step, saved = _progress(file)
        content = unpack(file.read())
        if wrong := _find_wrong_parts(content):
            raise Refused(wrong)
    return Checkpoint(path=path, saved=saved, epoch=epoch, step=step, **content)


def latest(folder: str | os.PathLike[str], *, pattern: str = "*.safetensors") -> Path | None:
    """Find the undamaged checkpoint that was saved furthest into the run; None if there is no file.

    More epochs win, then more steps, then the later time of saving, all as stored in the file, so that
    copying does not change the order. A warning names damaged files. Give each run its own folder.

    Raises
    ------
    CheckpointError
        If `folder` cannot be listed, or none of its files is valid: starting over would overwrite them.

    Examples
    --------
    >>> latest("no/run/yet") is None
    True
    """
    folder = as_folder(folder)
    if not isinstance(pattern, str) or not pattern or "/" in pattern:
        refuse("pattern", pattern, "a pattern of names, without folders", "give '*.safetensors'")
    where = printable(folder)
    try:
        files = [path for path in folder.iterdir() if path.match(pattern)]
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {printable(error)}"
        if folder.is_file():
            reason += ". It is a file: give its folder, or read it with load_checkpoint(path)"
        raise CheckpointError(f"Cannot look for checkpoints in {where}. {reason}") from error
    places: dict[Path, tuple[int, int, str]] = {}
    for path in files:
        if place := _unless_wrong(path, _progress):
            places[path] = place
    for path in sorted(places, key=places.__getitem__, reverse=True):
        if _unless_wrong(path, lambda file: deque(file.verified(), maxlen=0)) is not None:
            return path
    if files:
        names = ", ".join(sorted(printable(path.name) for path in files))
        raise CheckpointError(f"No valid checkpoint in {where}. Move these away to start over: {names}.")
    return None


def _unless_wrong(path: Path, read: Callable[[TensorFile], Any]) -> Any:
    """Return what `read` returns, or None after a warning that names the file."""
    try:
        with _opened(path) as file:
            return read(file)
    except CheckpointError as error:
        warnings.warn(f"passed over: {error}", stacklevel=3)
        return None


def resume(
    checkpoint: Checkpoint,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: LRScheduler | None = None,
    generator: torch.Generator | None = None,
) -> int:
    """Load the state into the objects of a run and set the random number generators: all, or nothing.

    Names, shapes, dtypes and kinds of values are compared before anything changes. Until everything is
    loaded, a copy of the model's old state is kept in host memory, to be restored after an error. Where the
    same run twice gives the same bits (as on a CPU), the resumed run gives them too. Everything that was
    saved must be given. (For the weights alone: ``model.load_state_dict(checkpoint.model)``.)

    The checkpoint's ``step``, ``position`` and ``extra`` are left to the code that saved them. With a
    ``step`` but no ``position``, a warning says that the epoch starts over.

    Returns
    -------
    int
        The number of finished epochs; continue with ``range(resume(…), epochs)``.

    Raises
    ------
    CheckpointError
        If a part, name, shape, dtype or kind of value differs; then nothing is changed.

    Examples
    --------
    >>> import tempfile
    >>> model = nn.Linear(2, 1)
    >>> path = save_checkpoint(Path(tempfile.mkdtemp()) / "last.safetensors", model=model, epoch=3)
    >>> list(range(resume(load_checkpoint(path), model=model), 5))
    [3, 4]
    """
    if not isinstance(checkpoint, Checkpoint):
        refuse("checkpoint", checkpoint, "a Checkpoint", "give what load_checkpoint(path) returned")
    with resumed(checkpoint, RunParts(unwrapped(model), optimizer, scheduler, generator)):
        pass
    if checkpoint.step and checkpoint.position is None:
        warnings.warn(
            f"{printable(checkpoint.path)} was saved after {checkpoint.step} batches of an epoch, with no "
            "position to find them again: this epoch starts over",
            stacklevel=2,
        )
    return checkpoint.epoch


@contextmanager
def resumed(checkpoint: Checkpoint, parts: RunParts) -> Iterator[None]:
    """Load a checkpoint into the parts of a run; an error, also one in the block, undoes it."""
    model, optimizer, scheduler, generator = parts
    failed = f"{printable(checkpoint.path)} does not fit; nothing was loaded"
    with as_checkpoint_error(failed):
        if mistake := find_mistake(parts):
            raise Refused(mistake)
        given = tensor_outline(model.state_dict()) | outline(parts)
        compare(checkpoint.outline | tensor_outline(checkpoint.model), given)
        if wrong := (
            find_wrong_versions(checkpoint.model, model.state_dict())
            or find_wrong_state(scheduler, generator, checkpoint)
            or find_wrong_rng(checkpoint.rng)
        ):
            raise Refused(wrong)
    with as_checkpoint_error(failed), ExitStack() as undo:
        undo.enter_context(all_or_nothing(parts))
        if optimizer is not None:
            load_optimizer(optimizer, checkpoint.optimizer or {})
        if scheduler is not None:
            # a copy, since the scheduler keeps and changes it
            scheduler.load_state_dict(copy.deepcopy(checkpoint.scheduler or {}))
        if generator is not None and checkpoint.generator is not None:
            generator.set_state(checkpoint.generator)
        model.load_state_dict(checkpoint.model)
        set_rng_state(checkpoint.rng)
        loaded = undo.pop_all()
    with loaded:
        yield


@contextmanager
def _opened(path: Path) -> Iterator[TensorFile]:
    """Open a checkpoint; errors, also in the with block, become `CheckpointError`s."""
    name = printable(path)
    with as_checkpoint_error(f"{name} was not loaded"):
        try:
            with open_tensors(path) as file:
                _check_version(file, name)
                yield file
        except FileNotFoundError as error:
            raise CheckpointError(f"{name} {_missing(path)}") from error
        except OSError as error:
            if path.is_dir():
                remedy = "not a checkpoint: give one of its files, or latest(folder)"
                raise CheckpointError(f"{name} was not loaded: it is a folder, {remedy}") from error
            raise
        except Refused as error:
            if _is_archive(path):
                raise CheckpointError(f"{name} {_TORCH_SAVE}") from error
            raise CheckpointError(
                f"{name} is damaged, truncated, or not a checkpoint: {error}. Copy it again from its source, "
                "or use an earlier one, as latest() does."
            ) from error


def _is_archive(path: Path) -> bool:
    with open_file(path) as file:
        return file.read(4) == b"PK\3\4"


def _check_version(file: TensorFile, name: str) -> None:
    """Explain a safetensors file that is not a checkpoint, or has another version."""
    version = file.metadata.get(_MARK)
    if version == _VERSION and file.digest is None:
        raise Refused("its digest is gone")
    if version != _VERSION and file.digest is not None:
        deque(file.verified(), maxlen=0)  # raises if the file is damaged
    if version is None:
        raise CheckpointError(
            f"{name} is a safetensors file, but not one of save_checkpoint. If it holds weights, "
            "safetensors.torch.load_model(model, path) loads them."
        )
    if version != _VERSION:
        raise CheckpointError(
            f"{name} has version {printable(version, 20)} of the format, and this gpulesson reads "
            f"{_VERSION}: load it with the one that saved it."
        )


def _progress(file: TensorFile) -> tuple[int, int, str]:
    """Return epoch, step and time of saving, by which the files of a run are sorted."""
    epoch, step, saved = (file.metadata.get(name, "") for name in ("epoch", "step", "saved"))
    if not re.fullmatch(r"\d{1,12} \d{1,12} [0-9T:.+-]{32}", f"{epoch} {step} {saved}", re.ASCII):
        raise Refused("its epoch, step or time of saving is invalid")
    return int(epoch), int(step), saved


def _find_wrong_parts(content: Any) -> str | None:
    """Name a part of another kind than `save_checkpoint` writes."""
    names = {each.name for each in fields(Checkpoint)} - {"path", "saved", "epoch", "step"}
    if not isinstance(content, dict) or content.keys() != names:
        return "it has other parts"
    always = {"outline": dict, "model": dict, "rng": dict}
    kinds = always | {"optimizer": dict, "scheduler": dict, "generator": Tensor}
    for name, kind in kinds.items():
        expected = kind if name in always or name in content["outline"] else NoneType
        if not isinstance(content[name], expected):
            return f"its {name} is invalid"
    return None


def _missing(path: Path) -> str:
    """Explain a path to nothing: say what is there instead."""
    if path.is_symlink():
        return f"is a link to {printable(path.readlink())}, which does not exist."
    there: list[str] = []
    with suppress(OSError):
        there = sorted(printable(other.name) for other in path.parent.iterdir())
    return f"does not exist. In {printable(path.parent)} there is: {', '.join(there[:12]) or 'nothing'}."
