"""Save and load what is spread over the ranks: a safetensors file for each rank, sealed by digests."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gpulesson._arguments import as_path
from gpulesson._files import open_file, printable, read_file, whole_file
from gpulesson._kinds import difference, is_count
from gpulesson._plain import decode, encode
from gpulesson._state import compare, find_mistake, find_not_finite, outline
from gpulesson._tensorfile import NAMES, Entry, Refused, memory_of, read_header, write
from gpulesson.checkpoint import CheckpointError
from gpulesson.long_runs.ranks import Ranks

Result = TypeVar("Result")

_DIGESTS = "digests.sha256"
_RUN = "run.safetensors"
_JSON = "shards.json"


def save_shards(
    folder: str | os.PathLike[str],
    ranks: Ranks,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    extra: Any = None,
) -> Path:
    """Save a model that is spread over the ranks (FSDP2, ``fully_shard``): each rank writes what it holds.

    Each rank writes a safetensors file, such as ``rank-00000.safetensors``, with the parts of tensors that it
    has and their places; ``run.safetensors`` holds what is no part of a tensor, and `extra`. A list of their
    SHA-256 is written last, as ``digests.sha256``: a folder without it is of a save that was not finished,
    and is not loaded. ``sha256sum -c digests.sha256`` verifies it without Python. Of what all ranks hold
    alike, as with ``DistributedDataParallel``, one copy is written.

    Parameters
    ----------
    folder : path
        New for each save, as ``shards/step-001000``; with several machines, on a disk that they share. What
        an unfinished save left in it is replaced.
    ranks : Ranks
        From `processes`; every rank has to call this.
    model, optimizer
        Their state is saved by the names of the parameters, so that another number of ranks can load it.
    extra : object, optional
        Tensors and plain values of rank 0 that the run needs besides: ``{"epoch": 3}``, a scheduler's state.

    Returns
    -------
    Path
        The `folder`.

    Raises
    ------
    CheckpointError
        On every rank: the folder holds a finished save or other files, one rank could not write, the model
        holds NaN, or a state holds anything but tensors and plain values.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "step-000100"
    >>> from gpulesson.long_runs.distributed import processes
    >>> with processes() as ranks:
    ...     model = nn.Linear(2, 1)
    ...     _ = save_shards(folder, ranks, model=model, extra={"epoch": 3})
    ...     load_shards(folder, ranks, model=model)
    {'epoch': 3}
    """
    folder = as_path("folder", folder)
    failed = f"{printable(folder)} was not written"
    ranks.on_main(lambda: _make_room(folder))
    _on_each(failed, ranks, lambda: _check(model, optimizer))
    state = _state(model, optimizer)
    parts = _on_each(failed, ranks, lambda: _local_parts(state, model))
    held = ranks._gather({name: part.offsets for name, part in parts.items()})
    own = {
        name: part
        for name, part in parts.items()  # unless a rank before this one writes it
        if not any(other.get(name) == part.offsets for other in held[: ranks.rank])
    }
    _on_each(failed, ranks, lambda: _write_parts(folder / _name(ranks.rank), own))

    def seal() -> None:
        with _as_checkpoint_error(failed):
            run = {"values": _values(state), "extra": extra, "outline": outline(model, optimizer, None, None)}
            _write(folder / _RUN, *encode(run))
            files = [folder / _RUN, *(folder / _name(rank) for rank in range(ranks.world_size))]
            lines = "".join(f"{_digest(path)}  {path.name}\n" for path in files)
            with whole_file(folder / _DIGESTS) as file:
                file.write(lines.encode())

    ranks.on_main(seal)
    return folder


def load_shards(
    folder: str | os.PathLike[str],
    ranks: Ranks,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
) -> Any:
    """Load what `save_shards` wrote, with any number of ranks, after verifying every byte of it.

    Parameters
    ----------
    folder, ranks, model, optimizer
        As in `save_shards`. Each rank reads what it needs; together they verify the digests of all files.

    Returns
    -------
    object
        The `extra` that was saved.

    Raises
    ------
    CheckpointError
        On every rank: a file is missing, damaged or one too many, the save was not finished, or model or
        optimizer have other classes, names, shapes or kinds of values. Then nothing has been changed, but
        that an optimizer without a state has one of zeros.

    Notes
    -----
    The digests find accidents; they are not a signature. Nothing in the files can run code.
    """
    folder = as_path("folder", folder)
    failed = f"{printable(folder)} was not loaded"
    _on_each(failed, ranks, lambda: _verify(folder, ranks))
    _on_each(failed, ranks, lambda: _check(model, optimizer))
    if optimizer is not None:
        optimizer.zero_grad()  # beside gradients, torch would not make the state that is to be loaded
    state = _state(model, optimizer)

    def read_own() -> tuple[dict[str, Any], dict[str, Tensor]]:
        run, stored = _read_run(folder), _read_places(folder)
        found = {name: f"{parts[0].entry.dtype} {parts[0].shape}" for name, parts in stored.items()}
        given = {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in _tensors(state)}
        lines = compare(run["outline"] | found, outline(model, optimizer, None, None) | given)
        if wrong := difference(run["values"], _values(state), "the state"):
            lines = lines or [wrong]
        if lines:
            raise CheckpointError(
                "\n  ".join([f"{printable(folder)} does not fit; nothing was loaded:", *lines])
            )
        return run, {name: _assembled(tensor, name, stored[name]) for name, tensor in _tensors(state)}

    run, tensors = _on_each(failed, ranks, read_own)
    with _as_checkpoint_error(failed):
        _set_state(model, optimizer, _replaced(state, run["values"], tensors))
    return run["extra"]


@dataclass(frozen=True)
class _Part:
    """A part of a tensor that lies on this rank: a box that begins at `offsets` in the whole."""

    shape: list[int]  # of the whole
    offsets: list[int]
    tensor: Tensor


@dataclass(frozen=True)
class _Stored:
    """A part of a tensor that lies in a file, in which the tensors begin at byte `start`."""

    shape: list[int]  # of the whole
    offsets: list[int]
    file: Path
    start: int
    entry: Entry

    def read(self) -> Tensor:
        with open_file(self.file) as file:
            file.seek(self.start + self.entry.begin)
            return self.entry.read(file)[1]


def _state(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Return the states by the names of the parameters; tensors that are spread are DTensors."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    if optimizer is not None:
        state["optimizer"] = get_optimizer_state_dict(model, optimizer)
    return state


def _set_state(model: nn.Module, optimizer: torch.optim.Optimizer | None, state: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    set_model_state_dict(model, state["model"])
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, state["optimizer"])


def _tensors(state: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors in a nest of dicts and lists, each with the way that leads to it."""
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        if isinstance(value, Tensor):
            yield f"{name}{key}", value
        elif isinstance(value, dict | list | tuple):
            yield from _tensors(value, f"{name}{key}.")


def _replaced(state: Any, values: Any, tensors: Mapping[str, Tensor], name: str = "") -> Any:
    """Return the nest with these tensors, and with what else `values` has in the places of others."""
    if isinstance(state, Tensor):
        return tensors.get(name)
    if isinstance(state, dict):
        return {
            key: _replaced(value, values[key], tensors, f"{name}.{key}".lstrip("."))
            for key, value in state.items()
        }
    if isinstance(state, list | tuple):
        parts = zip(state, values, strict=True)
        return [_replaced(*pair, tensors, f"{name}.{number}") for number, pair in enumerate(parts)]
    return values


def _values(state: dict[str, Any]) -> Any:
    """Return the nest with None in the place of each tensor."""
    return _replaced(state, state, {})


def _place(tensor: Any) -> tuple[list[int], Tensor]:
    """Return which part of a tensor is on this rank: where it begins, and its numbers."""
    if not hasattr(tensor, "to_local"):
        return [0] * tensor.ndim, tensor
    (chunk,) = tensor.__create_chunk_list__()
    return list(chunk.offsets), tensor.to_local()


def _check(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    if mistake := find_mistake(model, optimizer, None, None):
        raise CheckpointError(mistake)


def _local_parts(state: dict[str, Any], model: nn.Module) -> dict[str, _Part]:
    """Return what this rank has of each tensor, by name."""
    parts: dict[str, _Part] = {}
    for name, tensor in _tensors(state):
        offsets, local = _place(tensor)
        if local.dtype not in NAMES or local.layout is not torch.strided or name in parts:
            raise CheckpointError(f"{printable(name)} is no dense tensor of a dtype that safetensors knows")
        if local.numel() or not tensor.numel():
            parts[name] = _Part(list(tensor.shape), offsets, local)
    own = {name[6:]: part.tensor for name, part in parts.items() if name.startswith("model.")}
    if spoilt := find_not_finite(model, own):
        raise CheckpointError(f"the model's {printable(spoilt)} holds NaN or infinity")
    return parts


def _name(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"


def _write(path: Path, text: bytes, tensors: dict[str, Tensor]) -> None:
    json = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    with whole_file(path) as file:
        write(file, {**tensors, _JSON: json}, {"format": "pt"})


def _write_parts(path: Path, parts: dict[str, _Part]) -> None:
    places = {name: {"shape": part.shape, "offsets": part.offsets} for name, part in parts.items()}
    _write(path, encode(places)[0], {name: part.tensor for name, part in parts.items()})


def _read_run(folder: Path) -> dict[str, Any]:
    """Read what is no part of a tensor."""
    with open_file(folder / _RUN) as file:
        tensors = read_header(file).read_tensors(file)
    run = decode(bytes(memory_of(tensors.pop(_JSON))), tensors)
    texts = run["outline"] if isinstance(run, dict) and run.keys() == {"values", "extra", "outline"} else None
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in [*texts, *texts.values()]):
        raise Refused(f"{_RUN} is not as save_shards writes it")
    return run  # type: ignore[no-any-return]


def _read_places(folder: Path) -> dict[str, list[_Stored]]:
    """Read which parts of which tensors the files of the ranks have."""
    found: dict[str, list[_Stored]] = {}
    for path in sorted(folder.glob("rank-*.safetensors")):
        with open_file(path) as file:
            header = read_header(file)
            start = 8 + len(header.raw)
            file.seek(start + header.entries[_JSON].begin)
            places = decode(bytes(header.entries.pop(_JSON).read(file)[0]), {})
        for name, entry in header.entries.items():
            part = _Stored(places[name]["shape"], places[name]["offsets"], path, start, entry)
            corners = zip(part.offsets, entry.shape, part.shape, strict=True)
            if not all(is_count(offset) and offset + size <= most for offset, size, most in corners):
                raise Refused(f"{path.name} has a part of {name} that is not in it")
            found.setdefault(name, []).append(part)
    return found


def _assembled(tensor: Any, name: str, parts: list[_Stored]) -> Tensor:
    """Put what this rank has of a tensor together from the parts that the files have."""
    offsets, local = _place(tensor)
    new = torch.zeros(local.shape, dtype=local.dtype)
    missing = new.numel()
    for part in parts:
        sizes = part.entry.shape
        begin = [max(pair) for pair in zip(offsets, part.offsets, strict=True)]
        ends = zip(offsets, new.shape, part.offsets, sizes, strict=True)
        end = [min(ours + size, theirs + length) for ours, size, theirs, length in ends]
        if all(first < last for first, last in zip(begin, end, strict=True)):
            here, there = (
                tuple(
                    slice(first - at, last - at) for first, last, at in zip(begin, end, corner, strict=True)
                )
                for corner in (offsets, part.offsets)
            )
            new[here] = part.read()[there]
            missing -= math.prod(last - first for first, last in zip(begin, end, strict=True))
    if missing:
        raise Refused(f"the files have {printable(name)} not once, but for {missing} numbers of this rank")
    if not hasattr(tensor, "to_local"):
        return new
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        new.to(local.device),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def _make_room(folder: Path) -> None:
    """Make the folder, without what an unfinished save has left in it."""
    with _as_checkpoint_error(f"{printable(folder)} was not written"):
        folder.mkdir(parents=True, exist_ok=True)
        there = list(folder.iterdir())
        ours = re.compile(r"rank-\d{5,}\.safetensors|run\.safetensors|\.gpulesson-.*")
        if not all(ours.fullmatch(each.name) for each in there):
            names = ", ".join(sorted(printable(each.name) for each in there)[:6])
            raise CheckpointError(
                f"{printable(folder)} was not written: it holds {names} already, expected a new folder: give "
                "each save its own, as shards/step-001000"
            )
        for each in there:
            each.unlink()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _verify(folder: Path, ranks: Ranks) -> None:
    """Compare the names of all files, and the digests of this rank's share of them."""
    where = printable(folder)
    if (folder / ".metadata").exists():
        raise CheckpointError(
            f"{where} has a .metadata, as save_shards of earlier versions wrote it: reading it may run code. "
            "If you trust it, load it with torch.distributed.checkpoint, and save it anew"
        )
    content = read_file(folder / _DIGESTS, 2**23)
    if content is None:
        what = "this save was not finished" if folder.is_dir() else "there is no such folder"
        raise CheckpointError(f"{where} has no {_DIGESTS}: {what}. Take an earlier one that has it")
    lines = content.decode(errors="replace").splitlines()
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    there = {path.name for path in folder.iterdir()} - {_DIGESTS}
    for names, what in ((listed.keys() - there, "lacks"), (there - listed.keys(), "holds also")):
        if names:
            raise CheckpointError(
                f"{where} {what} {printable(', '.join(sorted(names)[:6]))}, expected the {len(listed)} files "
                f"that {_DIGESTS} lists. Copy the folder anew from its source, or take an earlier one"
            )
    for name in sorted(listed)[ranks.rank :: ranks.world_size]:
        if _digest(folder / name) != listed[name]:
            raise CheckpointError(
                f"{where}: {printable(name)} is damaged or cut short, its digest is not the one in "
                f"{_DIGESTS}. Copy the folder anew from its source, or take an earlier one"
            )


def _on_each(failed: str, ranks: Ranks, function: Callable[[], Result]) -> Result:
    """Call a function on every rank; if one fails, raise its error on all."""
    result: Any = None
    error: CheckpointError | None = None
    try:
        with _as_checkpoint_error(failed):
            result = function()
    except CheckpointError as raised:
        error = raised
    for each in ranks._gather(error):
        if each is not None:
            raise each
    return result  # type: ignore[no-any-return]


@contextmanager
def _as_checkpoint_error(failed: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        said = str(error)
        raise error if failed.split(" ")[0] in said else CheckpointError(f"{failed}: {said}") from error
    except Refused as error:
        raise CheckpointError(f"{failed}: {printable(error)}") from error
    except Exception as error:
        raise CheckpointError(f"{failed}. {type(error).__name__}: {printable(error)}") from error
