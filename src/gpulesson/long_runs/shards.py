"""Save and load what is spread over the ranks: a safetensors file for each rank, sealed by digests."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gpulesson._files import open_file, printable, read_file, whole_file
from gpulesson._kinds import difference, find_wrong_versions, is_count
from gpulesson._plain import decode, encode, pack, unpack
from gpulesson._state import RunParts, compare, find_mistake, find_not_finite, outline
from gpulesson._tensorfile import Entry, Refused, parse, read_header, write
from gpulesson.checkpoint import _as_checkpoint_error, _as_folder
from gpulesson.long_runs.ranks import Ranks

_DIGESTS = "digests.sha256"
_RUN = "run.safetensors"
_PLACES = "DCP_SHARDING_INFO"  # as torch.distributed.checkpoint.HuggingFaceStorageReader expects it


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
    has; ``run.safetensors`` holds all else, and `extra`. A list of their SHA-256 is written last, as
    ``digests.sha256``: a folder without it is of a save that was not finished, and is not loaded. ``sha256sum
    -c digests.sha256`` verifies it without Python, and ``HuggingFaceStorageReader`` of
    ``torch.distributed.checkpoint`` reads the tensors. Of what all ranks hold alike, as with
    ``DistributedDataParallel``, one copy is written.

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
        On every rank: the folder holds a finished save or other files, or is not the same for all ranks; one
        rank could not write, the model holds NaN, or a state anything but tensors and plain values.

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
    folder = _as_folder(folder)
    with _as_checkpoint_error(f"{printable(folder)} was not written"):
        ranks.on_main(lambda: _make_room(folder))
        ranks._on_each(lambda: _check(model, optimizer, finite=True))
        state = _state(model, optimizer)
        text, tensors = ranks._on_each(lambda: encode(state, sharded=True))
        parts = {name: _local(tensor) for name, tensor in tensors.items()}
        held = {name: at for name, (at, part) in parts.items() if part.numel() or not tensors[name].numel()}
        for other in ranks._gather(held)[: ranks.rank]:  # which writes what this rank has, too
            held = {name: offsets for name, offsets in held.items() if other.get(name) != offsets}

        def write_own() -> str:
            places = {name: {"saved_offsets": offsets} for name, offsets in held.items()}
            metadata = {"format": "pt", _PLACES: json.dumps(places, separators=(",", ":"))}
            return _write(folder / _name(ranks.rank), {name: parts[name][1] for name in held}, metadata)

        digests = ranks._gather(ranks._on_each(write_own))

        def seal() -> None:
            run = {"state": text.decode(), "extra": extra, "outline": outline(RunParts(model, optimizer))}
            listed = {_RUN: _write(folder / _RUN, pack(run), {"format": "pt"})}
            listed |= {_name(rank): digest for rank, digest in enumerate(digests)}
            if unseen := [name for name in listed if not (folder / name).exists()]:
                raise Refused(
                    f"rank 0 does not see {', '.join(unseen[:6])}, expected all {len(listed)} files in one "
                    "folder: give one on a disk that all machines share"
                )
            with whole_file(folder / _DIGESTS) as file:
                file.writelines(f"{digest}  {name}\n".encode() for name, digest in listed.items())

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
        that an optimizer without a state has one of zeros, and its parameters no gradients. An error while
        the new values take their places, such as too little memory, leaves some of them there.

    Notes
    -----
    The digests find accidents; they are not a signature. Nothing in the files can run code.
    """
    folder = _as_folder(folder)
    with _as_checkpoint_error(f"{printable(folder)} was not loaded"):
        ranks._on_each(lambda: _verify(folder, ranks))
        ranks._on_each(lambda: _check(model, optimizer))
        if optimizer is not None and not optimizer.state:
            optimizer.zero_grad()  # beside gradients, torch would not make the state that is to be loaded
        state = _state(model, optimizer)

        def read_own() -> tuple[Any, dict[str, Any]]:
            with open_file(folder / _RUN) as file:
                run = unpack(read_header(file).read_tensors(file))
            wrong = difference(run, {"state": "", "extra": None, "outline": None}, _RUN)
            if wrong := wrong or difference(run["outline"], {}, "its outline", more=True):
                raise Refused(wrong)
            stored, tensors = _stored_parts(folder), encode(state, sharded=True)[1]
            found = {name: f"{parts[0].entry.dtype} {_whole(parts)}" for name, parts in stored.items()}
            given = {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in tensors.items()}
            if lines := compare(run["outline"] | found, outline(RunParts(model, optimizer)) | given):
                raise Refused("\n  ".join(["these differ", *lines]))
            filled = {name: _filled(tensor, name, stored[name]) for name, tensor in tensors.items()}
            new = decode(run["state"].encode(), filled)
            wrong = difference(new, state, "the state")
            if wrong := wrong or find_wrong_versions(new["model"], state["model"]):
                raise Refused(wrong)
            return run["extra"], new

        extra, new = ranks._on_each(read_own)
        ranks._on_each(lambda: _set_state(model, optimizer, new))
    return extra


@dataclass(frozen=True)
class _Part:
    """A part of a tensor that lies in a file; it begins at `offsets` in the whole."""

    offsets: list[int]
    file: Path
    start: int  # of its bytes
    entry: Entry

    def read(self) -> Tensor:
        with open_file(self.file) as file:
            file.seek(self.start)
            return self.entry.read(file)[1]


def _whole(parts: list[_Part]) -> list[int]:
    """Return the shape of a tensor that has these parts."""
    ends = ([at + size for at, size in zip(part.offsets, part.entry.shape, strict=True)] for part in parts)
    return [max(sizes) for sizes in zip(*ends, strict=True)]


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


def _local(tensor: Any) -> tuple[list[int], Tensor]:
    """Return which part of a tensor is on this rank: where it begins, and its numbers."""
    if not hasattr(tensor, "to_local"):
        return [0] * tensor.ndim, tensor
    (chunk,) = tensor.__create_chunk_list__()
    return list(chunk.offsets), tensor.to_local()


def _check(model: nn.Module, optimizer: torch.optim.Optimizer | None, *, finite: bool = False) -> None:
    if mistake := find_mistake(RunParts(model, optimizer)):
        raise Refused(mistake)
    if finite and (spoilt := find_not_finite(model)):
        raise Refused(f"the model's {printable(spoilt)} holds NaN or infinity")


def _name(rank: int) -> str:
    return f"rank-{rank:05}.safetensors"


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Write a file, and return its digest."""
    with whole_file(path) as file:
        write(file, tensors, metadata)
    return _digest(path)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _stored_parts(folder: Path) -> dict[str, list[_Part]]:
    """Return which parts of which tensors the files of the ranks have."""
    found: dict[str, list[_Part]] = {}
    for path in sorted(folder.glob("rank-*.safetensors")):
        with open_file(path) as file:
            header = read_header(file)
        shown = printable(path.name)
        if _PLACES not in header.metadata:
            raise Refused(f"{shown} has no {_PLACES}, as save_shards writes it: take a folder that it wrote")
        places, start = parse(header.metadata[_PLACES].encode()), 8 + len(header.raw)
        for name, entry in header.entries.items():
            offsets = places[name]["saved_offsets"]
            if not all(map(is_count, offsets)) or len(offsets) != len(entry.shape):
                raise Refused(f"{shown} has a part of {printable(name)} at no place")
            found.setdefault(name, []).append(_Part(offsets, path, start + entry.begin, entry))
    return found


def _filled(tensor: Tensor, name: str, parts: list[_Part]) -> Tensor:
    """Return a tensor like this one, with the numbers that the files have for this rank."""
    # one that is not spread is filled on the CPU: a GPU would hold it twice
    new = torch.zeros_like(tensor, device=None if hasattr(tensor, "to_local") else "cpu")
    offsets, local = _local(new)
    missing = local.numel()
    for part in parts:
        sides = zip(offsets, local.shape, part.offsets, part.entry.shape, strict=True)
        common = [_overlap(*side) for side in sides]
        here, there = tuple(ours for ours, _ in common), tuple(theirs for _, theirs in common)
        if size := local[here].numel():
            local[here] = part.read()[there].to(local.device)
            missing -= size
    if missing:
        raise Refused(f"the files have {printable(name)} not once, but for {missing} numbers of this rank")
    return new


def _overlap(begin: int, size: int, other_begin: int, other_size: int) -> tuple[slice, slice]:
    """Return what two ranges of indices have in common, counted from the begin of each."""
    first = max(begin, other_begin)
    last = max(first, min(begin + size, other_begin + other_size))
    return slice(first - begin, last - begin), slice(first - other_begin, last - other_begin)


def _make_room(folder: Path) -> None:
    """Make the folder, without what an unfinished save has left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    there = list(folder.iterdir())
    ours = re.compile(r"rank-\d{5,}\.safetensors|run\.safetensors|\.gpulesson-.*")
    if not all(ours.fullmatch(each.name) for each in there):
        names = ", ".join(sorted(printable(each.name) for each in there)[:6])
        raise Refused(
            f"it holds {names} already, expected a new folder: give each save its own, as shards/step-001000"
        )
    for each in there:
        each.unlink()


def _verify(folder: Path, ranks: Ranks) -> None:
    """Compare the names of all files, and the digests of this rank's share of them."""
    if (folder / ".metadata").exists():
        raise Refused(
            "it has a .metadata, as save_shards of earlier versions wrote it: reading it may run code. If "
            "you trust it, load it with torch.distributed.checkpoint, and save it anew"
        )
    remedy = "Copy the folder anew from its source, or take an earlier one"
    content = read_file(folder / _DIGESTS, 2**23)
    if content is None:
        what = "this save was not finished" if folder.is_dir() else "there is no such folder"
        raise Refused(f"it has no {_DIGESTS}: {what}. Take an earlier one that has it")
    lines = content.decode(errors="replace").splitlines()
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    there = {path.name for path in folder.iterdir()} - {_DIGESTS}
    for names, what in ((listed.keys() - there, "lacks"), (there - listed.keys(), "holds also")):
        if names:
            raise Refused(
                f"it {what} {printable(', '.join(sorted(names)[:6]))}, expected the {len(listed)} files that "
                f"{_DIGESTS} lists. {remedy}"
            )
    for name in sorted(listed)[ranks.rank :: ranks.world_size]:
        if _digest(folder / name) != listed[name]:
            raise Refused(
                f"{printable(name)} is damaged or cut short: its digest is not that of {_DIGESTS}. {remedy}"
            )
