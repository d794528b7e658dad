"""`AutoSave`: a run that saves itself, stops when a signal says so, and goes on within an epoch."""

from __future__ import annotations

import copy
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, NoReturn, TypeVar

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
from gpulesson.checkpoint.tensorfile import Refused

Batch = TypeVar("Batch")

DEFAULT_MINUTES = 10.0
_Content = tuple[dict[str, torch.Tensor], dict[str, str]]  # tensors and metadata of a checkpoint
_NAME = re.compile(r"autosave-epoch-(\d{4,})-batch-(\d{6,})\.safetensors")
_END: Any = object()
_PATIENCE = 10
"""Seconds to wait for another run that leaves the folder: workers may outlive a killed one for five."""

_GRACE = 1
"""Seconds to wait for a signal that has ended the loader's workers already."""

_writing: set[Future[None]] = set()
if hasattr(os, "register_at_fork"):  # the locks of a thread that writes would stay closed in the child
    os.register_at_fork(before=lambda: wait(list(_writing)))


class Stopped(SystemExit):
    """A signal asked the run to stop, and it did, at a step; the message says where it is saved.

    Attributes
    ----------
    code : int
        The exit status, 128 and the number of the signal: 143 for SIGTERM, as after a program that it ended.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code)  # both, so that it can be pickled
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class AutoSave:
    """Save a run every few steps or minutes and at each epoch's end, and go on from what was saved.

    Within ``with AutoSave(…) as saves:``, `epochs` resumes and counts epochs, `batches` hands out the
    loader's batches, and `step` comes last in the loop. SIGTERM and SIGUSR1, which clusters send before a
    time limit ends, lead to a last checkpoint at the next `step`, and to `Stopped`, which ends the program.
    If an error ends the loop before, it is printed, and the signal does what it did before there was this
    `AutoSave`. Ctrl-C is as ever.

    The signal must reach the program: with Slurm, a batch script that says ``#SBATCH --signal=TERM@120``
    starts it by ``srun``, for only what ``srun`` started gets the signal. If it ends the workers of a loader
    for validation, too, the run goes on from the checkpoint before.

    Parameters
    ----------
    folder : path
        For this run alone; made where it is missing. To start afresh, give another, or empty it.
    model, optimizer, scheduler, generator
        As in `save_checkpoint`. The generators of a ``DataLoader``, its sampler or ``Batches`` are found;
        `generator` is another that the run draws from, or the loader's, if the loop draws from it, too.
    extra : dict, optional
        What else the run needs, by name: ``{"scaler": scaler, "losses": []}``. A value with ``state_dict``
        and ``load_state_dict`` is saved and loaded by these; any other is a plain value, and put into this
        dict again on resuming (a list or dict stays the same object, and is filled anew).
    every_steps, every_minutes : number, optional
        Save after so many steps of an epoch, and at the first step after so many minutes: 10, where neither
        is given.
    keep : int
        How many checkpoints stay: the last. Other files in the folder are left alone.
    background : bool
        Copy all tensors to the host's memory, and write them from there while the training goes on. What
        goes wrong meanwhile is raised at the next step, or on leaving. Whatever forks this process, as a
        ``DataLoader`` does that starts workers, waits for the writing.

    Attributes
    ----------
    path : Path or None
        The checkpoint saved last, or resumed from.

    Raises
    ------
    TypeError, ValueError
        An option makes no sense, such as ``keep=0``.
    CheckpointError
        On entering: `folder` is a file, cannot be written, or another run saves into it. In `epochs`: what
        `latest` and `resume` raise. In `step`, `epochs`, and on leaving: what `save_checkpoint` raises.

    Notes
    -----
    Exact are: dropout, shuffling, random transforms in the dataset (drawn from torch, NumPy's or Python's
    global generator), with and without workers. What the loop does in an epoch before ``saves.batches(…)`` is
    done once more on resuming, with the same random numbers. Not exact, as nothing here can know of them:
    generators that are not named above; NumPy's ``default_rng``; a dataset that remembers what it gave;
    another number of workers, if transforms are random. What the loop itself counts or collects belongs into
    `extra`. ``persistent_workers=True`` is refused, in a loader for validation give it neither: such workers
    keep random states, out of reach.

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
        background: bool = False,
    ) -> None:
        if every_steps is not None:
            every_steps = whole_number("every_steps", every_steps, 1, "give a number of steps, 1 or more")
        keep = whole_number("keep", keep, 1, "give how many checkpoints stay, 1 or more")
        if not isinstance(background, bool):
            refuse("background", background, "True or False", "choose one of the two")
        proper = isinstance(every_minutes, int | float) and 0 < every_minutes < float("inf")
        proper = proper and every_minutes is not True
        if every_minutes is not None and not proper:
            raise ValueError(f"every_minutes={every_minutes!r}: give a number of minutes, more than 0")
        if extra is not None and not isinstance(extra, dict):
            refuse("extra", extra, "a dict with names", "give {'scaler': scaler}")
        for name, value in (extra or {}).items():
            if not isinstance(name, str):
                refuse("a name in extra", name, "a text", "give {'scaler': scaler}")
            if isinstance(value, type):
                refuse(f"extra[{name!r}]", value, "an object of the run", "give that")
        if optimizer is None:
            refuse("optimizer", optimizer, "an optimizer", "give torch.optim.Adam(model.parameters())")
        self.parts = RunParts(model, optimizer, scheduler, generator)
        if mistake := find_mistake(self.parts):
            raise ValueError(mistake)
        self.folder = as_folder(folder)
        self.every_steps, self.keep, self.background = every_steps, keep, background
        self.every_minutes = DEFAULT_MINUTES if every_steps is every_minutes is None else every_minutes
        self.model, self.optimizer, self.scheduler, self.generator = self.parts
        self.extra = {} if extra is None else extra
        self.path: Path | None = None
        self._fit: dict[str, Any] = {}  # what `fit` measures, by name
        self._process = os.getpid()
        self._lock: FileLock | None = None
        self._handlers: dict[int, Any] = {}
        self._signal = 0
        self._written: Future[None] | None = None  # in the background
        self._epoch: int | None = None  # that runs, counted from 0
        self._begun: dict[str, Any] = {}  # the random states with which it did
        self._place: _Place | None = None  # within it, once there are batches
        self._saved_place: _SavedPlace | None = None  # within it, to go on from
        self._undo = ExitStack()  # until the loader is known to fit
        self._lock_file: tuple[int, int] | None = None  # its device and number there

    def __enter__(self) -> AutoSave:
        if self._lock is not None:
            raise RuntimeError("this AutoSave is entered already: leave its with block before another begins")
        lock = FileLock(self.folder / ".autosave.lock", thread_local=False)
        self._acquire(lock)
        self._lock, self._fit, self._signal, self._epoch, self.path = lock, {}, 0, None, None
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():  # others may not
            for name in ("SIGTERM", "SIGUSR1"):
                if number := getattr(signal, name, None):
                    self._handlers[number] = signal.getsignal(number)
                    signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._settle()
        except Exception as failure:
            if error is None:
                raise
            warnings.warn(f"also, in the background: {failure}", stacklevel=2)  # `error` must not be hidden
        finally:
            while self._handlers:  # a signal that comes here may add one
                number, handler = list(self._handlers.items())[-1]
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
                del self._handlers[number]
            self._undo.close()
            if self._lock is not None:
                self._lock.release()
            self._lock = self._epoch = self._place = self._saved_place = None
            if self._signal and not isinstance(error, SystemExit):  # it came to no step
                if raised := sys.exc_info()[1]:  # which may not be seen any more
                    traceback.print_exception(raised)
                signal.raise_signal(self._signal)

    def _acquire(self, lock: FileLock) -> None:
        """Make the folder, and lock other runs out of it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=_PATIENCE, poll_interval=0.1)
            self._lock_file = _identity(lock)
        except Timeout as error:
            raise CheckpointError(
                f"Another run saves into {printable(self.folder)}. Give each run a folder of its own, or "
                f"wait until the other one has ended. (If there is none, delete {printable(lock.lock_file)}.)"
            ) from error
        except (OSError, ValueError, NotImplementedError) as error:
            raise CheckpointError(
                f"Checkpoints cannot go into {printable(self.folder)}. {type(error).__name__}: "
                f"{printable(error)}. Give a folder that can be made and written."
            ) from error

    def epochs(self, number: int) -> Iterator[int]:
        """Load the checkpoint of the folder that got furthest, if there is one, and count on from it.

        Parameters
        ----------
        number : int
            How many epochs the run has in all.

        Returns
        -------
        iterator of int
            The epochs that remain, counted from 0; of the first, a part may be done. At the end of each,
            when the next is asked for, the run is saved.
        """
        if self._lock is None:
            raise RuntimeError("AutoSave is not entered: write `with AutoSave(…) as saves:` around the loop")
        number = whole_number("epochs", number, 0, "give the number of epochs of the whole run, 0 or more")
        return self._count(self._resume(number), number)

    def _count(self, first: int, number: int) -> Iterator[int]:
        self._saved_at = time.monotonic()
        begun = None
        try:
            for epoch in range(first, number):
                self._epoch, self._place = epoch, None
                given = [] if self.generator is None else [self.generator]
                if self._saved_place is not None:
                    set_rng_state(self._saved_place.begun["rng"])
                    self._set_generators(given, self._saved_place.begun["generators"][: len(given)])
                self._begun = begun = _random_states(given)
                yield epoch
                self._undo.close()  # if it asked for no batches
                self._save(finished=True)
                self._place = self._saved_place = None
                if self._signal:
                    self._stop()
        finally:  # also after `break`
            if self._begun is begun:  # no other loop has begun since
                self._epoch = None

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the loader's batches; after a resume within the epoch, those that are not done.

        Parameters
        ----------
        loader : iterable
            A ``DataLoader``, ``Batches``, or what else gives the same batches again in each pass if the
            global generators are the same.

        Raises
        ------
        ValueError
            The loader has ``persistent_workers``, or ``in_order=False``.
        CheckpointError
            Length, batch size or generators are not those of the loader that the checkpoint knew.
        """
        if self._epoch is None:
            raise RuntimeError("saves.batches(…) belongs inside `for epoch in saves.epochs(…):`")
        if self._place is not None:
            raise RuntimeError(
                "saves.batches(…) is there once in an epoch, for the batches that the run learns from; go "
                "through others, for validation, without it"
            )
        self.check_loader(loader)
        workers = bool(getattr(loader, "num_workers", 0))
        if workers:
            self._settle()  # before they fork, when Ctrl-C would be lost
        place = _Place.of(loader, self.generator)
        saved, self._saved_place = self._saved_place, None
        given = self._begun["generators"]  # the state of the given one, with which the epoch began
        undo, self._undo = self._undo, ExitStack()
        with undo:  # what was loaded is put back if this is another loader
            if saved is not None:
                self._check_loader_of(saved, place)
                states = saved.begun["generators"]
                self._set_generators(place.generators[len(given) :], states[len(given) :])
            place.begun = _random_states(place.generators) | {"rng": self._begun["rng"]}
            place.begun["generators"][: len(given)] = given
            batches = self._ask(lambda: iter(loader), workers)
            if workers:
                self._hold_child_signal()
            if saved is not None and saved.done:
                for _ in range(saved.done):
                    if self._signal:
                        self._stop()
                    if self._ask(lambda: next(batches, _END), workers) is _END:
                        raise CheckpointError(
                            f"{printable(self.path)} was saved after {saved.done} batches of an epoch, and "
                            "this loader has fewer; nothing was loaded. Give the loader that the run had."
                        )
                set_rng_state(saved.now["rng"])
                self._set_generators(place.generators, saved.now["generators"])
                place.done, place.learned, place.steps = saved.done, saved.done, saved.steps
        self._place = place
        while (batch := self._ask(lambda: next(batches, _END), workers)) is not _END:
            place.done += 1
            yield batch

    def _check_loader_of(self, saved: _SavedPlace, place: _Place) -> None:
        # between epochs another loader is another run, but no mistake
        what = list(place.loader_facts) if saved.done else ["number of generators"]
        known, given = ({name: each.loader_facts[name] for name in what} for each in (saved, place))
        if known != given:
            raise CheckpointError(
                f"{printable(self.path)} was saved with another loader: {known} in the file, {given} given; "
                "nothing was loaded. The place within an epoch is only found again with the loader that the "
                "run had."
            )

    def _set_generators(self, generators: list[torch.Generator], states: list[torch.Tensor]) -> None:
        for generator, state in zip(generators, states, strict=True):
            try:
                generator.set_state(state)
            except RuntimeError as error:
                raise CheckpointError(
                    f"{printable(self.path)} holds no proper state of the loader's generator: "
                    f"{printable(error)}. Move this file away, to go on from the one before."
                ) from error

    def _ask(self, ask: Callable[[], Any], workers: bool) -> Any:
        """Ask the loader, whose workers the signal may have ended, too, even before it came here."""
        try:
            return ask()
        except Exception:
            until = time.monotonic() + (_GRACE if workers and self._handlers else 0)
            while not self._signal and time.monotonic() < until:
                time.sleep(0.01)
            if not self._signal:
                raise
            self._stop()

    def check_loader(self, loader: Any) -> None:
        """Refuse a loader whose batches no checkpoint can bring back."""
        if getattr(loader, "persistent_workers", False):
            raise ValueError(
                "the loader has persistent_workers=True: such workers keep random states over epochs, which "
                "no checkpoint can hold. Leave it out"
            )
        if getattr(loader, "num_workers", 0) and not getattr(loader, "in_order", True):
            raise ValueError(
                "the loader has in_order=False: then chance decides which batch comes next. Leave it out"
            )

    def attach_fit(self, batches: Iterable[Batch], step: Any, history: Any, losses: Any) -> Iterable[Batch]:
        """Save what `fit` measures with the run; return the batches that remain of each epoch."""
        scaler = getattr(step, "scaler", None)
        self._fit = {"history": history, "losses": losses} | ({} if scaler is None else {"scaler": scaler})
        return _StepCounter(self, batches, step)

    def step(self) -> None:
        """Count one step of the optimizer; save if it is time, and stop if a signal came.

        It comes last, after ``optimizer.step()`` and a scheduler that is stepped with it. Where several
        batches make a step, call it once for them all.

        Raises
        ------
        Stopped
            A signal came, and the run is saved.
        CheckpointError
            The checkpoint, or the one before in the background, could not be written.
        """
        place = self._place
        if place is None:
            raise RuntimeError("saves.step() belongs inside `for … in saves.batches(loader):`")
        place.steps += 1
        place.learned = place.done
        if self._written is not None and self._written.done():
            self._settle()
        if self._signal:
            self._stop()
        minutes = (time.monotonic() - self._saved_at) / 60
        late = self.every_minutes is not None and minutes >= self.every_minutes
        due = late or (self.every_steps is not None and place.steps % self.every_steps == 0)
        if due and place.done != place.loader_facts["length"]:  # the epoch's end is a save, too
            self._save()

    def _resume(self, number: int) -> int:
        """Load the checkpoint that got furthest; return how many epochs are finished."""
        self._settle()
        self._undo.close()
        self._saved_place = None
        self.path = path = saving.latest(self.folder, pattern="autosave-epoch-*.safetensors")
        if path is None:
            return 0
        failed = f"{printable(path)} does not fit; nothing was loaded"
        found, place = self._read(path, failed)
        self._undo.enter_context(self._loaded(found, failed))
        self._saved_place = place
        what = "going on" if found.epoch < number else "nothing to do"
        within = f" and {_plural(found.step, 'batch', 'es')}" if found.step else ""
        reached = f"{found.epoch} of {_plural(number, 'epoch')}{within}"
        self._tell(f"{printable(path)}: {what} after {reached}")
        return found.epoch

    def _read(self, path: Path, failed: str) -> tuple[Checkpoint, _SavedPlace]:
        """Read a checkpoint of `AutoSave` that fits."""
        found = saving.load_checkpoint(path)
        if not isinstance(found.extra, dict) or not _is_position(found.position, found.generator is not None):
            raise CheckpointError(
                f"{printable(path)} has the name of a file of AutoSave, but was written otherwise: "
                "move it away."
            )
        place = _SavedPlace(*(found.position[name] for name in _SavedPlace._fields))
        with as_checkpoint_error(failed):
            if wrong := self._find_misfit(found, place):
                raise Refused(wrong)
        return replace(found, rng=place.now["rng"]), place

    def _find_misfit(self, found: Checkpoint, place: _SavedPlace) -> str | None:
        """Say what of AutoSave's own does not fit in a checkpoint; `resume` compares the rest."""
        fit, given = found.position["fit"], self._fit
        if found.extra.keys() != self.extra.keys():
            return (
                f"its extra state has the names {sorted(map(str, found.extra))}, and given are "
                f"{sorted(self.extra)}. Go on with the program that saved it, or take another folder."
            )
        if fit.keys() != given.keys():
            how = "fit with another amp" if fit and given else "fit" if fit else "a loop"
            return f"it was saved by {how}: go on as you began"
        scaler = given["scaler"].state_dict() if "scaler" in given else None
        both = self.generator is not None and found.generator is not None  # or else `resume` says so
        states = [self.generator.get_state()] if both else []
        return (
            find_wrong_rng(place.begun["rng"])
            or difference(fit.get("scaler"), scaler, "fit's scaler")
            or difference(place.begun["generators"][: len(states)], states, "the states of its position")
            or next(
                filter(None, map(_wrong_generator, place.now["generators"] + place.begun["generators"])), None
            )
        )

    @contextmanager
    def _loaded(self, found: Checkpoint, failed: str) -> Iterator[None]:
        """Load a checkpoint into the run; an error, also one in the block, undoes it."""
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
        """Put plain values into `extra`; a list or a dict stays the same object."""
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
        """Save this place of the run, unless that was done."""
        assert self._epoch is not None
        place = self._place or _Place.of(None, self.generator)
        epoch, done = (self._epoch + 1, 0) if finished else (self._epoch, place.done)
        path = self.folder / f"autosave-epoch-{epoch:04}-batch-{done:06}.safetensors"
        self._settle()
        if path == self.path:
            return
        now = _random_states(place.generators)
        position = {
            "done": done,
            "steps": 0 if finished else place.steps,
            "loader_facts": place.loader_facts,
            "now": now,
            "begun": now if finished else place.begun,  # the next epoch begins here
            "fit": {name: part.state_dict() for name, part in self._fit.items()},
        }

        def content() -> _Content:
            extra = {
                name: part.state_dict() if hasattr(part, "state_dict") else part
                for name, part in self.extra.items()
            }
            return collect(path, self.parts, epoch, done, position, extra, on_host=self.background)

        self._saved_at = time.monotonic()
        if self.background:
            thread = ThreadPoolExecutor(1)
            self._written = thread.submit(self._write, path, content())
            _writing.add(self._written)
            thread.shutdown(wait=False)  # it ends once that is written
        else:
            self._write(path, content())
            self.path = path

    def _write(self, path: Path, content: _Content) -> None:
        """Write a checkpoint, and delete our files before the last `keep`."""
        if self._lock is not None and _identity(self._lock) != self._lock_file:
            self._lock.release()  # the folder was deleted with it, and another run may have it by now
            self._acquire(self._lock)
        if path.is_symlink():  # not ours: nothing outside the folder is written
            path.unlink()
        self.path = saving.write_checkpoint(path, *content)
        ours = [other for other in self.folder.iterdir() if _NAME.fullmatch(other.name)]
        past = sorted((other for other in ours if _order(other) <= _order(path)), key=_order)
        for old in past[: -self.keep]:  # what is there of later places was found damaged, and stays
            with suppress(OSError):  # the next save tries again
                old.unlink()

    def _settle(self) -> None:
        """Wait for what is written in the background, and raise what went wrong with it."""
        if self._written is not None:
            wait([self._written])  # after Ctrl-C here, leaving waits again
            written, self._written = self._written, None
            _writing.discard(written)
            written.result()

    def _stop(self) -> NoReturn:
        """Save, if the run is between two steps, and leave."""
        place = self._place
        if place is not None and place.done and place.done == place.learned:
            self._save()
        self._settle()
        where = f"It is saved in {printable(self.path)}" if self.path else "There was nothing to save yet"
        message = (
            f"{signal.Signals(self._signal).name} asked this run to stop. {where}; the same command goes on "
            "from there."
        )
        self._tell(message)
        raise Stopped(message, 128 + self._signal)

    def _tell(self, message: str) -> None:
        print(message, file=sys.stderr)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._epoch is None or os.getpid() != self._process:  # no loop that could stop, or not this one
            before = self._handlers[number]
            if callable(before):
                before(number, frame)
            elif before != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            return
        self._signal = number
        self._hold_child_signal()

    def _hold_child_signal(self) -> None:
        """Let a worker's end interrupt no step, as torch would: the loader tells of it at the next batch."""
        child = getattr(signal, "SIGCHLD", None)
        if child and self._handlers and child not in self._handlers:
            self._handlers[child] = signal.signal(child, signal.SIG_DFL)


@dataclass
class _Place:
    """How far an epoch is, and what its batches come from."""

    loader_facts: dict[str, int | None]  # its length and batch size, and how many generators there are
    generators: list[torch.Generator]  # first the given one, then the loader's own
    begun: dict[str, Any] | None = None  # the random states with which the epoch began
    done: int = 0  # batches handed out
    learned: int = 0  # those up to the last step
    steps: int = 0

    @staticmethod
    def of(loader: Any, given: torch.Generator | None) -> _Place:
        length, size = None, getattr(loader, "batch_size", None)
        with suppress(TypeError):  # an IterableDataset may have none
            length = len(loader)
        batches = getattr(loader, "batch_sampler", None)
        holders = loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)
        found = [given, *(getattr(holder, "generator", None) for holder in holders)]
        generators = list(dict.fromkeys(each for each in found if isinstance(each, torch.Generator)))
        size = size if isinstance(size, int) else None
        facts = {"length": length, "batch_size": size, "number of generators": len(generators)}
        return _Place(facts, generators)


class _SavedPlace(NamedTuple):
    """A place that a checkpoint holds, and the random states: of its moment, of the epoch's begin."""

    done: int
    steps: int
    loader_facts: dict[str, int | None]
    now: dict[str, Any]
    begun: dict[str, Any]


@dataclass(frozen=True)
class _StepCounter:
    """Batches of `fit`: when the next one is asked for, a step is done, unless batches are accumulated."""

    saves: AutoSave
    loader: Iterable[Any]
    step: Any

    def __iter__(self) -> Iterator[Any]:
        for batch in self.saves.batches(self.loader):
            yield batch
            if self.step is None or not self.step.waiting:
                self.saves.step()


def _identity(lock: FileLock) -> tuple[int, int] | None:
    """Return what tells the lock's file from another one in its place; None if there is none."""
    try:
        found = Path(lock.lock_file).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _random_states(generators: Iterable[torch.Generator]) -> dict[str, Any]:
    return {"rng": rng_state(), "generators": [each.get_state() for each in generators]}


def _wrong_generator(state: torch.Tensor) -> str | None:
    return find_wrong_generator(state, "the state of a generator")


def _is_position(value: Any, given: bool) -> bool:
    """Return whether this is what `_save` keeps of a place, with a state of the generator that was given."""
    try:
        facts, number = value["loader_facts"], value["loader_facts"]["number of generators"]
        counts = [value["done"], value["steps"], number, facts["length"] or 0, facts["batch_size"] or 0]
        states = [value["now"], value["begun"]]
        tensors = [each for state in states for each in state["generators"]]
        return (
            all(map(is_count, counts))
            and number >= given
            and isinstance(value["fit"], dict)
            and all(isinstance(state["rng"], dict) and type(state["generators"]) is list for state in states)
            and all(len(state["generators"]) == number for state in states)
            and all(isinstance(each, torch.Tensor) and each.dtype == torch.uint8 for each in tensors)
        )
    except Exception:  # a part of it is missing, or of another kind
        return False


def _plural(number: int, what: str, ending: str = "s") -> str:
    return f"{number} {what}{ending if number != 1 else ''}"


def _order(path: Path) -> tuple[int, ...]:
    """Return how far the run was when it saved this file."""
    found = _NAME.fullmatch(path.name)
    return tuple(map(int, found.groups())) if found else ()
