"""The training loop of the lessons, and `fit`, which repeats it and keeps the history."""
# mypy: allow-untyped-calls

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from gpulesson import preflight
from gpulesson._arguments import refuse
from gpulesson._progress import epoch_bar, show_loss
from gpulesson.checkpoint import AutoSave
from gpulesson.checkpoint.differences import difference
from gpulesson.checkpoint.tensorfile import Refused
from gpulesson.device import choose_device, to_device
from gpulesson.evaluation import Evaluation, check_held_out, evaluate_checked
from gpulesson.preflight import LossFunction, NonFiniteLossError, Pairs
from gpulesson.step import Step

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def train_epoch(
    model: nn.Module,
    batches: Pairs,
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer,
    device: torch.device | str,
    *,
    step: Step | None = None,
    losses: EpochLoss | None = None,
) -> float:
    """Train for one pass over the batches: the loop of lesson 4.

    The losses stay on the device and are copied to the CPU once, at the end, so that the CPU does not wait in
    each step. Arguments are not checked, so most errors are PyTorch's own; `fit` checks first.

    Parameters
    ----------
    model : torch.nn.Module
        On `device`; put into training mode, and left in it.
    batches : iterable of (inputs, targets)
        Moved to `device` one by one. Targets are a tensor ``[N, …]``; inputs whatever the model takes: a
        tensor, or tensors in a tuple, list or mapping, also nested.
    loss_fn : callable
        Takes the model's output and the targets, and returns the mean over the batch, or the sum if it has
        ``reduction="sum"``.
    optimizer : torch.optim.Optimizer
        Built over the model's parameters, after the model was moved.
    device : torch.device or str
        Where to compute.
    step : Step, optional
        Replaces `zero_grad`, `backward` and `step`: mixed precision, accumulated batches, and more.
    losses : EpochLoss, optional
        Where the losses are collected.

    Returns
    -------
    float
        Mean loss over the samples: a short last batch counts by its size. Where a loss weighs samples
        unequally (class weights, ignored labels), this is still the mean of the batches' values by their
        sizes.

    Raises
    ------
    NonFiniteLossError
        The loss became infinite or NaN; the message names the step. It is seen when the losses are read, at
        the epoch's end, so the steps after it have been taken.
    ValueError
        There are no batches.

    Examples
    --------
    >>> from gpulesson.models import MLP
    >>> _ = torch.manual_seed(0)
    >>> model = MLP(4, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batches = [(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))]
    >>> first = train_epoch(model, batches, nn.CrossEntropyLoss(), optimizer, "cpu")
    >>> train_epoch(model, batches, nn.CrossEntropyLoss(), optimizer, "cpu") < first
    True
    """
    device = choose_device(device)
    # safe towards CUDA only: elsewhere a batch may be freed before it is read
    no_wait = device.type == "cuda"
    losses = EpochLoss(loss_fn) if losses is None else losses
    model.train()
    if step is not None:
        step.begin()
        model, loss_fn = step.autocast(model), step.autocast(loss_fn)  # type: ignore[assignment]
    for inputs, targets in batches:
        inputs = to_device(inputs, device, non_blocking=no_wait)
        targets = targets.to(device, non_blocking=no_wait)
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        if step is None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            step(loss, targets.shape[0])
        losses.add(loss, targets.shape[0])
    if step is not None:
        step.finish()
    return losses.mean()


def fit(
    model: nn.Module,
    batches: Pairs,
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer,
    device: torch.device | str,
    epochs: int | range,
    *,
    validation: Pairs | None = None,
    scheduler: LRScheduler | None = None,
    step: Step | None = None,
    autosave: AutoSave | None = None,
) -> History:
    """Train for several epochs and keep what was measured.

    Parameters
    ----------
    model, batches, loss_fn, optimizer, device
        As in `train_epoch`. `batches` is iterated over once per epoch: a ``DataLoader`` or ``Batches``, not a
        generator. If its sampler has ``set_epoch``, each epoch calls it (with ``epochs=1``, call it in your
        own loop). The ``ignore_index`` of `loss_fn`, if it has one, is a legal label.
    epochs : int or range
        How many passes; or which, counted from 0: ``range(3, 10)`` continues after three finished ones.
    validation : iterable of (inputs, targets), optional
        Evaluated after each epoch, in full precision.
    scheduler : torch.optim.lr_scheduler.LRScheduler, optional
        Stepped once an epoch; ``ReduceLROnPlateau`` is given the validation loss, or else the training loss.
        One that is stepped after each step of the optimizer belongs in `step`.
    step : Step, optional
        Mixed precision, accumulated batches, clipped gradients, a schedule by steps:
        ``step=Step(optimizer, amp="bf16")``.
    autosave : AutoSave, optional
        Saves the run as it goes, also within an epoch, and resumes it: `epochs` and the history are those of
        the whole run (the seconds of a resumed epoch count from where it was resumed). It has the same model,
        optimizer and scheduler, and is used in a ``with`` block. A signal to stop raises its ``Stopped``.

    Returns
    -------
    History

    Raises
    ------
    TypeError
        An argument has the wrong type, such as the class ``nn.CrossEntropyLoss`` instead of an instance.
    ValueError
        There are no batches, the first one is not a pair of inputs and targets, a label is out of range, or
        the loss is not one number or compares each output with each target.
    DeviceError
        Model, loss function or optimizer are not on `device`, or the optimizer belongs to another model.
    NonFiniteLossError
        The loss became infinite or NaN; the message names epoch and step, and ``history`` is what was
        measured before.
    Exception
        Whatever the model, the loss or the batches raise themselves, with a note (from Python 3.11 on) that
        names the batch.

    Notes
    -----
    The model is left in training mode, as after a loop written by hand; `evaluate` restores what it found.
    For a compiled run, call ``model.compile()`` first. A progress bar is shown in a terminal and in an open
    notebook only.

    Examples
    --------
    >>> from gpulesson.models import MLP
    >>> model = MLP(4, 3)
    >>> batches = [(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))]
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> history = fit(model, batches, nn.CrossEntropyLoss(), optimizer, "cpu", epochs=3)
    >>> len(history.train_loss)
    3

    A run that saves itself; the second call goes on where the first one ended:

    >>> import tempfile
    >>> from gpulesson.checkpoint import AutoSave
    >>> folder = tempfile.mkdtemp()
    >>> for epochs in (2, 5):
    ...     with AutoSave(folder, model=model, optimizer=optimizer, every_steps=100) as saves:
    ...         history = fit(
    ...             model, batches, nn.CrossEntropyLoss(), optimizer, "cpu", epochs, autosave=saves
    ...         )
    >>> len(history.train_loss)
    5
    """
    device, all_epochs = preflight.check_run(
        model, batches, loss_fn, optimizer, device, epochs, validation, scheduler, step, autosave
    )
    history, losses = History(), EpochLoss(loss_fn)
    remaining: Iterable[int] = all_epochs
    fed = batches
    if autosave is not None:  # which resumes here: model, optimizer, history and losses are as they were
        fed = autosave.attach_fit(batches, step, history, losses)
        remaining = autosave.epochs(len(all_epochs))
    feed = preflight.Feed(fed, loss_fn, device, losses=losses)
    try:
        looked = False
        if validation is not None and len(all_epochs):
            looked = check_held_out(model, validation, loss_fn, device)
        bar = epoch_bar(remaining, len(all_epochs) - len(history.train_loss))
        for index, epoch in enumerate(bar):
            losses.epoch = epoch + 1
            if epochs != 1:  # for a single epoch, the caller's own loop may call set_epoch
                _tell_samplers(batches, epoch)
            start = time.perf_counter()
            compute_loss = loss_fn if index else feed.loss  # which looks at the first batch
            with feed:
                loss = train_epoch(model, feed, compute_loss, optimizer, device, step=step, losses=losses)
            seconds = time.perf_counter() - start
            result = None
            if validation is not None:
                result = evaluate_checked(
                    model,
                    validation,
                    loss_fn,
                    device,
                    check_targets=index == 0 and not looked,
                    name=f"validation after epoch {losses.epoch}",
                )
                preflight.check_validation_loss(result.loss, losses.epoch)
            history.append(loss, seconds, result)
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(loss if result is None else result.loss)
            elif scheduler is not None:
                scheduler.step()
            show_loss(bar, loss)
        if validation is None and history.train_loss:  # else the validation loss would show it
            preflight.check_weights(model, losses.epoch)
    except NonFiniteLossError as error:
        error.history = history
        raise
    return history


def _tell_samplers(batches: Pairs, epoch: int) -> None:
    """Set the epoch of a loader's samplers, so that each reshuffles, and identically in all processes."""
    for name in ("sampler", "batch_sampler"):
        sampler: Any = getattr(batches, name, None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)


class EpochLoss:
    """The losses of an epoch's batches, which stay on the device until they are asked for.

    Parameters
    ----------
    loss_fn : callable
        Its ``reduction``, if it has one, says whether a batch's loss is a mean or a sum.

    Attributes
    ----------
    epoch : int
        Which epoch this is, counted from 1, for error messages.

    Examples
    --------
    >>> losses = EpochLoss(nn.CrossEntropyLoss())
    >>> losses.add(torch.tensor(1.0), size=2)
    >>> losses.add(torch.tensor(4.0), size=1)
    >>> losses.mean()
    2.0
    """

    def __init__(self, loss_fn: LossFunction) -> None:
        self.reduction, self.epoch = preflight.loss_reduction(loss_fn), 1
        self._total, self._samples, self._batches = 0.0, 0, 0  # of the losses that were read
        self._on_device: list[Tensor] = []  # the others, and the sizes of their batches
        self._sizes: list[int] = []

    def __len__(self) -> int:
        return self._batches + len(self._sizes)

    def add(self, loss: Tensor, size: int) -> None:
        """Add the loss of a batch of `size` samples, without waiting for it."""
        self._on_device.append(loss.detach())  # not .item(): the CPU would wait
        self._sizes.append(size)

    def mean(self) -> float:
        """Return the mean over all samples, and reset; an infinite loss, or NaN, is an error."""
        self._read()
        if not self._batches:
            raise ValueError(
                f"nothing to train on in epoch {self.epoch}: the batches are empty. Give at least one batch; "
                "a generator is exhausted after one pass, a DataLoader or Batches is not"
            )
        found = self._total / self._samples
        self._total, self._samples, self._batches = 0.0, 0, 0
        return found

    def _read(self) -> None:
        """Copy the losses to the CPU and sum them in order: the sum must not depend on when they are read."""
        if not self._on_device:
            return
        values: list[float] = torch.stack(self._on_device).tolist()  # the CPU waits here
        sizes, self._sizes = self._sizes, []
        self._on_device.clear()
        for value, size in zip(values, sizes, strict=True):
            self._batches += 1
            if not math.isfinite(value):
                step = self._batches
                self._total, self._samples, self._batches = 0.0, 0, 0
                raise NonFiniteLossError(value, self.epoch, step)
            self._total += value if self.reduction == "sum" else value * size
            self._samples += size

    def state_dict(self) -> dict[str, Any]:
        """Return the losses so far of an unfinished epoch."""
        self._read()
        return {"total": self._total, "samples": self._samples, "batches": self._batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what `state_dict` returned; ValueError if it is anything else."""
        if wrong := difference(state, self.state_dict(), "losses"):
            raise Refused(wrong)
        self._total, self._samples, self._batches = (state[name] for name in ("total", "samples", "batches"))


@dataclass(frozen=True, repr=False)
class History:
    """What `fit` measured: a list grows by one entry an epoch, from the epoch in which measuring began.

    Attributes
    ----------
    train_loss : list of float
        Mean over samples, while the weights were changing.
    validation_loss : list of float
        Mean over samples, after the epoch.
    validation_accuracy : list of float
        Fraction 0 to 1, after the epoch; empty for regression.
    seconds : list of float
        Seconds of training; saves within the epoch count, validation does not.
    """

    train_loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    validation_accuracy: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def append(self, loss: float, seconds: float, result: Evaluation | None = None) -> None:
        """Add an epoch: its training loss, the seconds, and what `evaluate` found after it."""
        if result is not None:
            self.validation_loss.append(result.loss)
            if result.accuracy is not None:
                self.validation_accuracy.append(result.accuracy)
        self.train_loss.append(loss)
        self.seconds.append(seconds)

    def state_dict(self) -> dict[str, list[float]]:
        """Return the lists, by name."""
        return {name: list(values) for name, values in vars(self).items()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """Fill the lists with those that `state_dict` returned; ValueError if it is anything else."""
        if not isinstance(state, dict) or state.keys() != vars(self).keys():
            raise Refused("it is not a history of fit")
        for name, values in state.items():
            if not isinstance(values, list) or any(type(value) is not float for value in values):
                raise Refused(f"{name} is not a list of numbers")
        for name, values in vars(self).items():
            values[:] = state[name]

    def __repr__(self) -> str:
        if not self.train_loss:
            return "History of 0 epochs"
        parts = [f"train loss {self.train_loss[0]:.4f} → {self.train_loss[-1]:.4f}"]
        if self.validation_loss:
            parts.append(f"validation loss {self.validation_loss[-1]:.4f}")
        if self.validation_accuracy:
            parts.append(f"validation accuracy {self.validation_accuracy[-1]:.2%}")
        if self.seconds:
            parts.append(f"{statistics.median(self.seconds):.3g} s an epoch (median)")
        count = len(self.train_loss)
        return f"History of {count} epoch{'s' * (count > 1)}: {', '.join(parts)}"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the losses over the epochs, and the accuracy (if measured) on a second axis.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        matplotlib.axes.Axes
            The axes of the losses.
        """
        if not self.train_loss:
            raise ValueError("the history has no epoch, expected at least one: plot what fit(…) returned")
        import matplotlib.pyplot as plt
        from matplotlib.axes import Axes
        from matplotlib.ticker import MaxNLocator

        if ax is None:
            _, ax = plt.subplots()
        elif not isinstance(ax, Axes):
            refuse("ax", ax, "the axes of one plot", "give plt.gca(), or one of those that plt.subplots made")
        epochs = range(1, len(self.train_loss) + 1)
        ax.plot(epochs, self.train_loss, marker=".", label="training loss")
        if self.validation_loss:  # a resumed run may have had none at first
            last = epochs[-len(self.validation_loss) :]
            ax.plot(last, self.validation_loss, marker=".", label="validation loss")
        ax.set(xlabel="epoch", ylabel="loss (mean over samples)")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        lines, top = list(ax.get_lines()), ax
        if self.validation_accuracy:
            top = ax.twinx()
            percent = [100 * accuracy for accuracy in self.validation_accuracy]
            lines += top.plot(epochs[-len(percent) :], percent, "k--", alpha=0.6, label="validation accuracy")
            top.set_ylabel("accuracy (%)")
        top.legend(handles=lines, loc="center right")  # losses fall and accuracies rise: free in the middle
        return ax
