"""Save a run while it trains, stop it when a signal says so, and go on with it, also within an epoch.

A cluster ends a program at its time limit: first by a signal, a minute later by force. `AutoSave` writes
checkpoints of `gpulesson.checkpoint` often enough, and the same command, started again, goes on from the one
that got furthest, with the same bits as a run that nothing stopped (where the same run twice gives the same
bits).
"""

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
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, TypeVar

import torch
from filelock import FileLock, Timeout
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from gpulesson import checkpoint
from gpulesson._files import printable
from gpulesson._kinds import difference, is_count
from gpulesson._rng import find_wrong_rng, rng_state, set_rng_state
from gpulesson._state import find_mistake
from gpulesson.checkpoint import CheckpointError

_Content = tuple[dict[str, torch.Tensor], dict[str, str]]  # tensors and metadata of a checkpoint

Batch = TypeVar("Batch")

DEFAULT_MINUTES = 10.0
_NAME = re.compile(r"autosave-epoch-(\d{4,})-batch-(\d{6,})\.safetensors")
_END: Any = object()
_PATIENCE = 10
"""Seconds to wait for another run that leaves the folder: workers may outlive a killed one for five."""

_GRACE = 1
"""Seconds to wait for a signal that has ended the loader's workers already."""

_writing: set[threading.Thread] = set()


def _wait_for_writing() -> None:
    """Let no process fork while a thread of it writes: its locks would stay closed in the child."""
    for thread in list(_writing):
        thread.join()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_writing)


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
    Ctrl-C is as ever. If an error ends the loop before that `step`, it is printed, and the signal does what
    it did before there was this `AutoSave`.

    The signal must reach the program: with Slurm, a batch script that says ``#SBATCH --signal=TERM@120``
    starts it by ``srun``, for only what ``srun`` started gets the signal. If it ends the workers of a loader
    for validation, too, the run goes on from the checkpoint before.

    Parameters
    ----------
    folder : path
        For this run alone; made where it is missing. To start afresh, give another, or empty it.
    model, optimizer, scheduler, generator
        As in `save_checkpoint`. The generators of a ``DataLoader``, its sampler or ``Batches`` are found
        without being told; `generator` is another that the run draws from, or that of the loader, if the loop
        itself draws from it, too.
    extra : dict, optional
        What else the run needs, by name. A value with ``state_dict`` and ``load_state_dict``, such as a
        ``GradScaler``, is saved and loaded by these; any other is a plain value, saved as it is, and put
        into this dict again on resuming (a list or dict is filled anew, and stays the same object):
        ``{"scaler": scaler, "losses": []}``.
    every_steps : int, optional
        Save after so many steps of an epoch.
    every_minutes : float, optional
        Save at the first step after so many minutes. 10, where neither is given.
    keep : int
        How many checkpoints stay: the last. Other files in the folder are left alone.
    background : bool
        Copy all tensors to the host's memory at once, and write them from there while the training goes on.
        What goes wrong meanwhile is raised at the next step, or on leaving. Whatever forks this process,
        such as a ``DataLoader`` that starts workers, waits for the writing.

    Attributes
    ----------
    path : Path or None
        The checkpoint saved last, or resumed from.

    Raises
    ------
    ValueError
        An option makes no sense, such as ``keep=0``.
    CheckpointError
        On entering: `folder` is a file, cannot be written, or another run saves into it. In `epochs`: what
        `latest` and `resume` raise. In `step`, `epochs`, and on leaving: what `save_checkpoint` raises.

    Notes
    -----
    Exact are: dropout, shuffling, random transforms in the dataset (drawn from torch, NumPy's or Python's
    global generator), with and without workers. On resuming, the batches that are done are loaded once more
    and dropped; what the loop does in the epoch before ``saves.batches(…)`` is done once more, with the same
    random numbers. Not exact, as nothing here can know of them: generators that are not named above; NumPy's
    ``default_rng``; a dataset that remembers what it gave; another number of workers, if transforms are
    random. What the loop itself counts or collects belongs into `extra`. ``persistent_workers=True`` is
    refused, in a loader for validation give it neither: such workers keep random states, out of reach.

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
        if every_steps is not None and not _whole(every_steps):
            raise ValueError(f"every_steps={every_steps!r}: give a number of steps, 1 or more")
        if every_minutes is not None and not (
            isinstance(every_minutes, int | float) and 0 < every_minutes < float("inf")
        ):
            raise ValueError(f"every_minutes={every_minutes!r}: give a number of minutes, more than 0")
        if not _whole(keep):
            raise ValueError(f"keep={keep!r}: give how many checkpoints stay, 1 or more")
        if extra is not None and not isinstance(extra, dict):
            raise ValueError(
                f"extra is a {type(extra).__name__}: give a dict with names, such as {{'scaler': scaler}}"
            )
        for name, value in (extra or {}).items():
            if isinstance(value, type):
                raise ValueError(
                    f"extra[{name!r}] is the class {value.__name__} itself: give the object that the run "
                    f"uses, such as {value.__name__}()"
                )
        if "\0" in str(folder):
            raise ValueError(f"folder={str(folder)!r} holds a NUL character, which no name of a folder can")
        if mistake := find_mistake(model, optimizer, scheduler, generator):
            raise ValueError(mistake)
        self.folder = Path(folder)
        self.every_steps, self.keep, self.background = every_steps, keep, background
        self.every_minutes = DEFAULT_MINUTES if every_steps is every_minutes is None else every_minutes
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.generator, self.extra = generator, {} if extra is None else extra
        self.path: Path | None = None
        self._fit: _FitState | None = None  # what `fit` keeps besides
        self._process = os.getpid()
        self._lock: FileLock | None = None
        self._handlers: dict[int, Any] = {}
        self._signal: int | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._epoch: int | None = None  # that runs, counted from 0
        self._begun: _EpochStart | None = None  # the random states with which it did
        self._place: _Position | None = None  # within it, once there are batches
        self._found: _SavedPosition | None = None  # where to go on

    def __enter__(self) -> AutoSave:
        if self._lock is not None:
            raise RuntimeError("this AutoSave is entered already: leave its with block before another begins")
        self._lock = self._acquire()
        self._fit, self._signal, self._epoch, self.path = None, None, None, None
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
            self._put_back_handlers()
            if self._lock is not None:
                self._lock.release()
            self._lock = self._epoch = self._place = self._found = None
            if self._signal is not None and not isinstance(error, SystemExit):  # it came to no step
                if raised := sys.exc_info()[1]:  # which may not be seen any more
                    traceback.print_exception(raised)
                signal.raise_signal(self._signal)

    def _new_lock(self) -> FileLock:
        return FileLock(self.folder / ".autosave.lock", thread_local=False)

    def _acquire(self) -> FileLock:
        """Make the folder, and lock other runs out of it."""
        lock = self._new_lock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=_PATIENCE, poll_interval=0.1)
        except Timeout as error:
            raise CheckpointError(
                f"Another run saves into {printable(self.folder)}. Give each run a folder of its own, or "
                f"wait until the other one has ended. (If there is none, delete {printable(lock.lock_file)}.)"
            ) from error
        except (OSError, NotImplementedError) as error:
            raise CheckpointError(
                f"Checkpoints cannot go into {printable(self.folder)}. {type(error).__name__}: "
                f"{printable(error)}. Give a folder that can be made and written."
            ) from error
        return lock

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
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"epochs({number!r}): give the number of epochs of the whole run, 0 or more")
        return self._count(self._resume(number), number)

    def _count(self, first: int, number: int) -> Iterator[int]:
        self._saved_at = time.monotonic()
        begun = None
        try:
            for epoch in range(first, number):
                self._epoch, self._place = epoch, None
                if self._found is not None:
                    self._found.begin(self.generator)
                self._begun = begun = _EpochStart(self.generator)
                yield epoch
                self._save(finished=True)
                self._place = self._found = None
                if self._asked():
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
        if self._epoch is None or self._begun is None:
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
        place = _Position(loader, self.generator)
        found, self._found = self._found, None
        if found is not None:
            place.begin_as(found, self.path)
        place.begun = self._begun.with_states(place.states())
        batches = self._calm(lambda: iter(loader), workers)
        if workers:
            self._hold_child_signal()
        if found is not None and found.done:
            for _ in range(found.done):
                if self._asked():
                    self._stop()
                if self._next(batches, workers) is _END:
                    raise CheckpointError(
                        f"{printable(self.path)} was saved after {found.done} batches of an epoch, and this "
                        "loader has fewer. Give the loader that the run had."
                    )
            place.go_on_as(found, self.path)
        self._place = place
        while (batch := self._next(batches, workers)) is not _END:
            place.done += 1
            yield batch

    def _next(self, batches: Iterator[Any], workers: bool) -> Any:
        return self._calm(lambda: next(batches, _END), workers)

    def _calm(self, ask: Callable[[], Any], workers: bool) -> Any:
        """Ask the loader, whose workers the signal may have ended, too, even before it came here."""
        try:
            return ask()
        except Exception:
            until = time.monotonic() + (_GRACE if workers and self._handlers else 0)
            while self._signal is None and time.monotonic() < until:
                time.sleep(0.01)
            if self._signal is None:
                raise
            self._cut_off()

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
        self._fit = _FitState(history, losses, getattr(step, "scaler", None))
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
        if self._failure is not None:
            self._settle()
        if self._asked():
            self._stop()
        if place.done == place.length:
            return  # the epoch's end is a save, too
        if (self.every_steps is not None and place.steps % self.every_steps == 0) or self._late():
            self._save()

    def _asked(self) -> bool:
        """Return whether a signal asked the run to stop."""
        return self._signal is not None

    def _cut_off(self) -> NoReturn:
        """Leave, because the signal has ended the loader's workers, too."""
        self._stop()

    def _late(self) -> bool:
        minutes = (time.monotonic() - self._saved_at) / 60
        return self.every_minutes is not None and minutes >= self.every_minutes

    def _resume(self, number: int) -> int:
        """Load the checkpoint that got furthest; return how many epochs are finished."""
        self._settle()
        self._found = None
        self.path = self._latest()
        if self.path is None:
            return 0
        found = self._load(self.path)
        place = _SavedPosition(**found.position, rng=found.rng)
        if wrong := self._find_misfit(found, place):
            raise CheckpointError(f"{printable(self.path)} does not fit; nothing was loaded: {wrong}")
        extra = found.extra
        parts = {
            f"extra {name!r}": (part, extra[name])
            for name, part in self.extra.items()
            if hasattr(part, "load_state_dict")
        }
        if self._fit is not None:
            parts["what fit measured"] = (self._fit, place.fit)
        before = {name: copy.deepcopy(part.state_dict()) for name, (part, _) in parts.items()}
        reason = ""
        try:
            for name, (part, saved) in parts.items():
                reason = f"{name} was not loaded"
                part.load_state_dict(saved)
            reason = "the run's own parts were not loaded"
            done = checkpoint.resume(
                found,
                model=self.model,
                optimizer=self.optimizer,
                scheduler=self.scheduler,
                generator=self.generator,
            )
        except BaseException as error:
            for name, (part, _) in parts.items():
                part.load_state_dict(before[name])
            if isinstance(error, CheckpointError) or not isinstance(error, Exception):
                raise
            raise CheckpointError(
                f"{printable(self.path)} does not fit; nothing was loaded: {reason}. "
                f"{type(error).__name__}: {printable(error)}"
            ) from error
        for name, value in self.extra.items():
            saved = extra[name]
            if hasattr(value, "load_state_dict"):
                continue
            if isinstance(value, list) and isinstance(saved, list):
                value[:] = saved
            elif isinstance(value, dict) and isinstance(saved, dict):
                value.clear()
                value.update(saved)
            else:
                self.extra[name] = saved
        self._found = place
        reached = f"{done} of {_plural(number, 'epoch')}"
        if found.step:
            reached += f" and {_plural(found.step, 'batch', 'es')}"
        what = "going on after" if done < number else "nothing to do after"
        self._tell(f"{printable(self.path)}: {what} {reached}")
        return done

    def _latest(self) -> Path | None:
        return checkpoint.latest(self.folder, pattern="autosave-epoch-*.safetensors")

    def _load(self, path: Path) -> checkpoint.Checkpoint:
        """Load a checkpoint that is one of ours."""
        found = checkpoint.load_checkpoint(path)
        if not isinstance(found.extra, dict) or not _SavedPosition.describes(found):
            raise CheckpointError(
                f"{printable(path)} has the name of a file of AutoSave, but was written otherwise: "
                "move it away."
            )
        return found

    def _tell(self, message: str) -> None:
        print(message, file=sys.stderr)

    def _find_misfit(self, found: checkpoint.Checkpoint, place: _SavedPosition) -> str | None:
        """Say what of AutoSave's own does not fit in a checkpoint."""
        if found.extra.keys() != self.extra.keys():
            return (
                f"its extra state has the names {sorted(map(str, found.extra))}, and given are "
                f"{sorted(self.extra)}. Go on with the program that saved it, or take another folder."
            )
        if (place.fit is None) != (self._fit is None):
            return f"it was saved by {'a loop' if place.fit is None else 'fit'}: go on as you began"
        if self._fit is not None and (wrong := self._fit.find_wrong(place.fit)):
            return wrong
        if place.begun is None:
            return None
        states = [] if self.generator is None else [self.generator.get_state()]
        return find_wrong_rng(place.begun["rng"]) or difference(
            place.begun["generators"][: len(states)], states, "the states of its position"
        )

    def _save(self, *, finished: bool = False) -> None:
        """Save this place of the run, unless that was done."""
        assert self._epoch is not None
        place = self._place
        epoch, done = (self._epoch + 1, 0) if finished or place is None else (self._epoch, place.done)
        path = self.folder / f"autosave-epoch-{epoch:04}-batch-{done:06}.safetensors"
        self._settle()
        if path == self.path:
            return
        position = (place or _Position(None, self.generator)).position(finished=not done)
        position["ranks"] = self._states_of_ranks(position)
        position["fit"] = None if self._fit is None else self._fit.state_dict()

        def collect(on_host: bool = False) -> _Content:
            return checkpoint._collect(
                path,
                (self.model, self.optimizer, self.scheduler, self.generator),
                epoch=epoch,
                step=done,
                position=position,
                extra={
                    name: part.state_dict() if hasattr(part, "state_dict") else part
                    for name, part in self.extra.items()
                },
                on_host=on_host,
            )

        self._saved_at = time.monotonic()
        if self.background:
            content = collect(on_host=True)
            self._thread = threading.Thread(target=self._write_aside, args=(path, lambda: content))
            self._thread.start()
            _writing.add(self._thread)
        else:
            self._write(path, collect)

    def _states_of_ranks(self, position: dict[str, Any]) -> list[Any]:
        """Return the random states of each process, where there are several."""
        return []

    def _write(self, path: Path, collect: Callable[[], _Content]) -> None:
        """Write a checkpoint, and delete our files before the last `keep`."""
        content = collect()
        if path.is_symlink():  # not ours: nothing outside the folder is written
            path.unlink()
        self.path = checkpoint._write_checkpoint(path, *content)
        ours = [other for other in self.folder.iterdir() if _NAME.fullmatch(other.name)]
        past = sorted((other for other in ours if _order(other) <= _order(path)), key=_order)
        for old in past[: -self.keep]:  # what is there of later places was found damaged, and stays
            with suppress(OSError):  # the next save tries again
                old.unlink()

    def _write_aside(self, path: Path, collect: Callable[[], _Content]) -> None:
        try:
            self._write(path, collect)
        except BaseException as error:
            self._failure = error

    def _settle(self) -> None:
        """Wait for what is written in the background, and raise what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            _writing.discard(self._thread)
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _stop(self) -> NoReturn:
        """Save, if the run is between two steps, and leave."""
        assert self._signal is not None
        place = self._place
        if place is not None and place.done and place.done == place.learned:
            self._save()
        self._settle()
        where = (
            f"It is saved in {printable(self.path)}"
            if self.path
            else "Nothing was done yet that could be saved"
        )
        message = (
            f"{signal.Signals(self._signal).name} asked this run to stop. {where}; the same command goes on "
            "from there."
        )
        self._tell(message)
        raise Stopped(message, 128 + self._signal)

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

    def _put_back_handlers(self) -> None:
        for number, handler in list(self._handlers.items()):
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._handlers.clear()


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


@dataclass(frozen=True)
class _FitState:
    """What `fit` keeps in a checkpoint besides: history, the losses of an unfinished epoch, and the scale."""

    history: Any
    losses: Any
    scaler: torch.amp.GradScaler | None

    def state_dict(self) -> dict[str, Any]:
        scale = None if self.scaler is None else self.scaler.state_dict()
        return {"history": asdict(self.history), "losses": self.losses.state_dict(), "scale": scale}

    def find_wrong(self, state: Any) -> str | None:
        """Say what in such a state is none of this."""
        if not isinstance(state, dict) or state.keys() != {"history", "losses", "scale"}:
            return "what fit measured is not there"
        if (state["scale"] is None) != (self.scaler is None):
            return "it was saved with another amp: give fit the same"
        history, names = state["history"], vars(self.history).keys()
        if not isinstance(history, dict) or history.keys() != names:
            return "its history is no history of fit"
        for name in names:
            if not isinstance(history[name], list) or any(type(each) is not float for each in history[name]):
                return f"{name} of its history is no list of numbers"
        now = self.state_dict() | {"history": None}
        return difference(state, now, "what fit measured")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scale"])
        for name, values in vars(self.history).items():
            values[:] = state["history"][name]
        self.losses.load_state_dict(state["losses"])


@dataclass(frozen=True)
class _SavedPosition:
    """A place that a checkpoint holds: the fields but `rng` are its `position`."""

    done: int  # batches that were learned from
    steps: int
    length: int | None  # of the loader, in batches
    batch_size: int | None
    generators: list[torch.Tensor]  # their states
    begun: dict[str, Any] | None  # the random states with which the epoch began
    ranks: list[dict[str, Any]]  # for each process `generators`, `begun` and `rng`; empty for a single one
    fit: dict[str, Any] | None
    rng: dict[str, Any]

    @staticmethod
    def describes(found: checkpoint.Checkpoint) -> bool:
        """Return whether its `position` is one."""
        position, given = found.position, found.generator is not None
        names = {each.name for each in fields(_SavedPosition)} - {"rng"}
        if not isinstance(position, dict) or position.keys() != names:
            return False
        counts = all(is_count(position[name]) for name in ("done", "steps"))
        sizes = all(position[name] is None or is_count(position[name]) for name in ("length", "batch_size"))
        if not counts or not sizes or not isinstance(position["ranks"], list):
            return False
        for rank in position["ranks"]:
            if not isinstance(rank, dict) or rank.keys() != {"generators", "begun", "rng"}:
                return False
        return all(
            _describes_states(states["generators"], states["begun"], given, position["done"] > 0)
            for states in (position, *position["ranks"])
        )

    def begin(self, given: torch.Generator | None) -> None:
        """Set the random states with which the epoch began, for what the loop draws before its batches."""
        if self.begun is not None:  # else resume() has set them
            set_rng_state(self.begun["rng"])
            if given is not None:
                given.set_state(self.begun["generators"][0])


class _EpochStart:
    """The random states with which an epoch began; those of the loader's own generators are added later."""

    def __init__(self, given: torch.Generator | None) -> None:
        self.rng = rng_state()
        self.given = [] if given is None else [given.get_state()]

    def with_states(self, states: list[torch.Tensor]) -> dict[str, Any]:
        return {"rng": self.rng, "generators": self.given + states[len(self.given) :]}


class _Position:
    """How far an epoch is, and the random states that it began with."""

    def __init__(self, loader: Any, given: torch.Generator | None) -> None:
        self.done = self.learned = self.steps = 0  # batches handed out, those up to the last step, and steps
        self.length: int | None = None
        with suppress(TypeError):  # an IterableDataset may have none
            self.length = len(loader)
        size = getattr(loader, "batch_size", None)
        self.batch_size = size if isinstance(size, int) else None
        self.given = given
        batches = getattr(loader, "batch_sampler", None)
        holders = loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)
        found = [given, *(getattr(holder, "generator", None) for holder in holders)]
        self.generators = list(dict.fromkeys(each for each in found if isinstance(each, torch.Generator)))
        self.begun: dict[str, Any] | None = None

    def position(self, *, finished: bool) -> dict[str, Any]:
        """Return what a checkpoint holds of this place, or of the end of the epoch."""
        return {
            "done": 0 if finished else self.done,
            "steps": 0 if finished else self.steps,
            "length": self.length,
            "batch_size": self.batch_size,
            "generators": self.states(),
            "begun": None if finished else self.begun,
        }

    def begin_as(self, found: _SavedPosition, path: Path | None) -> None:
        """Set the states with which the loader's own generators began the epoch."""
        what = "length", "batch_size"
        known = {name: getattr(found, name) for name in what} | {"generators": len(found.generators)}
        given = {name: getattr(self, name) for name in what} | {"generators": len(self.generators)}
        if not found.done:  # between epochs another loader is another run, but no mistake
            known |= {name: given[name] for name in what}
        if known != given:
            raise CheckpointError(
                f"{printable(path)} was saved with another loader: {known} in the file, {given} given. "
                "The place within an epoch is only found again with the loader that the run had."
            )
        states = found.generators if found.begun is None else found.begun["generators"]
        self._set_states(states, path, but=self.given)  # which is set already

    def go_on_as(self, found: _SavedPosition, path: Path | None) -> None:
        """Set the random states of the moment of saving."""
        set_rng_state(found.rng)
        self._set_states(found.generators, path)
        self.done = self.learned = found.done
        self.steps = found.steps

    def states(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self.generators]

    def _set_states(
        self, states: list[torch.Tensor], path: Path | None, but: torch.Generator | None = None
    ) -> None:
        for generator, state in zip(self.generators, states, strict=True):
            if generator is but:
                continue
            try:
                generator.set_state(state)
            except RuntimeError as error:
                raise CheckpointError(
                    f"{printable(path)} holds no proper state of the loader's generator: {printable(error)}. "
                    "Move this file away, to go on from the one before."
                ) from error


def _describes_states(generators: Any, begun: Any, given: bool, within: bool) -> bool:
    """Return whether these are the random states of a place, and those with which its epoch began."""
    if not within:
        return begun is None and _are_states(generators, given)
    if not isinstance(begun, dict) or begun.keys() != {"rng", "generators"} or type(begun["rng"]) is not dict:
        return False
    known = begun["generators"]
    return _are_states(generators, given) and _are_states(known, given) and len(known) == len(generators)


def _are_states(value: Any, given: bool) -> bool:
    """Return whether this is a list of states of generators; the first is that of the given one."""
    return (
        isinstance(value, list)
        and len(value) >= given
        and all(isinstance(state, torch.Tensor) and state.dtype == torch.uint8 for state in value)
    )


def _plural(number: int, what: str, ending: str = "s") -> str:
    return f"{number} {what}{ending if number != 1 else ''}"


def _whole(value: object) -> bool:
    return type(value) is int and value >= 1


def _order(path: Path) -> tuple[int, ...]:
    """Return how far the run was when it saved this file."""
    found = _NAME.fullmatch(path.name)
    return tuple(map(int, found.groups())) if found else ()
