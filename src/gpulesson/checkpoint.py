"""Save, load and resume a training run, so that nothing is lost and nothing damaged is used.

A checkpoint is a safetensors file: any program for such files reads its tensors. All else (numbers, texts,
names) is JSON in one more tensor, ``checkpoint.json``. There is no pickle in it, and nothing that could run.
Its header says where the run was and when, and has a SHA-256 of the whole file, computed with zeros in the
place of its 64 digits. It finds accidents; it is not a signature.

To use the weights elsewhere, without this package::

    saved = safetensors.torch.load_file("epoch-003.safetensors")
    weights = {name.removeprefix("model."): saved[name] for name in saved if name.startswith("model.")}
    model.load_state_dict(weights)

(Tied weights are in it once, by the first of their names: for a model that has some, add ``strict=False``.)
"""

import copy
import os
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from gpulesson._arguments import as_path, refuse
from gpulesson._files import open_file, printable, whole_file
from gpulesson._kinds import is_count
from gpulesson._plain import decode, encode
from gpulesson._rng import find_wrong_rng, rng_state, set_rng_state
from gpulesson._state import (
    compare,
    find_mistake,
    find_not_finite,
    find_wrong_state,
    load_optimizer,
    outline,
    tensor_outline,
    undo_point,
    unwrapped,
)
from gpulesson._tensorfile import Header, Refused, memory_of, read_header, write

_MARK = "gpulesson checkpoint"
_VERSION = "1"
_JSON = "checkpoint.json"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, is damaged, or does not fit; the message says what to do."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What `load_checkpoint` found: when it was saved (ISO 8601, UTC), how far the run was, and the state.

    ``epoch`` counts the finished epochs, ``step`` the finished batches (not the optimizer's steps, of which
    accumulated batches have fewer) of the epoch that has begun;
    ``position`` is what was saved beside them to find this place again.
    ``model``, ``optimizer`` and ``scheduler`` are state dicts, ``generator`` and ``rng`` the states of random
    number generators (``rng`` by name: ``"python"``, ``"numpy"``, ``"cpu"``, ``"cuda:0"``, …); ``outline``
    names the class of each part but the model, and the optimizer's parameters, for `resume` to compare.
    """

    # from the header; what follows has the names of what `_collect` puts together
    path: Path
    saved: str
    epoch: int
    step: int
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
    """Write all that a run needs to go on. A file already at `path` stays until the new one is whole.

    The file is written beside its place, synced, and renamed. Call it between epochs: the position within an
    epoch is not recorded automatically (`gpulesson.long_runs.autosave.AutoSave` does that), nor are the
    random numbers inside ``persistent_workers``. A process killed while it writes leaves a hidden ``.part``
    file, which the next saving there removes (on Windows, it stays).

    Parameters
    ----------
    path
        File to write, usually ``….safetensors``; missing folders are made.
    model, optimizer, scheduler
        On any device; their ``state_dict()`` is kept. Of a model in ``DistributedDataParallel``, the
        wrapped model's state is kept, so that one process can load it, too; with several processes, call
        this on one.
    epoch
        Number of epochs finished so far, 0 or more.
    step
        Number of batches finished of the epoch that has begun; 0 between epochs.
    position
        Tensors and plain values that it takes to find this place within the epoch again.
    generator
        The explicit generator that the run draws from, usually the shuffling loader's.
    extra
        Tensors and plain values that the run needs besides: ``scaler.state_dict()``, settings, losses.
        Long lists belong in tensors, for reading is bounded: 300,000 values a file, or some 35,000 tensors.
        Tensors come back dense and on the CPU; shared ones stay shared.

    Returns
    -------
    Path
        The `path`.

    Raises
    ------
    CheckpointError
        If the file cannot be written, `epoch` or `step` is not a count, a parameter is NaN or infinite, a
        buffer that is saved is NaN, the parts do not belong together, or a state holds anything but dense
        tensors and plain values; the message names it: ``extra['scaler']['x']``.
        An existing file at `path` is left as it is. Ctrl-C comes through as itself.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "epoch-003.safetensors"
    >>> path = save_checkpoint(path, model=nn.Linear(2, 1), epoch=3)
    >>> load_checkpoint(path).epoch
    3
    """
    path = as_path("path", path)
    return _write_checkpoint(
        path, _collect(path, model, epoch, step, position, optimizer, scheduler, generator, extra)
    )


@dataclass(frozen=True)
class _Collected:
    """What a checkpoint is to hold: JSON, and the tensors that it names."""

    epoch: int
    step: int
    json: bytes
    tensors: dict[str, Tensor]


def _collect(
    path: Path,
    model: nn.Module,
    epoch: int,
    step: int,
    position: Any,
    optimizer: torch.optim.Optimizer | None,
    scheduler: LRScheduler | None,
    generator: torch.Generator | None,
    extra: Any,
    *,
    on_host: bool = False,
) -> _Collected:
    """Collect what `save_checkpoint` writes; the tensors are those of the run, or copies on the host."""
    model = unwrapped(model)
    mistake = _wrong_count(epoch, step) or find_mistake(model, optimizer, scheduler, generator)
    if not mistake and (spoilt := find_not_finite(model)):
        mistake = (
            f"the model's {printable(spoilt)} holds NaN or infinity, and what is there may be the last good "
            "state. Go back to it, with a lower learning rate or clipped gradients. To look at these "
            "weights, keep them with torch.save(model.state_dict(), …)."
        )
    if mistake:
        raise CheckpointError(f"{printable(path)} was not written: {mistake}")
    content = {
        "model": model.state_dict(),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "generator": None if generator is None else generator.get_state(),
        "rng": rng_state(),
        "position": position,
        "extra": extra,
        "outline": outline(model, optimizer, scheduler, generator),
    }
    try:
        json, tensors = encode(content, copy=on_host)
    except ValueError as error:  # `Refused`, or an int of more than 4300 digits
        raise CheckpointError(f"{printable(path)} was not written: {error}") from error
    return _Collected(epoch, step, json, tensors)


def _write_checkpoint(path: Path, content: _Collected) -> Path:
    """Write what `_collect` collected."""
    metadata = {
        "format": "pt",  # tensors of PyTorch, for other programs
        _MARK: _VERSION,
        "epoch": str(content.epoch),
        "step": str(content.step),
        "saved": datetime.now(timezone.utc).isoformat(timespec="microseconds"),
    }
    json = torch.frombuffer(bytearray(content.json), dtype=torch.uint8)
    try:
        with whole_file(path) as file:
            write(file, {**content.tensors, _JSON: json}, metadata)
    except Exception as error:
        raise CheckpointError(f"{printable(path)} was not written. {_reason(error)}") from error
    return path


def load_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read what `save_checkpoint` wrote, and compare its digest; the tensors are on the CPU.

    On the CPU, a file from any machine can be read, and it needs no GPU memory: ``load_state_dict`` copies
    each tensor to the model's device.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged, or no checkpoint.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "last.safetensors"
    >>> path = save_checkpoint(path, model=nn.Linear(2, 1), epoch=1)
    >>> load_checkpoint(path).model["weight"].shape
    torch.Size([1, 2])
    """
    path = as_path("path", path)
    (epoch, step, saved), tensors = _read(path, Header.read_tensors)
    json = tensors.pop(_JSON, None)
    try:
        if json is None or json.dtype != torch.uint8:
            raise Refused(f"it has no {_JSON}")
        content = decode(bytes(memory_of(json)), tensors)
    except Refused as error:
        raise CheckpointError(f"{printable(path)} is no checkpoint of save_checkpoint: {error}.") from error
    names = [each.name for each in fields(Checkpoint) if each.name not in ("path", "saved", "epoch", "step")]
    if not isinstance(content, dict) or content.keys() != set(names):
        raise CheckpointError(f"{printable(path)} is no checkpoint of save_checkpoint: it has other parts.")
    wrong = [name for name in names if not _has_expected_type(name, content[name])]
    parts = "optimizer", "scheduler", "generator"  # what the outline names is there, and nothing else
    wrong = wrong or [name for name in parts if (content[name] is None) == (name in content["outline"])]
    if wrong:
        raise CheckpointError(
            f"{printable(path)} is no checkpoint of save_checkpoint: it holds no proper {', '.join(wrong)}."
        )
    return Checkpoint(path=path, saved=saved, epoch=epoch, step=step, **content)


def latest(folder: str | os.PathLike[str], *, pattern: str = "*.safetensors") -> Path | None:
    """Find the undamaged checkpoint that was saved furthest into the run; None if there is no file.

    More epochs win, then more steps, then the later time of saving: as they stand inside the file, so that
    no copy changes the order. Files passed over on the way are named in a warning.
    Give each run a folder of its own: of two runs in one folder, this finds the one that got further.
    Where no file matches `pattern`, those that end in ``.pt`` are looked at: a run must not start afresh
    beside files of earlier versions, which are refused.

    Raises
    ------
    CheckpointError
        If `folder` cannot be listed, or none of its files is valid: starting afresh would overwrite them.

    Examples
    --------
    >>> latest("no/run/yet") is None
    True
    """
    folder = as_path("folder", folder)
    try:
        there = list(folder.iterdir())
        files = [path for path in there if path.match(pattern)]
        files = files or [path for path in there if path.match(pattern.removesuffix(".safetensors") + ".pt")]
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"Cannot look for checkpoints in {printable(folder)}. {_reason(error)}"
        ) from error
    places: dict[Path, tuple[int, int, str]] = {}
    for path in files:
        try:
            places[path], _ = _read(path)
        except CheckpointError as error:  # it names the file
            warnings.warn(f"passed over: {error}", stacklevel=2)
    for path in sorted(places, key=places.__getitem__, reverse=True):
        try:
            _read(path, Header.verify)
            return path
        except CheckpointError as error:
            warnings.warn(f"passed over: {error}", stacklevel=2)
    if files:
        names = ", ".join(sorted(printable(path.name) for path in files))
        where = printable(folder)
        raise CheckpointError(f"No valid checkpoint in {where}. Move these away to start afresh: {names}.")
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

    Names, shapes, dtypes and kinds of values are compared before anything changes. Until all is loaded, a
    copy of the model's old state is kept in host memory, to put back after an error. Where the same run twice
    gives the same bits (a CPU does), the resumed run gives them too. What was saved must be given: without
    its optimizer state it is another run. (For the weights alone:
    ``model.load_state_dict(checkpoint.model)``.)

    The checkpoint's ``step``, ``position`` and ``extra`` are left to the code that saved them. A ``step``
    with no ``position`` cannot be resumed from: a warning says that the epoch starts over.

    Returns
    -------
    int
        The finished epochs; go on with ``range(resume(…), epochs)``.

    Raises
    ------
    CheckpointError
        If a part, name, shape, dtype or kind of value differs; then nothing has been changed.

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
    name, model = printable(checkpoint.path), unwrapped(model)
    if mistake := find_mistake(model, optimizer, scheduler, generator):
        raise CheckpointError(f"{name} was not loaded: {mistake}")
    given = tensor_outline(model.state_dict()) | outline(model, optimizer, scheduler, generator)
    if lines := compare(checkpoint.outline | tensor_outline(checkpoint.model), given):
        raise CheckpointError("\n  ".join([f"{name} does not fit; nothing was loaded:", *lines]))
    if wrong := find_wrong_state(scheduler, generator, checkpoint) or find_wrong_rng(checkpoint.rng):
        raise CheckpointError(f"{name} does not fit; nothing was loaded: {wrong}")
    undo, rng_before = undo_point(model, optimizer, scheduler, generator), rng_state()
    try:
        if optimizer is not None:
            load_optimizer(optimizer, checkpoint.optimizer or {})
        if scheduler is not None:
            # a copy, since the scheduler would keep and change it
            scheduler.load_state_dict(copy.deepcopy(checkpoint.scheduler or {}))
        if generator is not None and checkpoint.generator is not None:
            generator.set_state(checkpoint.generator)
        model.load_state_dict(checkpoint.model)
        set_rng_state(checkpoint.rng)
    except BaseException as error:
        undo()
        set_rng_state(rng_before)
        if not isinstance(error, Exception):
            raise
        raise CheckpointError(f"{name} does not fit; nothing was loaded. {_reason(error)}") from error
    if checkpoint.step and checkpoint.position is None:
        warnings.warn(
            f"{name} was saved after {checkpoint.step} batches of an epoch, with no position to find them "
            "by: the run will begin it anew",
            stacklevel=2,
        )
    return checkpoint.epoch


def _wrong_count(epoch: object, step: object) -> str | None:
    for name, count in (("epoch", epoch), ("step", step)):
        if not is_count(count):
            found = printable(repr(count), 100)
            return f"{name} is {found}, but must be a whole number (an int), 0 or more, below 10**12"
    return None


def _has_expected_type(key: str, value: Any) -> bool:
    """Whether a value of the file is what `save_checkpoint` writes under that name."""
    if key in ("position", "extra"):
        return True
    if key == "generator":
        return value is None or isinstance(value, Tensor)
    keys = (str, int) if key == "optimizer" else str
    plain = isinstance(value, dict) and all(isinstance(name, keys) for name in value)
    if key == "outline":
        return plain and all(isinstance(text, str) for text in value.values())
    return plain or (value is None and key in ("optimizer", "scheduler"))


def _read(
    path: Path, rest: Callable[[Header, BinaryIO], Any] | None = None
) -> tuple[tuple[int, int, str], Any]:
    """Return the progress that a checkpoint's header tells, and what `rest` makes of the file behind it.

    Whatever goes wrong becomes a `CheckpointError`.
    """
    name = printable(path)
    try:
        with open_file(path) as file:
            if file.read(4) == b"PK\3\4":  # a ZIP archive
                raise CheckpointError(
                    f"{name} is a file of torch.save, as checkpoints of earlier versions were, and is not "
                    "read here, since reading it may run code. If you trust it: old = torch.load(path, "
                    "weights_only=True), load old['model'] and the other states with load_state_dict, and "
                    "call save_checkpoint(…, epoch=old['epoch'])."
                )
            header = read_header(file)
            version = header.metadata.get(_MARK)
            if header.digest is not None and version != _VERSION:
                header.verify(file)  # else it is a damaged one
            if header.digest is None or version is None:
                raise CheckpointError(
                    f"{name} is a safetensors file, but no checkpoint of save_checkpoint. If it holds "
                    "weights, gpulesson.weights.import_weights(model, path) loads them."
                )
            if version != _VERSION:
                raise CheckpointError(
                    f"{name} has version {printable(version, 20)} of the format, and this gpulesson reads "
                    f"{_VERSION}: load it with the one that saved it."
                )
            return _progress(header), None if rest is None else rest(header, file)
    except FileNotFoundError as error:
        raise CheckpointError(f"{name} {_missing(path)}") from error
    except Refused as error:
        raise CheckpointError(
            f"{name} is damaged, cut short, or no checkpoint: {error}. Copy it anew from its source, or take "
            "an earlier one, as latest() does."
        ) from error
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{name} was not loaded. {_reason(error)}") from error


def _progress(header: Header) -> tuple[int, int, str]:
    """Return epoch, step and time of saving, by which the files of a run are sorted."""
    epoch, step, saved = (header.metadata.get(name, "") for name in ("epoch", "step", "saved"))
    if not re.fullmatch(r"\d{1,12} \d{1,12} [0-9T:.+-]{32}", f"{epoch} {step} {saved}", re.ASCII):
        raise Refused("it holds no proper epoch, step and time")
    return int(epoch), int(step), saved


def _missing(path: Path) -> str:
    """Say of a path that leads nowhere what is there instead."""
    if path.is_symlink():
        return f"is a link to {printable(path.readlink())}, which does not exist."
    there: list[str] = []
    with suppress(OSError):
        there = sorted(printable(other.name) for other in path.parent.iterdir())
    return f"does not exist. In {printable(path.parent)} there is: {', '.join(there[:12]) or 'nothing'}."


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {printable(error)}"
