"""One epoch of training, and `fit`, which repeats it and keeps the history."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from operator import length_hint
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from gpulesson import _checks, _explain
from gpulesson._arguments import described, refuse, whole_number
from gpulesson._first_step import FirstStep, alike, held_out, once, undone
from gpulesson._precision import Amp, Precision, precision_of
from gpulesson._progress import epoch_bar
from gpulesson.autosave import AutoSave, _refuse_inexact
from gpulesson.device import DeviceError, to_device
from gpulesson.evaluation import _evaluate_placed

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class NonFiniteLossError(ArithmeticError):
    """The loss, the validation loss or the weights became infinite or not a number.

    Attributes
    ----------
    epoch, step : int
        Where it happened first, both counted from 1; step 0 is the end of the epoch.
    history : History or None
        What `fit` had measured in the epochs before.
    """

    def __init__(self, value: float, epoch: int, step: int, found: str = "") -> None:
        super().__init__(
            f"{found or f'the loss is {value} in epoch {epoch}, step {step}'}, expected finite numbers. "
            "Begin again with a lower learning rate, or look for inputs that are not finite, and for "
            "batches in which every label is ignored (their mean loss is 0 / 0); "
            "torch.autograd.set_detect_anomaly(True) names the operator"
        )
        self.epoch, self.step = epoch, step
        self.history: History | None = None


@dataclass(frozen=True, repr=False)
class History:
    """What `fit` measured: each list has one entry per epoch, or is empty if it was not measured.

    Attributes
    ----------
    train_loss : list of float
        Mean over samples, while the weights were changing.
    validation_loss : list of float
        Mean over samples, after the epoch.
    validation_accuracy : list of float
        Fraction 0 to 1, after the epoch; empty for regression.
    seconds : list of float
        Seconds of training (without validation).
    """

    train_loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    validation_accuracy: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

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
        return f"History of {len(self.train_loss)} epochs: {', '.join(parts)}"

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
        if self.validation_loss:
            ax.plot(epochs, self.validation_loss, marker=".", label="validation loss")
        ax.set(xlabel="epoch", ylabel="loss (mean over samples)")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        lines, top = list(ax.get_lines()), ax
        if self.validation_accuracy:
            top = ax.twinx()
            percent = [100 * accuracy for accuracy in self.validation_accuracy]
            lines += top.plot(epochs, percent, "k--", alpha=0.6, label="validation accuracy")
            top.set_ylabel("accuracy (%)")
        top.legend(handles=lines, loc="center right")  # losses fall and accuracies rise: free in the middle
        return ax


def train_epoch(
    model: nn.Module,
    batches: _checks.Pairs,
    loss_fn: _checks.LossFunction,
    optimizer: torch.optim.Optimizer,
    device: torch.device | str,
    *,
    epoch: int = 1,
    check_targets: bool = True,
    amp: Amp = None,
    forward: Callable[[Any], Any] | None = None,
) -> float:
    """Train for one pass over the batches: the loop of the lessons, and nothing slower.

    No step makes the CPU wait for the device: losses stay there and come over in one transfer at the end.

    Parameters
    ----------
    model : torch.nn.Module
        On `device`; put into training mode, and left in it.
    batches : iterable of (inputs, targets)
        Moved to `device` one by one. Targets are a tensor ``[N, …]``; inputs whatever the model takes: a
        tensor, or tensors in a tuple, list or mapping, also nested.
    loss_fn : callable
        Takes the model's output and the targets, and returns the mean over the batch, or the sum if it has
        ``reduction="sum"``. Its ``ignore_index``, if it has one, is a legal label.
    optimizer : torch.optim.Optimizer
        Built over the model's parameters, after the model was moved.
    device : torch.device or str
        Where to compute.
    epoch : int
        Which epoch this is, counted from 1, for error messages.
    check_targets : bool
        Labels out of range are refused before the loss sees them: on CUDA they would end the process's use
        of the GPU. On the CPU, where nobody waits, every label is looked at in any case; False skips labels
        that are on the device already, each look at which waits for it. `fit` looks at those in the first
        epoch only.
    amp : torch.dtype or str, optional
        Mixed precision, as in `fit`; but with float16 each call begins with a scale of its own, which costs
        the first steps of each. For several epochs of float16 use `fit`, which keeps one.
    forward : callable, optional
        Computes the outputs in the place of `model`, with its parameters: ``torch.compile(model)``, say.

    Returns
    -------
    float
        Mean loss over the samples: a short last batch counts by its size. Where a loss weighs samples
        unequally (class weights, ignored labels), this is still the mean of the batches' values by their
        sizes.

    Raises
    ------
    NonFiniteLossError
        The loss became infinite or NaN; the message names epoch and step.
    ValueError
        There are no batches, a label is out of range, the loss is not one number, or `amp` is no precision.
    DeviceError
        Model, loss function or optimizer are not on `device`, or the optimizer belongs to another model.

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
    _checks.check_arguments(
        model=model, batches=batches, loss_fn=loss_fn, optimizer=optimizer, check_targets=check_targets
    )
    if forward is not None:
        _checks.check_arguments(forward=forward)
    epoch = whole_number("epoch", epoch, 0, "give the number of the epoch, counted from 1")
    device = _checks.check_placement(model, device, loss_fn=loss_fn, optimizer=optimizer)
    precision = precision_of(amp, device)
    update = None
    if precision is not None and precision.scaler is not None:
        update = _Update(optimizer, precision.scaler)
    with FirstStep(model, device, batches) as first:
        return _one_pass(
            model,
            forward or model,
            batches,
            loss_fn,
            optimizer,
            device,
            epoch,
            precision,
            update,
            check_targets=check_targets,
            first=first,
        )


def fit(
    model: nn.Module,
    batches: _checks.Pairs,
    loss_fn: _checks.LossFunction,
    optimizer: torch.optim.Optimizer,
    device: torch.device | str,
    epochs: int,
    *,
    validation: _checks.Pairs | None = None,
    scheduler: LRScheduler | None = None,
    scheduler_interval: str = "epoch",
    accumulate: int = 1,
    clip_norm: float | None = None,
    start_epoch: int = 0,
    on_epoch: Callable[[int, History], object] | None = None,
    autosave: AutoSave | None = None,
    progress: bool | None = None,
    amp: Amp = None,
    compile: bool = False,
) -> History:
    """Train for several epochs and keep what was measured.

    Parameters
    ----------
    model, batches, loss_fn, optimizer, device
        As in `train_epoch`. `batches` is gone through once an epoch: a ``DataLoader`` or ``Batches``, not a
        generator. Its sampler is told the number of each epoch, if it has ``set_epoch``.
    epochs : int
        How many passes.
    validation : iterable of (inputs, targets), optional
        Evaluated after each epoch.
    scheduler : torch.optim.lr_scheduler.LRScheduler, optional
        Stepped once an epoch; ``ReduceLROnPlateau`` is given the validation loss, or else the training loss.
    scheduler_interval : str
        ``"step"``: step the scheduler after every step of the optimizer, also one that float16 leaves out; by
        default ``"epoch"``.
    accumulate : int
        How many batches each step of the optimizer learns from: with 4, a step is as with one batch of four
        times the size, in the memory of one. Batch normalisation still sees single batches, and so does a
        loss that weighs samples unequally (class weights, ignored labels). An epoch ends with a step.
    clip_norm : float, optional
        Scale the gradients of a step down where their norm, over all parameters, is larger.
    start_epoch : int
        How many of `epochs` are finished already, as `resume` returns it. float16 begins with a new scale.
    on_epoch : callable, optional
        Called after each epoch, with the number of finished epochs and the history: to save a checkpoint,
        for instance.
    autosave : AutoSave, optional
        Save the run as it goes, also within an epoch, and go on with what is saved: `epochs` and the history
        are those of the whole run (but the seconds of a resumed epoch are those since). It has the same
        model, optimizer and scheduler, and was entered by ``with``. A signal to stop raises its ``Stopped``.
    progress : bool, optional
        Show a progress bar. By default only when a person watches: in a terminal or an open notebook.
    amp : torch.dtype or str, optional
        Mixed precision: model and loss are computed under ``torch.autocast`` in ``torch.bfloat16`` (or
        ``"bf16"``), while weights and optimizer stay as they are. ``torch.float16`` (or ``"fp16"``) is for
        GPUs that are slow in bfloat16. It scales the loss, so that small gradients do not become zero, and
        then every step reads whether a gradient overflowed, unless the optimizer was built with
        ``fused=True``.
    compile : bool
        Train with ``torch.compile(model, fullgraph=True)``. The model handed in is the one that is trained,
        and its ``state_dict`` keeps its names. The first steps take the time of the compilation. Where inputs
        are one tensor, a batch with fewer samples than the first, as the last of an epoch often is, runs
        without it: it would be compiled for anew.

    Returns
    -------
    History

    Raises
    ------
    NonFiniteLossError, ValueError, DeviceError
        As `train_epoch`. A ``NonFiniteLossError`` carries the epochs before it as ``history``. A
        ``ValueError`` also tells of options that make no sense, such as ``accumulate=0``.
    torch._dynamo.exc.Unsupported
        The compiler would have to split the model where it calls something that cannot be compiled, which
        the message names: change that place, or leave out `compile`.
    torch._inductor.exc.InductorError
        The machine lacks what the compiler needs: a C++ compiler for a CPU, Triton for a GPU. Install it, or
        leave out `compile`.

    Notes
    -----
    The model is left in training mode, as after a loop written by hand; `evaluate` restores what it found.
    Validation runs the model itself: in full precision, and not compiled.

    References
    ----------
    PyTorch, "Automatic Mixed Precision examples", https://docs.pytorch.org/docs/stable/notes/amp_examples.html

    Examples
    --------
    >>> from gpulesson.models import MLP
    >>> model = MLP(4, 3)
    >>> batches = [(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))]
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> history = fit(model, batches, nn.CrossEntropyLoss(), optimizer, "cpu", epochs=3)
    >>> len(history.train_loss)
    3

    A run that saves itself after each epoch, and goes on after an interruption:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from gpulesson.checkpoint import load_checkpoint, resume, save_checkpoint
    >>> path = Path(tempfile.mkdtemp()) / "last.pt"
    >>> run = {"model": model, "optimizer": optimizer}
    >>> def save(epoch, history):
    ...     save_checkpoint(path, epoch=epoch, **run)
    >>> _ = fit(model, batches, nn.CrossEntropyLoss(), optimizer, "cpu", epochs=2, on_epoch=save)
    >>> done = resume(load_checkpoint(path), **run)
    >>> rest = fit(model, batches, nn.CrossEntropyLoss(), optimizer, "cpu", epochs=5, start_epoch=done)
    >>> done, len(rest.train_loss)
    (2, 3)

    A run that saves itself within the epochs, too; the second call goes on where the first one ended:

    >>> for epochs in (2, 5):
    ...     with AutoSave(path.parent, every_steps=100, **run) as saves:
    ...         history = fit(
    ...             model, batches, nn.CrossEntropyLoss(), optimizer, "cpu", epochs, autosave=saves
    ...         )
    >>> len(history.train_loss)
    5
    """
    _checks.check_arguments(model=model, batches=batches, loss_fn=loss_fn, optimizer=optimizer)
    optional = {"validation": validation, "scheduler": scheduler, "on_epoch": on_epoch, "progress": progress}
    _checks.check_arguments(**{name: value for name, value in optional.items() if value is not None})
    epochs = whole_number("epochs", epochs, 0, "give the number of passes over the data, 0 or more")
    start_epoch = whole_number(
        "start_epoch", start_epoch, 0, f"give how many of the {epochs} epochs are finished"
    )
    if start_epoch > epochs:
        raise ValueError(f"start_epoch={start_epoch}: give how many of the {epochs} epochs are finished")
    accumulate = whole_number(
        "accumulate", accumulate, 1, "give the number of batches for each step, 1 or more"
    )
    if clip_norm is not None and (isinstance(clip_norm, bool) or not hasattr(clip_norm, "__float__")):
        refuse("clip_norm", clip_norm, "a number above 0", "give the largest norm of the gradients")
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm={clip_norm}: give the largest norm of the gradients, more than 0")
    if scheduler_interval not in ("epoch", "step"):
        raise ValueError(f"scheduler_interval={scheduler_interval!r}: give 'epoch' or 'step'")
    if scheduler_interval == "step" and isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError(
            "scheduler_interval='step' with ReduceLROnPlateau, which needs the loss of a whole epoch: "
            "give 'epoch'"
        )
    if not isinstance(compile, bool):
        raise ValueError(
            f"compile={compile!r}: give True or False. For another way of compiling, hand in the compiled "
            "model: fit(torch.compile(model, mode=…), …)"
        )
    if autosave is not None:
        _check_autosave(autosave, model, optimizer, scheduler, start_epoch, (batches, validation))
    device = _checks.check_placement(model, device, loss_fn=loss_fn, optimizer=optimizer)
    passes = epochs - start_epoch
    each = math.ceil(length_hint(batches) / accumulate) if scheduler_interval == "step" else 1
    _checks.check_schedule(scheduler, optimizer, passes * each)
    if once(batches) and passes > 1:
        raise ValueError(
            f"nothing to train on in epoch {start_epoch + 2}: a generator is used up after one pass, "
            f"and batches is {described(batches)}: give a list, a DataLoader or Batches"
        )
    sample = None
    if validation is not None and passes:
        with undone(device, validation):
            sample = held_out(validation, passes)

    def look(batch: Any) -> None:
        if sample is not None and not alike(batch, sample):
            with undone(device):
                _try_validation(model, sample, loss_fn, device)

    precision = precision_of(amp, device)  # one for all epochs: a scaler learns its scale
    scaler = None if precision is None else precision.scaler
    each_step = scheduler if scheduler_interval == "step" else None
    update = None
    if scaler is not None or accumulate > 1 or clip_norm is not None or each_step is not None:
        update = _Update(
            optimizer,
            scaler,
            accumulate=accumulate,
            clip_norm=clip_norm,
            scheduler=each_step,
            mean=_checks.loss_reduction(loss_fn) == "mean",
        )
    forward = _compiled(model) if compile else model
    history = History()
    numbers: Iterable[int] = range(start_epoch + 1, epochs + 1)
    saved = None
    if autosave is not None:
        saved = _Saved(autosave, history, scaler)
        numbers = (epoch + 1 for epoch in autosave.epochs(epochs))
    bar = epoch_bar(numbers, progress, epochs - start_epoch - len(history.train_loss))
    first = True  # labels on a device come again in every epoch: wait for one look
    show: Any = getattr(bar, "set_postfix_str", None)
    path, _, leaf = next((name for name, _ in model.named_parameters()), "").rpartition(".")
    owner = model.get_submodule(path)
    for epoch in bar:
        if leaf and getattr(owner, leaf).device != device:  # moved since
            _checks.check_placement(model, device)
        for name in ("sampler", "batch_sampler"):
            sampler: Any = getattr(batches, name, None)
            if hasattr(sampler, "set_epoch") and epochs > 1:  # else the loop around this may call it
                sampler.set_epoch(epoch - 1)
        start = time.perf_counter()
        given = FirstStep(model, device, batches, look) if first else nullcontext()
        try:
            with given as step:
                loss = _one_pass(  # reads the losses, so the device is done when it returns
                    model,
                    forward,
                    batches,
                    loss_fn,
                    optimizer,
                    device,
                    epoch,
                    precision,
                    update,
                    check_targets=first,
                    first=step,
                    saved=saved,
                )
        except NonFiniteLossError as error:
            error.history = history
            raise
        history.seconds.append(time.perf_counter() - start)
        if validation is None and (on_epoch is not None or epoch == epochs):  # else a loss tells
            name = _checks.not_finite(model)
            if name:
                found = f"the weights {name!r} are not finite after epoch {epoch}, although its losses were"
                raise _not_finite(found, math.nan, epoch, history)
        history.train_loss.append(loss)
        if validation is not None:
            result = _evaluate_placed(
                model, validation, loss_fn, device, check_targets=first, with_confusion=False
            )
            if not math.isfinite(result.loss):
                raise _not_finite(
                    f"the validation loss is {result.loss} after epoch {epoch}", result.loss, epoch, history
                )
            history.validation_loss.append(result.loss)
            if result.accuracy is not None:
                history.validation_accuracy.append(result.accuracy)
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step((history.validation_loss or history.train_loss)[-1])
        elif scheduler is not None and each_step is None:
            scheduler.step()
        if on_epoch is not None:
            on_epoch(epoch, history)
        if show is not None:
            show(f"loss {loss:.4f}")
        first = False
    return history


def _not_finite(found: str, value: float, epoch: int, history: History) -> NonFiniteLossError:
    error = NonFiniteLossError(value, epoch, 0, found)
    error.history = history
    return error


def _try_validation(
    model: nn.Module, batch: tuple[Any, ...], loss_fn: _checks.LossFunction, device: torch.device
) -> None:
    """Evaluate one batch of the validation data, which an epoch later would be too late."""
    try:
        result = _evaluate_placed(model, [batch], loss_fn, device, check_targets=False, with_confusion=False)
    except (ValueError, TypeError, DeviceError) as error:
        raise type(error)(f"validation: {error}") from error
    if not math.isfinite(result.loss):
        found = f"the validation loss is {result.loss} before the first step"
        raise NonFiniteLossError(result.loss, 0, 0, found)


def _one_pass(
    model: nn.Module,
    forward: Callable[[Any], Any],
    batches: _checks.Pairs,
    loss_fn: _checks.LossFunction,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    epoch: int,
    precision: Precision | None,
    update: _Update | None,
    *,
    check_targets: bool,
    first: FirstStep | None,
    saved: _Saved | None = None,
) -> float:
    """Train for one pass over the batches; everything is known to be on `device`."""
    reduction = _checks.loss_reduction(loss_fn)

    def check_loss(loss: Tensor) -> None:  # on the CPU
        value: Any = loss.tolist()
        _check_finite([value], epoch, len(sizes))

    compute = _checks.checked_step(
        model,
        forward,
        batches,
        loss_fn,
        device,
        on_device=check_targets,
        first_loss=None if first is None else check_loss,
    )
    if precision is not None:
        compute = precision.autocast(compute)
    no_wait = device.type == "cuda"  # elsewhere a batch could be gone before it is read
    losses: list[Tensor] = []
    sizes: list[int] = []
    stepped = True
    if saved is not None:
        batches, sizes = saved.begin(batches, epoch, losses)
    if first is not None:
        batches = first.watch(batches)
    model.train()
    for inputs, given in batches:
        inputs = to_device(inputs, device, non_blocking=no_wait)
        targets = given.to(device, non_blocking=no_wait)
        if stepped:
            optimizer.zero_grad()
        loss = compute(inputs, targets, given)[1]  # the outputs need no name, which would keep them
        losses.append(loss.detach())  # not .item(): the CPU would wait
        sizes.append(targets.shape[0])
        try:
            if update is None:
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            else:
                stepped = update(loss, targets.shape[0])
        except RuntimeError as error:
            _explain.backward(error, len(sizes), loss, targets)
            raise
        if saved is not None and stepped:
            if first is not None:
                first.undo.clear()  # done, also if a signal ends the run here
            saved.autosave.step()
    if not stepped and update is not None:
        update.step()
    values = saved.end() if saved is not None else _finite(losses, epoch)
    if not values:
        raise ValueError(
            f"nothing to train on in epoch {epoch}: the batches are empty. Give at least one batch; "
            "a generator is used up after one pass, a DataLoader or Batches is not"
        )
    return _checks.mean_over_samples(values, sizes, reduction)


class _Update:
    """A backward pass, and a step after every `accumulate` of them, with what `fit` was asked for besides.

    A step uses the gradient of the mean loss over all samples since the step before, also where the batches
    differ in size.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None,
        *,
        accumulate: int = 1,
        clip_norm: float | None = None,
        scheduler: LRScheduler | None = None,
        mean: bool = True,
    ) -> None:
        self.optimizer, self.scaler, self.scheduler = optimizer, scaler, scheduler
        self.accumulate, self.clip_norm, self.mean = accumulate, clip_norm, mean
        self.sizes: list[int] = []  # of the batches since the last step

    def __call__(self, loss: Tensor, size: int) -> bool:
        """Learn from one batch; tell whether this was the last one before a step."""
        self.sizes.append(size)
        if self.accumulate > 1 and self.mean:
            loss = loss * (size / self._expected())
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        if len(self.sizes) < self.accumulate:
            return False
        self.step()
        return True

    def step(self) -> None:
        """Change the weights by what was accumulated."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        found, expected = sum(self.sizes), self._expected()
        if self.mean and found != expected:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(expected / found)
        if self.clip_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(parameters, self.clip_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)  # unscales the gradients; leaves out a step where one overflowed
            self.scaler.update()
        if self.scheduler is not None:
            self.scheduler.step()
        self.sizes.clear()

    def _expected(self) -> int:
        return self.sizes[0] * self.accumulate


class _Saved:
    """What `fit` keeps in a checkpoint besides: history, scale, and the losses of the epoch that runs."""

    def __init__(self, autosave: AutoSave, history: History, scaler: torch.amp.GradScaler | None) -> None:
        self.autosave, self.history, self.scaler = autosave, history, scaler
        self.epoch = 0
        self.losses: list[Tensor] = []  # on the device; once they are read, among the values
        self.values: list[float] = []
        self.sizes: list[int] = []
        autosave._own = {"fit": self}

    def begin(
        self, batches: _checks.Pairs, epoch: int, losses: list[Tensor]
    ) -> tuple[_checks.Pairs, list[int]]:
        """Return the batches that remain of an epoch, and the sizes of those before."""
        self.epoch, self.losses = epoch, losses
        return self.autosave.batches(batches), self.sizes

    def end(self) -> list[float]:
        """Return the losses of the whole epoch."""
        self._read()
        values, self.values, self.sizes = self.values, [], []
        return values

    def _read(self) -> None:
        self.values += _finite(self.losses, self.epoch, len(self.values))
        self.losses.clear()

    def state_dict(self) -> dict[str, Any]:
        self._read()
        scale = None if self.scaler is None else self.scaler.state_dict()
        # Copies: with AutoSave(background=True) they are written later.
        return {
            "history": asdict(self.history),
            "values": self.values[:],
            "sizes": self.sizes[:],
            "scale": scale,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if (state["scale"] is None) != (self.scaler is None):
            raise ValueError("it was saved with another amp: give fit the same")
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scale"])
        for name, values in vars(self.history).items():
            values[:] = state["history"][name]
        self.values, self.sizes = list(state["values"]), list(state["sizes"])


def _check_autosave(
    autosave: AutoSave,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler | None,
    start_epoch: int,
    loaders: tuple[_checks.Pairs | None, ...],
) -> None:
    if not isinstance(autosave, AutoSave):
        raise TypeError(
            f"autosave is a {type(autosave).__name__}: give an AutoSave, as in "
            "`with AutoSave(folder, model=model, optimizer=optimizer) as saves: fit(…, autosave=saves)`"
        )
    for name, given in (("model", model), ("optimizer", optimizer), ("scheduler", scheduler)):
        if getattr(autosave, name) is not given:
            raise ValueError(f"autosave has another {name} than fit was given: give the same one to both")
    if start_epoch:
        raise ValueError(
            f"start_epoch={start_epoch} with autosave, which finds out itself where to go on: leave it out"
        )
    for loader in loaders:
        _refuse_inexact(loader)


def _compiled(model: nn.Module) -> Callable[[Any], Any]:
    """Compile a model; a batch with fewer samples than the first runs as it is, not compiled once more."""
    compiled: Callable[[Any], Any] = torch.compile(model, fullgraph=True)
    first: torch.Size | None = None

    def forward(inputs: Any) -> Any:
        nonlocal first
        if isinstance(inputs, Tensor):
            first = first or inputs.shape
            if inputs.shape[1:] == first[1:] and len(inputs) < first[0]:
                return model(inputs)
        return compiled(inputs)

    return forward


def _finite(losses: list[Tensor], epoch: int, before: int = 0) -> list[float]:
    """Read losses from the device; `before` says how many of the epoch were read already."""
    values: list[float] = torch.stack(losses).tolist() if losses else []  # the CPU waits here
    _check_finite(values, epoch, before)
    return values


def _check_finite(values: list[float], epoch: int, before: int) -> None:
    if not all(map(math.isfinite, values)):
        step, value = next((i, x) for i, x in enumerate(values, before + 1) if not math.isfinite(x))
        raise NonFiniteLossError(value, epoch, step)
