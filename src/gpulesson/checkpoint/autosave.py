"""`AutoSave`: save a run as it goes, stop it on a signal, and resume it within an epoch."""

from __future__ import annotations

import copy
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import torch
from filelock import FileLock, Timeout
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from gpulesson._arguments import refuse, whole_number
from gpulesson._files import printable
from gpulesson.checkpoint import saving
from gpulesson.checkpoint.differences import difference, is_count
from gpulesson.checkpoint.rng import find_wrong_generator, find_wrong_rng, rng_state, set_rng_state
from gpulesson.checkpoint.saving import Checkpoint, CheckpointError, as_checkpoint_error, as_folder, collect
from gpulesson.checkpoint.state import RunParts, find_mistake, unwrapped
from gpulesson.checkpoint.stopping import StopSignals
from gpulesson.checkpoint.tensorfile import Refused

Batch = TypeVar("Batch")

DEFAULT_MINUTES = 10.0
_NAME = re.compile(r"autosave-epoch-(\d{4,})-batch-(\d{6,})\.safetensors")
_END: Any = object()
_PATIENCE = 10
"""Seconds to wait for another run to release the folder: workers may outlive a killed one by five."""


class Stopped(SystemExit):
    """A signal asked the run to stop, and it stopped at a step; the message says where it is saved.

    Attributes
    ----------
    code : int
        The exit status, 128 plus the number of the signal: 143 for SIGTERM, as a shell reports it.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class AutoSave:
    """Save a run every few steps or minutes and at the end of each epoch, and resume from what was saved.

    Within ``with AutoSave(…) as saves:``, `epochs` resumes and counts epochs, `batches` yields the loader's
    batches, and `step` comes last in the loop. SIGTERM and SIGUSR1, which clusters send before a time limit,
    lead to a last checkpoint at the next `step` and to `Stopped`, which ends the program. If an error ends
    the loop earlier, it is printed, and the signal has its usual effect. Ctrl-C works as usual.

    The signal must reach the program: with Slurm and ``#SBATCH --signal=TERM@120``, start it with ``srun``,
    since only what ``srun`` starts gets the signal. If the signal also ends the workers of a validation
    loader, the run resumes from the previous checkpoint.

    Parameters
    ----------
    folder : path
        For this run alone; created if missing. To start over, give another one, or empty it.
    model, optimizer, scheduler, generator
        As in `save_checkpoint`. The generators of a ``DataLoader``, its sampler or ``Batches`` are found
        automatically; `generator` is another one that the run draws from, or the loader's if the loop also
        draws from it.
    extra : dict, optional
        What else the run needs, by name: ``{"scaler": scaler, "losses": []}``. A value with ``state_dict``
        and ``load_state_dict`` is saved and loaded with these; any other is a plain value, which is put back
        into this dict on resuming (a list or dict stays the same object with new content).
    every_steps, every_minutes : number, optional
        Save every N steps of an epoch, or at the first step after N minutes; by default every 10 minutes.
    keep : int
        How many of the last checkpoints stay. Other files in the folder are not touched.

    Attributes
    ----------
    path : Path or None
        The last checkpoint that was saved or resumed from.

    Raises
    ------
    TypeError, ValueError
        An option makes no sense, such as ``keep=0``.
    CheckpointError
        On entering: `folder` is a file, cannot be written, or another run saves into it. In `epochs`: what
        `latest` and `resume` raise. In `step` and `epochs`: what `save_checkpoint` raises.

    Notes
    -----
    These resume exactly: dropout, shuffling, random transforms in the dataset (drawn from the global
    generator of torch, NumPy or Python), with and without workers. What the loop does in an epoch before
    ``saves.batches(…)`` is repeated on resuming, with the same random numbers. These do not, since AutoSave
    cannot see them: generators not named above; NumPy's ``default_rng``; a dataset that remembers what it
    returned; another number of workers, if transforms are random. What the loop itself counts or collects
    belongs in `extra`. ``persistent_workers=True`` is refused, since such workers keep random states that
    cannot be saved; do not use it in a validation loader, either.

    Examples
    --------
    >>> import tempfile
    >>> from gpulesson.data import Batches
    >>> def run(epochs, folder=tempfile.mkdtemp()):
    ...     _ = torch.manual_seed(0)
    ...     model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(), nn.Linear(4, 1))
    ...     optimizer = torch.optim.Adam(model.parameters())
    ...     loader = Batches(torch.ones(8, 2), torch.ones(8, 1), batch_size=2, shuffle=True)
    ...     with AutoSave(folder, model=model, optimizer=optimizer, every_steps=3) as saves:
    ...         for epoch in saves.epochs(epochs):
    ...             for inputs, targets in saves.batches(loader):
    ...                 loss = nn.functional.mse_loss(model(inputs), targets)
    ...                 optimizer.zero_grad()
    ...                 loss.backward()
    ...                 optimizer.step()
    ...                 saves.step()
    ...             print("finished epoch", epoch)
    >>> run(epochs=2)
    finished epoch 0
    finished epoch 1
    >>> run(epochs=3)
    finished epoch 2
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: LRScheduler | None = None,
        generator: torch.Generator | None = None,
        extra: dict[str, Any] | None = None,
        every_steps: int | None = None,
        every_minutes: float | None = None,
        keep: int = 3,
    ) -> None:
        if every_steps is not None:
            every_steps = whole_number("every_steps", every_steps, 1, "give a number of steps, 1 or more")
        proper = isinstance(every_minutes, int | float) and 0 < every_minutes < float("inf")
        if every_minutes is not None and (not proper or every_minutes is True):
            raise ValueError(f"every_minutes={every_minutes!r}: give a number of minutes, more than 0")
        _check_extra({} if extra is None else extra)
        if optimizer is None:
            refuse("optimizer", optimizer, "an optimizer", "give torch.optim.Adam(model.parameters())")
        self.parts = RunParts(model, optimizer, scheduler, generator)
        if mistake := find_mistake(self.parts):
            raise ValueError(mistake)
        self.folder = as_folder(folder)
        self.every_steps = every_steps
        self.every_minutes = DEFAULT_MINUTES if every_steps is every_minutes is None else every_minutes
        self.keep = whole_number("keep", keep, 1, "give how many checkpoints stay, 1 or more")
        self.model, self.optimizer, self.scheduler, self.generator = self.parts
        self.extra = {} if extra is None else extra
        self.path: Path | None = None
        self._fit: dict[str, Any] = {}  # what `fit` measures, by name
        self._lock: FileLock | None = None
        self._epoch: int | None = None  # that runs, counted from 0
        self._at_start: dict[str, Any] = {}  # the random states at its start
        self._place: _Place | None = None  # within it, once there are batches
        self._resumed: Checkpoint | None = None  # to go on from, until there are batches
        self._undo = ExitStack()  # undoes the loading, until the loader is known to fit

    def __enter__(self) -> AutoSave:
        if self._lock is not None:
            raise RuntimeError("this AutoSave is entered already: leave its with block before another begins")
        lock = FileLock(self.folder / ".autosave.lock", thread_local=False)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=_PATIENCE, poll_interval=0.1)
        except Timeout as error:
            raise CheckpointError(
                f"Another run saves into {printable(self.folder)}. Give each run its own folder, or "
                f"wait until the other one has ended. (If there is none, delete {printable(lock.lock_file)}.)"
            ) from error
        except (OSError, ValueError, NotImplementedError) as error:
            raise CheckpointError(
                f"Checkpoints cannot go into {printable(self.folder)}. {type(error).__name__}: "
                f"{printable(error)}. Give a folder that can be created and written."
            ) from error
        self._lock, self._fit, self._epoch, self.path = lock, {}, None, None
        self._signals = StopSignals(lambda: self._epoch is not None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signals.give_back()
        self._undo.close()
        if self._lock is not None:
            self._lock.release()
        self._lock = self._epoch = self._place = self._resumed = None
        self._signals.pass_on(error)

    def epochs(self, number: int) -> Iterator[int]:
        """Load the checkpoint of the folder that got furthest, if any, and yield the remaining epochs.

        Parameters
        ----------
        number : int
            The number of epochs of the whole run.

        Returns
        -------
        iterator of int
            The epochs that remain, counted from 0; part of the first may be done already. At the end of each,
            when the next one is requested, the run is saved.
        """
        if self._lock is None:
            raise RuntimeError("AutoSave is not entered: write `with AutoSave(…) as saves:` around the loop")
        number = whole_number("epochs", number, 0, "give the number of epochs of the whole run, 0 or more")
        return self._count(self._resume(number), number)

    def _count(self, first: int, number: int) -> Iterator[int]:
        self._saved_at = time.monotonic()
        at_start = None
        try:
            for epoch in range(first, number):
                self._epoch, self._place = epoch, None
                if self._resumed is not None:
                    self._set_random(self._resumed.position["begun"] or _random_now(self._resumed), [])
                self._at_start = at_start = self._random_states([])
                yield epoch
                self._undo.close()  # if the epoch used no batches
                self._save(finished=True)
                self._place = self._resumed = None
                if self._signals.number:
                    self._stop()
        finally:  # also after `break`
            if self._at_start is at_start:  # no other loop has started since
                self._epoch = None

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the loader's batches; after resuming within the epoch, those that remain.

        Parameters
        ----------
        loader : iterable
            A ``DataLoader``, ``Batches``, or anything else that gives the same batches in each pass if the
            global generators are in the same state.

        Raises
        ------
        ValueError
            The loader has ``persistent_workers``, or ``in_order=False``.
        CheckpointError
            Length, batch size or generators differ from those of the loader in the checkpoint.
        """
        if self._epoch is None:
            raise RuntimeError("saves.batches(…) belongs inside `for epoch in saves.epochs(…):`")
        if self._place is not None:
            raise RuntimeError(
                "saves.batches(…) can be used once in an epoch, for the training batches; iterate over "
                "others, for validation, without it"
            )
        self.check_loader(loader)
        workers = bool(getattr(loader, "num_workers", 0))
        place = _Place.of(loader, self.generator)
        resumed, self._resumed = self._resumed, None
        undo, self._undo = self._undo, ExitStack()
        with undo:  # undoes the loading if this is another loader
            if resumed is not None:
                self._check_same_loader(resumed, place)
                at_start = resumed.position["begun"] or _random_now(resumed)
                self._set_generators(place.generators, at_start["generators"])
            self._at_start["generators"] = _states(place.generators)
            batches = self._ask(lambda: iter(loader), workers)
            if workers:
                self._signals.hold_child_signal()
            if resumed is not None and resumed.step:
                for _ in range(resumed.step):
                    if self._signals.number:
                        self._stop()
                    if self._ask(lambda: next(batches, _END), workers) is _END:
                        raise CheckpointError(
                            f"{printable(self.path)} was saved after {resumed.step} batches of an epoch, and "
                            "this loader has fewer; nothing was loaded. Give the loader of the saved run."
                        )
                self._set_random(_random_now(resumed), place.generators)
                place.done = place.learned = resumed.step
                place.steps = resumed.position["steps"]
        self._place = place
        while (batch := self._ask(lambda: next(batches, _END), workers)) is not _END:
            place.done += 1
            yield batch

    def _check_same_loader(self, resumed: Checkpoint, place: _Place) -> None:
        known, given = dict(resumed.position["loader"]), dict(place.facts)
        known["generators"] = len(resumed.position["generators"])
        given["generators"] = len(place.generators)
        if not resumed.step:  # between epochs, another loader is allowed
            known, given = ({"generators": each["generators"]} for each in (known, given))
        if known != given:
            raise CheckpointError(
                f"{printable(self.path)} was saved with another loader: {known} in the file, {given} given; "
                "nothing was loaded. The place within an epoch can only be found with the same loader."
            )

    def _random_states(self, generators: list[torch.Generator]) -> dict[str, Any]:
        """Return all random states: global ones, the given generator's, and those of `generators`."""
        given = None if self.generator is None else self.generator.get_state()
        return {"rng": rng_state(), "generator": given, "generators": _states(generators)}

    def _set_random(self, states: dict[str, Any], generators: list[torch.Generator]) -> None:
        set_rng_state(states["rng"])
        if self.generator is not None:
            self._set_generators([self.generator], [states["generator"]])
        if generators:
            self._set_generators(generators, states["generators"])

    def _set_generators(self, generators: list[torch.Generator], states: list[torch.Tensor]) -> None:
        for generator, state in zip(generators, states, strict=True):
            try:
                generator.set_state(state)
            except RuntimeError as error:
                raise CheckpointError(
                    f"{printable(self.path)} has an invalid state of the loader's generator: "
                    f"{printable(error)}. Move this file away to resume from the previous one."
                ) from error

    def _ask(self, ask: Callable[[], Any], workers: bool) -> Any:
        """Call `ask`; if it fails because a signal ended the loader's workers, stop for that signal."""
        try:
            return ask()
        except Exception:
            if not self._signals.came_with_an_error(workers):
                raise
            self._stop()

    def check_loader(self, loader: Any) -> None:
        """Refuse a loader whose batches cannot be restored."""
        if getattr(loader, "persistent_workers", False):
            raise ValueError(
                "the loader has persistent_workers=True: such workers keep random states across epochs, "
                "which cannot be saved. Leave it out"
            )
        if getattr(loader, "num_workers", 0) and not getattr(loader, "in_order", True):
            raise ValueError(
                "the loader has in_order=False: then the order of batches is not reproducible. Leave it out"
            )

    def attach_fit(self, batches: Iterable[Batch], step: Any, history: Any, losses: Any) -> Iterable[Batch]:
        """Save what `fit` measures, too; return the batches that remain of each epoch."""
        scaler = getattr(step, "scaler", None)
        self._fit = {"history": history, "losses": losses} | ({} if scaler is None else {"scaler": scaler})
        return _StepCounter(self, batches, step)

    def step(self) -> None:
        """Count one step of the optimizer; save if it is time, and stop if a signal came.

        Call it last, after ``optimizer.step()`` and a scheduler that is stepped with it. Where several
        batches make a step, call it once for all of them.

        Raises
        ------
        Stopped
            A signal came, and the run is saved.
        CheckpointError
            The checkpoint could not be written.
        """
        place = self._place
        if place is None:
            raise RuntimeError("saves.step() belongs inside `for … in saves.batches(loader):`")
        place.steps += 1
        place.learned = place.done
        if self._signals.number:
            self._stop()
        minutes = (time.monotonic() - self._saved_at) / 60
        late = self.every_minutes is not None and minutes >= self.every_minutes
        due = late or (self.every_steps is not None and place.steps % self.every_steps == 0)
        if due and place.done != place.facts["length"]:  # the epoch's end is a save, too
            self._save()

    def _resume(self, number: int) -> int:
        """Load the checkpoint that got furthest; return how many epochs are finished."""
        self._undo.close()
        self._resumed = None
        self.path = path = saving.latest(self.folder, pattern="autosave-epoch-*.safetensors")
        if path is None:
            return 0
        found = saving.load_checkpoint(path)
        if not isinstance(found.extra, dict) or not _is_position(found):
            raise CheckpointError(
                f"{printable(path)} is named as a file of AutoSave, but its content is not: move it away."
            )
        failed = f"{printable(path)} does not fit; nothing was loaded"
        with as_checkpoint_error(failed):
            if wrong := self._find_misfit(found):
                raise Refused(wrong)
        self._undo.enter_context(self._loaded(found, failed))
        self._resumed = found
        what = "going on" if found.epoch < number else "nothing to do"
        within = f", batches of the next: {found.step}" if found.step else ""
        _tell(f"{printable(path)}: {what}; finished epochs: {found.epoch} of {number}{within}")
        return found.epoch

    def _find_misfit(self, found: Checkpoint) -> str | None:
        """Say what in a checkpoint does not fit this AutoSave; `resume` compares the rest."""
        fit, at_start, given = found.position["fit"], found.position["begun"], self._fit
        if found.extra.keys() != self.extra.keys():
            return (
                f"its extra state has the names {sorted(map(str, found.extra))}, and given are "
                f"{sorted(self.extra)}. Continue with the program that saved it, or use another folder."
            )
        if fit.keys() != given.keys():
            how = "fit with another amp" if fit and given else "fit" if fit else "a loop"
            return f"it was saved by {how}: continue the same way"
        scaler = given["scaler"].state_dict() if "scaler" in given else None
        if wrong := difference(fit.get("scaler"), scaler, "fit's scaler"):
            return wrong
        states = list(found.position["generators"])
        if at_start is not None:
            states += at_start["generators"]
            if self.generator is not None and found.generator is not None:  # else `resume` reports it
                states.append(at_start["generator"])
                way = "the generator's state at the start of the epoch"
                if wrong := difference(at_start["generator"], self.generator.get_state(), way):
                    return wrong
            if wrong := find_wrong_rng(at_start["rng"]):
                return wrong
        wrongs = (find_wrong_generator(each, "the state of a generator") for each in states)
        return next(filter(None, wrongs), None)

    @contextmanager
    def _loaded(self, found: Checkpoint, failed: str) -> Iterator[None]:
        """Load a checkpoint into the run; an error, also in the block, undoes it."""
        parts = {
            f"extra {name!r}": (part, found.extra[name])
            for name, part in self.extra.items()
            if hasattr(part, "load_state_dict")
        }
        parts |= {f"fit's {name}": (part, found.position["fit"][name]) for name, part in self._fit.items()}
        before = [(part, copy.deepcopy(part.state_dict())) for part, _ in parts.values()]
        plain = {name: each for name, each in self.extra.items() if not hasattr(each, "load_state_dict")}
        values = {name: copy.copy(each) for name, each in plain.items()}
        try:
            for name, (part, saved) in parts.items():
                with as_checkpoint_error(f"{failed}: {name} was not loaded"):
                    part.load_state_dict(saved)
            with saving.resumed(found, self.parts._replace(model=unwrapped(self.model))):
                self._fill({name: found.extra[name] for name in plain})
                yield
        except BaseException:
            for part, state in before:
                part.load_state_dict(state)
            self.extra.update(plain)
            self._fill(values)
            raise

    def _fill(self, values: dict[str, Any]) -> None:
        """Put plain values into `extra`; a list or dict stays the same object."""
        for name, new in values.items():
            value = self.extra[name]
            if isinstance(value, list) and isinstance(new, list):
                value[:] = new
            elif isinstance(value, dict) and isinstance(new, dict):
                value.clear()
                value.update(new)
            else:
                self.extra[name] = new

    def _save(self, *, finished: bool = False) -> None:
        """Save this place of the run, unless it is saved already."""
        assert self._epoch is not None
        place = self._place or _Place.of(None, self.generator)
        epoch, done = (self._epoch + 1, 0) if finished else (self._epoch, place.done)
        path = self.folder / f"autosave-epoch-{epoch:04}-batch-{done:06}.safetensors"
        if path == self.path:
            return
        position = {
            "steps": place.steps,
            "loader": place.facts,
            "generators": _states(place.generators),
            "begun": None if finished else self._at_start,  # None: the next epoch starts here
            "fit": {name: part.state_dict() for name, part in self._fit.items()},
        }
        extra = {
            name: part.state_dict() if hasattr(part, "state_dict") else part
            for name, part in self.extra.items()
        }
        content = collect(path, self.parts, epoch, done, position, extra)
        self._saved_at = time.monotonic()
        if path.is_symlink():  # not ours: do not write outside the folder
            path.unlink()
        self.path = saving.write_checkpoint(path, *content)
        self._delete_before(path)

    def _delete_before(self, path: Path) -> None:
        """Delete our checkpoints up to this one, except the last `keep`."""
        ours = [other for other in self.folder.iterdir() if _NAME.fullmatch(other.name)]
        past = sorted((other for other in ours if _order(other) <= _order(path)), key=_order)
        for old in past[: -self.keep]:  # files of later places are damaged and stay
            with suppress(OSError):  # the next save tries again
                old.unlink()

    def _stop(self) -> NoReturn:
        """Save if the run is between two steps, and raise `Stopped`."""
        place = self._place
        if place is not None and place.done and place.done == place.learned:
            self._save()
        saved = f"It is saved in {printable(self.path)}; the same command resumes it."
        where = saved if self.path else "There was nothing to save yet."
        number = self._signals.number
        message = f"{signal.Signals(number).name} asked this run to stop. {where}"
        _tell(message)
        raise Stopped(message, 128 + number)


@dataclass
class _Place:
    """How far an epoch is, and its loader."""

    facts: dict[str, int | None]  # the loader's length and batch size
    generators: list[torch.Generator]  # the loader's, without the given one
    done: int = 0  # batches yielded
    learned: int = 0  # of them, up to the last step
    steps: int = 0

    @staticmethod
    def of(loader: Any, given: torch.Generator | None) -> _Place:
        length, size = None, getattr(loader, "batch_size", None)
        with suppress(TypeError):  # an IterableDataset may have none
            length = len(loader)
        batches = getattr(loader, "batch_sampler", None)
        holders = loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)
        found = dict.fromkeys(getattr(holder, "generator", None) for holder in holders)
        generators = [each for each in found if isinstance(each, torch.Generator) and each is not given]
        return _Place({"length": length, "batch_size": size if isinstance(size, int) else None}, generators)


@dataclass(frozen=True)
class _StepCounter:
    """Batches of `fit`: a request for the next one completes a step, unless batches are accumulated."""

    saves: AutoSave
    loader: Iterable[Any]
    step: Any

    def __iter__(self) -> Iterator[Any]:
        for batch in self.saves.batches(self.loader):
            yield batch
            if self.step is None or not self.step.waiting:
                self.saves.step()


def _check_extra(extra: Any) -> None:
    if not isinstance(extra, dict):
        refuse("extra", extra, "a dict with names", "give {'scaler': scaler}")
    for name, value in extra.items():
        if not isinstance(name, str):
            refuse("a name in extra", name, "a string", "give {'scaler': scaler}")
        if isinstance(value, type):
            refuse(f"extra[{name!r}]", value, "an object of the run", "give that")


def _states(generators: list[torch.Generator]) -> list[torch.Tensor]:
    return [each.get_state() for each in generators]


def _random_now(found: Checkpoint) -> dict[str, Any]:
    """Return the random states at the time of saving."""
    return {"rng": found.rng, "generator": found.generator, "generators": found.position["generators"]}


def _is_position(found: Checkpoint) -> bool:
    """Return whether a checkpoint has the position that `_save` writes."""
    try:
        position = found.position
        facts, at_start = position["loader"], position["begun"]
        states = [*position["generators"], *(at_start["generators"] if at_start else [])]
        return (
            all(is_count(each) or each is None for each in (facts["length"], facts["batch_size"]))
            and facts.keys() == {"length", "batch_size"}
            and is_count(position["steps"])
            and isinstance(position["fit"], dict)
            and all(isinstance(each, torch.Tensor) and each.dtype == torch.uint8 for each in states)
            and (isinstance(at_start["rng"], dict) if found.step else at_start is None)
            and len(states) == len(position["generators"]) * (2 if found.step else 1)
            and (at_start is None or isinstance(at_start["generator"], torch.Tensor | None))
        )
    except Exception:  # a part is missing or of another kind
        return False


def _tell(message: str) -> None:
    print(message, file=sys.stderr)


def _order(path: Path) -> tuple[int, ...]:
    """Return how far the run was when it saved this file."""
    found = _NAME.fullmatch(path.name)
    return tuple(map(int, found.groups())) if found else ()
