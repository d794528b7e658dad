"""Save and load what is spread over the ranks, sealed by digests."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from gpulesson._files import open_file, printable, whole_file
from gpulesson.checkpoint import CheckpointError
from gpulesson.long_runs.ranks import Ranks

Result = TypeVar("Result")

_DIGESTS = "digests.sha256"
_HIDDEN = (".metadata", ".gpulesson-")
"""How the names of hidden files begin that a save makes."""


def save_shards(
    folder: str | os.PathLike[str],
    ranks: Ranks,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    extra: Any = None,
) -> Path:
    """Save a model that is spread over the ranks (FSDP2, ``fully_shard``): each rank writes what it holds.

    The files are those of ``torch.distributed.checkpoint``, beside ``run.pt`` with `extra`. A list of their
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
        On every rank: the folder holds a finished save or other files, or one rank could not write.

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
    folder = Path(folder)
    ranks.on_main(lambda: _make_room(folder))
    with _as_checkpoint_error(f"{printable(folder)} was not written"):
        _shards().save(_state(model, optimizer), checkpoint_id=folder)
    own = ranks._gather(_reported(lambda: _digests_of(folder.glob(f"__{ranks.rank}_*.distcp"))))
    _raise_first(own)

    def seal() -> None:
        with _as_checkpoint_error(f"{printable(folder)} was not written"):
            with whole_file(folder / "run.pt") as file:
                torch.save({"extra": extra}, file)
                file.seek(0)
                torch.load(file, weights_only=True)
            digests = _digests_of([folder / ".metadata", folder / "run.pt"])
            for each in own:
                digests |= each
            with whole_file(folder / _DIGESTS) as file:
                file.writelines(f"{digest}  {name}\n".encode() for name, digest in sorted(digests.items()))

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
        optimizer have other names or shapes. Then nothing has been changed.

    Notes
    -----
    The digests find accidents. They are no signature: torch reads its own ``.metadata`` by ``pickle``, which
    can run code, so load only what you or your run wrote.
    """
    folder = Path(folder)
    _raise_first(ranks._gather(_reported(lambda: _verify(folder, ranks))))
    if optimizer is not None:
        optimizer.zero_grad()  # beside gradients, torch would not make the state that is to be loaded
    state = _state(model, optimizer)
    dcp = _shards()
    with _as_checkpoint_error(f"{printable(folder)} was not loaded"):
        saved = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        unused = [name for name in saved if name not in _names(state)]
        if unused:
            raise CheckpointError(
                f"{printable(folder)} does not fit; nothing was loaded: it holds "
                f"{printable(', '.join(unused[:6]))}, which the model and optimizer given have not. Give "
                "those that were saved"
            )
        dcp.load(state, checkpoint_id=folder)
        _set_state(model, optimizer, state)
        with open_file(folder / "run.pt") as file:
            return torch.load(file, weights_only=True)["extra"]


def _shards() -> Any:
    import torch.distributed.checkpoint as dcp  # takes a second

    return dcp


def _state(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
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


def _names(state: dict[str, Any]) -> set[str]:
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    return set(flatten_state_dict(state)[0])


def _make_room(folder: Path) -> None:
    """Make the folder, without what an unfinished save has left in it."""
    with _as_checkpoint_error(f"{printable(folder)} was not written"):
        folder.mkdir(parents=True, exist_ok=True)
        there = list(folder.iterdir())
        ours = [each for each in there if each.suffix == ".distcp" or each.name.startswith(_HIDDEN)]
        if any(each.name == _DIGESTS for each in there) or set(there) - {*ours, folder / "run.pt"}:
            names = ", ".join(sorted(printable(each.name) for each in there)[:6])
            raise CheckpointError(
                f"{printable(folder)} was not written: it holds {names} already, expected a new folder: give "
                "each save its own, as shards/step-001000"
            )
        for each in there:
            each.unlink()


def _digests_of(files: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files, by name."""
    digests = {}
    for path in files:
        with open_file(path) as file:
            digests[path.name] = hashlib.sha256(file.read()).hexdigest()
    return digests


def _verify(folder: Path, ranks: Ranks) -> None:
    """Compare the names of all files, and the digests of this rank's share of them."""
    where = printable(folder)
    try:
        lines = (folder / _DIGESTS).read_text("utf-8").splitlines()
        listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    except FileNotFoundError:
        what = "this save was not finished" if folder.is_dir() else "there is no such folder"
        raise CheckpointError(f"{where} has no {_DIGESTS}: {what}. Take an earlier one that has it") from None
    there = {path.name for path in folder.iterdir()} - {_DIGESTS}
    for names, what in ((listed.keys() - there, "lacks"), (there - listed.keys(), "holds also")):
        if names:
            raise CheckpointError(
                f"{where} {what} {printable(', '.join(sorted(names)[:6]))}, expected the {len(listed)} files "
                f"that {_DIGESTS} lists. Copy the folder anew from its source, or take an earlier one"
            )
    share = sorted(listed)[ranks.rank :: ranks.world_size]
    for name, digest in _digests_of(folder / name for name in share).items():
        if digest != listed[name]:
            raise CheckpointError(
                f"{where}: {printable(name)} is damaged or cut short, its digest is not the one in "
                f"{_DIGESTS}. Copy the folder anew from its source, or take an earlier one"
            )


def _reported(function: Callable[[], Result]) -> Result | CheckpointError:
    """Return the error instead of raising it, to be told to the other ranks."""
    try:
        return function()
    except (CheckpointError, OSError, ValueError) as error:
        return error if isinstance(error, CheckpointError) else CheckpointError(printable(error))


def _raise_first(results: list[Any]) -> None:
    for each in results:
        if isinstance(each, CheckpointError):
            raise each


@contextmanager
def _as_checkpoint_error(failed: str) -> Iterator[None]:
    """Turn what torch raises, which may be a BaseException of its own, into a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{failed}. {type(error).__name__}: {printable(error)}") from error
    except BaseException as error:
        if isinstance(failures := getattr(error, "failures", None), dict):  # CheckpointException, by rank
            rank, (cause, _) = next(iter(failures.items()))
            raise CheckpointError(
                f"{failed}. Rank {rank}: {type(cause).__name__}: {printable(cause)}"
            ) from error
        raise
