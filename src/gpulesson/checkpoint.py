"""Save, load and resume a training run, so that nothing is lost and nothing damaged is used.

A checkpoint is an ordinary ``torch.save`` file; plain ``torch.load(path, weights_only=True)`` reads it, and
gives a dictionary with the keys of `Checkpoint`. Its zip comment says where the run was and when, and ends in
a SHA-256 over every byte before: ``unzip -z FILE`` shows it, ``head -c -64 FILE | sha256sum`` recomputes it.
It is there because torch itself loads most files with a flipped bit as if nothing had happened. It detects
accidental damage; it is not a signature: what keeps a hostile file from running code is
``weights_only=True``.
"""

import hashlib
import os
import pickle
import random
import re
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from gpulesson._bounds import PLAIN, Refused, check_bounds
from gpulesson._files import open_file, printable, whole_file
from gpulesson._state import (
    compare,
    find_mistake,
    find_not_finite,
    load_optimizer,
    load_scheduler,
    tensor_outline,
    undo_point,
    unwrapped,
)

_COMMENT = re.compile(  # its first group sorts as the run goes: by epoch, then step, then time
    rb"gpulesson checkpoint (epoch \d{12} step \d{12} saved ([0-9T:.+-]{32})) sha256 ([0-9a-f]{64})"
)
_COMMENT_BYTES = 168
_DIGEST_BYTES = 64


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, is damaged, or does not fit; the message says what to do."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What `load_checkpoint` found: when it was saved (ISO 8601, UTC), how far the run was, and the state.

    ``epoch`` counts the finished epochs, ``step`` the finished batches of the epoch that has begun;
    ``position`` is what was saved beside them to find this place again.
    ``model``, ``optimizer`` and ``scheduler`` are state dicts, ``generator`` and ``rng`` the states of random
    number generators (``rng`` by name: ``"python"``, ``"numpy"``, ``"cpu"``, ``"cuda:0"``, …); ``outline``
    names the class of each part but the model, and the optimizer's parameters, for `resume` to compare.
    """

    path: Path
    saved: str
    epoch: int
    step: int
    position: Any = field(repr=False)
    model: dict[str, Any] = field(repr=False)
    optimizer: dict[str, Any] | None = field(repr=False)
    scheduler: dict[str, Any] | None = field(repr=False)
    generator: torch.Tensor | None = field(repr=False)
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

    The file is written beside its place, loaded as a test, synced, and renamed. Call it between epochs: the
    position within an epoch is not recorded automatically (`gpulesson.long_runs.autosave.AutoSave` does
    that), nor are the random numbers inside ``persistent_workers``. A process killed while it writes leaves a
    hidden ``.part`` file, which the next saving there removes (on Windows, it stays).

    Parameters
    ----------
    path
        File to write; missing folders are made.
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
        Long lists belong in tensors, for reading is bounded: 400,000 values, or some 12,000 tensors, a file.

    Returns
    -------
    Path
        The `path`.

    Raises
    ------
    CheckpointError
        If the file cannot be written, `epoch` or `step` is no count, a parameter is NaN or infinite, a buffer
        that is saved is NaN, the parts do not belong together, or a state holds an object that
        ``weights_only=True`` refuses.
        An existing file at `path` is left as it is. Ctrl-C, or whatever a signal raises, comes through as
        itself, unless it meets one of the rare moments in which Python drops it: in ``copyreg``, which is
        asked about each ``OrderedDict``, or in the destructor of an object that the garbage collector frees
        just then.

    Examples
    --------
    >>> import tempfile
    >>> path = save_checkpoint(Path(tempfile.mkdtemp()) / "epoch-003.pt", model=nn.Linear(2, 1), epoch=3)
    >>> torch.load(path, weights_only=True)["epoch"]
    3
    """
    path = Path(path)
    return _save(path, _content(path, model, epoch, step, position, optimizer, scheduler, generator, extra))


def _content(
    path: Path,
    model: nn.Module,
    epoch: int,
    step: int,
    position: Any,
    optimizer: torch.optim.Optimizer | None,
    scheduler: LRScheduler | None,
    generator: torch.Generator | None,
    extra: Any,
) -> dict[str, Any]:
    """Collect what goes into a checkpoint, as it is now; the tensors are those of the run, not copies."""
    model = unwrapped(model)
    if mistake := _wrong_count(epoch, step) or find_mistake(model, optimizer, scheduler, generator):
        raise CheckpointError(f"{printable(path)} was not written: {mistake}")
    if spoilt := find_not_finite(model):
        raise CheckpointError(
            f"{printable(path)} was not written: the model's {printable(spoilt)} holds NaN or infinity, and "
            "what is there may be the last good state. Go back to it, with a lower learning rate or clipped "
            "gradients. To look at these weights, keep them with torch.save(model.state_dict(), …)."
        )
    return {
        "epoch": epoch,
        "step": step,
        "position": position,
        "model": model.state_dict(),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "generator": None if generator is None else generator.get_state(),
        "rng": _rng_state(),
        "extra": extra,
        "outline": _outline(model, optimizer, scheduler, generator),
    }


def _save(path: Path, content: dict[str, Any]) -> Path:
    """Write what `_content` collected, or a copy of it."""
    outer_error = sys.exc_info()[1]
    try:
        with whole_file(path) as file:
            _write(content, file, content["epoch"], content["step"])
            check_bounds(file, _COMMENT_BYTES)
            _load_back(file)
    except Exception as error:
        _raise_interrupt(error, outer_error)
        raise CheckpointError(f"{printable(path)} was not written. {_reason(error, outer_error)}") from error
    return path


def load_checkpoint(
    path: str | os.PathLike[str], *, map_location: str | torch.device | None = "cpu"
) -> Checkpoint:
    """Read what `save_checkpoint` wrote, after checking its digest and with ``weights_only=True``.

    Parameters
    ----------
    path
        The file.
    map_location
        Device of the loaded tensors. The CPU, the default, exists wherever the file was saved, and needs no
        GPU memory; ``load_state_dict`` copies each tensor to the model's device. None gives
        torch's default: the device a tensor was saved from, and an error where there is none.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged, no checkpoint, or holds an object that could run code.

    Examples
    --------
    >>> import tempfile
    >>> path = save_checkpoint(Path(tempfile.mkdtemp()) / "last.pt", model=nn.Linear(2, 1), epoch=1)
    >>> load_checkpoint(path).model["weight"].shape
    torch.Size([1, 2])
    """
    path = Path(path)
    outer_error = sys.exc_info()[1]
    try:
        with open_file(path) as file:
            place, saved = _verify(file)
            check_bounds(file, _COMMENT_BYTES)
            file.seek(0)
            content = torch.load(file, map_location=map_location, weights_only=True)
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise CheckpointError(f"{printable(path)} {_missing(path)}") from error
    except Exception as error:
        _raise_interrupt(error, outer_error)
        raise CheckpointError(f"{printable(path)} was not loaded. {_reason(error, outer_error)}") from error
    keys = [each.name for each in fields(Checkpoint) if each.name not in ("path", "saved")]
    if missing := [key for key in keys if not isinstance(content, dict) or key not in content]:
        raise CheckpointError(
            f"{printable(path)} is no whole checkpoint: {', '.join(missing)} missing. Take one that "
            "save_checkpoint of this version of gpulesson wrote; whatever else is there, torch.load reads."
        )
    wrong = [key for key in keys if not _has_expected_type(key, content[key])]
    if wrong or not place.startswith(_place_text(content["epoch"], content["step"])):
        raise CheckpointError(
            f"{printable(path)} is no checkpoint that save_checkpoint wrote: it holds no proper "
            f"{', '.join(wrong) or 'epoch and step'}."
        )
    return Checkpoint(path=path, saved=saved, **{key: content[key] for key in keys})


def latest(folder: str | os.PathLike[str], *, pattern: str = "*.pt") -> Path | None:
    """Find the undamaged checkpoint that was saved furthest into the run; None if there is no file.

    More epochs win, then more steps, then the later time of saving: as they stand inside the file, so that
    no copy and no wrong clock changes the order. Files passed over on the way are named in a warning.
    Give each run a folder of its own: of two runs in one folder, this finds the one that got further.

    Raises
    ------
    CheckpointError
        If `folder` cannot be listed, or none of its files is valid: starting afresh would overwrite them.

    Examples
    --------
    >>> latest("no/run/yet") is None
    True
    """
    outer_error = sys.exc_info()[1]
    try:
        files = [path for path in Path(folder).iterdir() if path.match(pattern)]
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        where = printable(folder)
        raise CheckpointError(
            f"Cannot look for checkpoints in {where}. {_reason(error, outer_error)}"
        ) from error
    places: dict[Path, str] = {}
    for path in files:
        try:
            places[path] = _sort_key(path)
        except OSError as error:  # it may be temporary, but a file that cannot be read cannot be ranked
            warnings.warn(f"passed over: {printable(f'{path}: {error}')}", stacklevel=2)
    for path in sorted(places, key=places.__getitem__, reverse=True):
        try:
            with open_file(path) as file:
                _verify(file)
            return path
        except OSError as error:
            warnings.warn(f"passed over: {printable(f'{path}: {error}')}", stacklevel=2)
        except CheckpointError as error:  # it names the file
            warnings.warn(f"passed over: {printable(error)}", stacklevel=2)
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

    Until all is loaded, a copy of the model's old state is kept in host memory, to put back after an error.
    Where the same run twice gives the same bits (a CPU does), the resumed run gives them too. What was saved
    must be given: without its optimizer state it is another run. (For the weights alone:
    ``model.load_state_dict(checkpoint.model)``.)

    The checkpoint's ``step``, ``position`` and ``extra`` are left to who saved them. A ``step`` with no
    ``position`` cannot be resumed from: a warning says that the epoch starts over.

    Returns
    -------
    int
        The finished epochs; go on with ``range(resume(…), epochs)``.

    Raises
    ------
    CheckpointError
        If a part, name, shape or dtype differs; then nothing has been changed.

    Examples
    --------
    >>> import tempfile
    >>> model = nn.Linear(2, 1)
    >>> path = save_checkpoint(Path(tempfile.mkdtemp()) / "last.pt", model=model, epoch=3)
    >>> list(range(resume(load_checkpoint(path), model=model), 5))
    [3, 4]
    """
    path, model = printable(checkpoint.path), unwrapped(model)
    if mistake := find_mistake(model, optimizer, scheduler, generator):
        raise CheckpointError(f"{path} was not loaded: {mistake}")
    given = tensor_outline(model.state_dict()) | _outline(model, optimizer, scheduler, generator)
    if lines := compare(checkpoint.outline | tensor_outline(checkpoint.model), given):
        raise CheckpointError("\n  ".join([f"{path} does not fit; nothing was loaded:", *lines]))
    outer_error = sys.exc_info()[1]
    undo, rng_before = undo_point(model, optimizer, scheduler, generator), _rng_state()
    try:
        model.load_state_dict(checkpoint.model)
        if optimizer is not None:
            load_optimizer(optimizer, checkpoint.optimizer or {})
        if scheduler is not None:
            load_scheduler(scheduler, checkpoint.scheduler or {})
        if generator is not None and checkpoint.generator is not None:
            generator.set_state(checkpoint.generator.cpu())
        _set_rng_state(checkpoint.rng)
    except BaseException as error:
        undo()
        _set_rng_state(rng_before)
        if not isinstance(error, Exception):
            raise
        raise CheckpointError(
            f"{path} is malformed; nothing was loaded. {_reason(error, outer_error)}"
        ) from error
    if checkpoint.step and checkpoint.position is None:
        warnings.warn(
            f"{path} was saved after {checkpoint.step} batches of an epoch, with no position to find them "
            "by: the run will begin it anew",
            stacklevel=2,
        )
    return checkpoint.epoch


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 10**12  # neither True nor 3.0


def _wrong_count(epoch: object, step: object) -> str | None:
    for name, count in (("epoch", epoch), ("step", step)):
        if not _is_count(count):
            found = printable(repr(count), 100)
            return f"{name} is {found}, but must be a whole number (an int), 0 or more, below 10**12"
    return None


def _has_expected_type(key: str, value: Any) -> bool:
    """Whether a value of the file is what `save_checkpoint` writes under that name."""
    if key in ("epoch", "step"):
        return _is_count(value)
    if key in ("position", "extra"):
        return True
    if key == "generator":
        return value is None or isinstance(value, torch.Tensor)
    keys = (str, int) if key == "optimizer" else str
    plain = isinstance(value, dict) and all(isinstance(name, keys) for name in value)
    if key == "outline":
        return plain and all(isinstance(text, str) for text in value.values())
    return plain or (value is None and key in ("optimizer", "scheduler"))


def _place_text(epoch: int, step: int) -> str:
    return f"epoch {epoch:012} step {step:012}"


class _Sink:
    """A file for torch to write to. Its C++ replaces exceptions, so they are kept, and raised later."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: BaseException | None = None

    def write(self, data: memoryview) -> int:
        try:
            if self.error is None:
                self.file.write(data)
        except BaseException as error:
            self.error = error
        return len(data)

    def flush(self) -> None:
        """Torch calls it at the end, before the digest is written."""


def _write(content: Any, file: BinaryIO, epoch: int, step: int) -> None:
    sink = _Sink(file)
    torch.save(content, sink)  # type: ignore[arg-type]
    if sink.error is not None:
        raise sink.error
    _seal(file, epoch, step)


def _seal(file: BinaryIO, epoch: int, step: int) -> None:
    """Add the comment to a zip file."""
    saved = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    file.seek(-2, os.SEEK_END)  # a zip file ends in the length of its comment (two bytes), here 0
    place = f"{_place_text(epoch, step)} saved {saved}"
    file.write(_COMMENT_BYTES.to_bytes(2, "little") + f"gpulesson checkpoint {place} sha256 ".encode())
    file.write(_sha256(file, file.tell()))
    file.flush()


def _load_back(file: BinaryIO) -> None:
    """Load what was written as a test: memory-mapped, unless torch cannot encode the file's name."""
    mapped = not re.search("[\ud800-\udfff]", file.name)
    file.seek(0)
    torch.load(file.name if mapped else file, map_location="cpu", weights_only=True, mmap=mapped)


def _raise_interrupt(error: BaseException | None, outer_error: BaseException | None) -> None:
    """Raise the KeyboardInterrupt or SystemExit hidden in the context of an error from torch's C++.

    `outer_error` was being handled when the call began: it says nothing about the call.
    """
    while error is not None and error is not outer_error:
        if not isinstance(error, Exception):
            raise error
        error = error.__context__


def _missing(path: Path) -> str:
    """Say of a path that leads nowhere what is there instead."""
    if path.is_symlink():
        return f"is a link to {printable(path.readlink())}, which does not exist."
    there: list[str] = []
    with suppress(OSError):
        there = sorted(printable(other.name) for other in path.parent.iterdir())
    return f"does not exist. In {printable(path.parent)} there is: {', '.join(there[:12]) or 'nothing'}."


def _verify(file: BinaryIO) -> tuple[str, str]:
    """Return the place and time of saving of an undamaged checkpoint; any other raises CheckpointError."""
    size = file.seek(0, os.SEEK_END)
    comment = _comment(file)
    if comment and _sha256(file, size - _DIGEST_BYTES) == comment[3]:
        return comment[1].decode(), comment[2].decode()
    found = "its digest is not that of its content" if comment else f"no digest ends its {size} bytes"
    raise CheckpointError(
        f"{printable(file.name)} is damaged, cut short, or not written by save_checkpoint: {found}. Copy it "
        "anew from its source, or take an earlier one, as latest() does. What torch.save wrote is read by "
        "torch.load."
    )


def _comment(file: BinaryIO) -> re.Match[bytes] | None:
    """Match the end of `file`: group 1 is epoch, step and time, by which files are sorted, group 2 the
    time alone, group 3 the digest.
    """
    file.seek(max(file.seek(0, os.SEEK_END) - _COMMENT_BYTES, 0))
    return _COMMENT.fullmatch(file.read() or b"")  # None: a pipe in disguise, such as /proc/kmsg


def _sha256(file: BinaryIO, size: int) -> bytes:
    """Digest the first `size` bytes, a mebibyte at a time."""
    file.seek(0)
    digest = hashlib.sha256()
    while block := file.read(min(size, 2**20)):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest().encode()


def _sort_key(path: Path) -> str:
    """Return what orders the files of a run; for a file without it, a text that sorts after every other."""
    with open_file(path) as file:
        comment = _comment(file)
    return comment[1].decode() if comment else "~"


def _reason(error: BaseException, outer_error: BaseException | None) -> str:
    """Name the cause: torch hides the system's error behind its own, and advises to trust the file.

    `outer_error` was being handled when the call began: it is no cause.
    """
    if isinstance(error, Refused):
        return str(error)
    refused = isinstance(error, AttributeError | TypeError) and "pickle" in str(error)
    if refused or isinstance(error, pickle.PickleError):
        found = re.search(r"(?:GLOBAL|attribute lookup|local object|cannot pickle) (\S+)", str(error))
        return f"It holds {printable(found[1]) if found else 'an object'}; {PLAIN}"
    hidden = error.__context__
    cause = hidden if isinstance(hidden, OSError) and hidden is not outer_error else error
    return f"{type(cause).__name__}: {printable(cause)}"


def _outline(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    scheduler: LRScheduler | None,
    generator: torch.Generator | None,
) -> dict[str, str]:
    outline = {}
    if optimizer is not None:
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        outline["optimizer"] = f"{type(optimizer).__name__} with groups of {sizes} parameters"
        names = {parameter: name for name, parameter in model.named_parameters()}
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for place, parameter in enumerate(held):  # the state that is saved goes by these numbers
            outline[f"optimizer parameter {place}"] = names.get(parameter, "not of the model")
    if scheduler is not None:
        outline["scheduler"] = type(scheduler).__name__
    if generator is not None:
        outline["generator"] = f"a generator of the {generator.device.type}"
    return outline


def _accelerators() -> list[torch.device]:
    kind = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count()
    return [] if kind is None else [torch.device(kind.type, index) for index in range(count)]


def _rng_state() -> dict[str, Any]:
    """Collect the state of every global generator."""
    state: dict[str, Any] = {"python": random.getstate(), "cpu": torch.get_rng_state()}
    if numpy := sys.modules.get("numpy"):
        state["numpy"] = _with_lists(numpy.random.get_state(legacy=False))
    for device in _accelerators():
        backend = torch.get_device_module(device)
        # else unused: leave a GPU alone that others may use
        if getattr(backend, "is_initialized", lambda: True)():
            state[str(device)] = backend.get_rng_state(device)
    return state


def _with_lists(value: Any) -> Any:
    """Return nested dictionaries with lists in the place of arrays, which ``weights_only=True`` refuses."""
    if isinstance(value, dict):
        return {name: _with_lists(each) for name, each in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def _set_rng_state(state: Mapping[str, Any]) -> None:
    """Set what `_rng_state` collected; every state belongs on the CPU, wherever `map_location` put it."""
    random.setstate(state["python"])
    torch.set_rng_state(state["cpu"].cpu())
    with suppress(ImportError):  # a process without numpy draws nothing from it
        if "numpy" in state:
            import numpy

            numpy.random.set_state(state["numpy"])
    devices = {str(device): device for device in _accelerators()}
    for name in sorted(state.keys() - {"python", "numpy", "cpu"}):
        if name in devices:
            torch.get_device_module(name).set_rng_state(state[name].cpu(), devices[name])
        else:
            warnings.warn(f"no {name} here, whose random numbers the saved run may have used", stacklevel=3)
