"""Refuse wrong calls of `fit` and `evaluate` that PyTorch would accept silently.

Arguments are checked before the loop, the first batch and its loss before any weight changes. Everything else
is left to PyTorch's own errors, which get a note that names the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from gpulesson._arguments import described, refuse, whole_number
from gpulesson.device import DeviceError, choose_device, tensor_devices


class NonFiniteLossError(ArithmeticError):
    """The loss, the validation loss or the weights became infinite or not a number.

    Attributes
    ----------
    epoch, step : int
        Where it first happened, both counted from 1; step 0 is the end of the epoch.
    history : History or None
        What `fit` had measured in earlier epochs.
    """

    def __init__(self, value: float, epoch: int, step: int, found: str = "") -> None:
        super().__init__(
            f"{found or f'the loss is {value} in epoch {epoch}, step {step}'}, expected finite numbers. "
            "Start again with a lower learning rate, or look for inputs that are not finite, and for "
            "batches in which every label is ignored (their mean loss is 0 / 0); "
            "torch.autograd.set_detect_anomaly(True) names the operator"
        )
        self.epoch, self.step = epoch, step
        self.history: Any = None


def check_validation_loss(loss: float, epoch: int) -> None:
    """Raise NonFiniteLossError if the loss after an epoch, counted from 1, is infinite or NaN.

    >>> check_validation_loss(0.5, 1)
    """
    if not math.isfinite(loss):
        raise NonFiniteLossError(loss, epoch, 0, f"the validation loss is {loss} after epoch {epoch}")


LossFunction = Callable[[Any, Any], Tensor]
Pairs = Iterable[tuple[Any, ...]]  # (inputs, targets)

NOT_BATCHES = (type, str, bytes, Tensor, Mapping, nn.Module)  # some of these iterate, but not over batches
LOADER = "give DataLoader(dataset, batch_size=64) or Batches(inputs, targets, batch_size=64)"
PAGE = 'The site has causes and fixes of such errors on its page "Error messages"'
CLASS_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss, F.cross_entropy, F.nll_loss)
LAST = "the order is (model, batches, loss_fn, optimizer, device, epochs)"


def _trainable(model: Any) -> bool:
    return isinstance(model, nn.Module) and not isinstance(model, nn.modules.loss._Loss)


def _iterates(batches: Any) -> bool:
    if isinstance(batches, tuple | list) and len(batches) == 2 and isinstance(batches[0], Tensor):
        return False  # one pair
    if isinstance(batches, NOT_BATCHES) or type(batches).__name__ == "ndarray":
        return False
    if isinstance(batches, Dataset):  # of single samples
        return isinstance(batches, IterableDataset)
    return hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")


def _steps(optimizer: Any) -> bool:
    parts = ("param_groups", "step", "zero_grad")
    return not isinstance(optimizer, type) and all(hasattr(optimizer, part) for part in parts)


def _schedules(scheduler: Any) -> bool:
    return not isinstance(scheduler, type) and hasattr(scheduler, "step") and not _steps(scheduler)


def _calls(function: Any) -> bool:
    return callable(function) and not isinstance(function, type)


def _is_step(step: Any) -> bool:
    return not isinstance(step, type) and all(hasattr(step, part) for part in ("optimizer", "accumulate"))


BATCHES = (
    _iterates,
    "an iterable of (inputs, targets) batch by batch",
    f"{LOADER}; one batch alone is [(inputs, targets)]",
)
# What each argument has to be: a test, the words for it, and the remedy.
ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "model": (_trainable, "a torch.nn.Module with weights, such as MLP(784, 10)", LAST),
    "batches": BATCHES,
    "validation": BATCHES,
    "loss_fn": (_calls, "a function of outputs and targets", "give nn.CrossEntropyLoss(), for instance"),
    "optimizer": (_steps, "an optimizer", "give torch.optim.Adam(model.parameters()), for instance"),
    "scheduler": (
        _schedules,
        "a scheduler",
        "give torch.optim.lr_scheduler.StepLR(optimizer, 10), for instance",
    ),
    "step": (_is_step, "a Step", "give Step(optimizer, amp='bf16'), for instance"),
}


def check_arguments(**given: Any) -> None:
    """Refuse an argument of the wrong kind before using it.

    >>> check_arguments(loss_fn=nn.CrossEntropyLoss)
    Traceback (most recent call last):
    TypeError: loss_fn is the class CrossEntropyLoss, but must be a function of outputs and targets: make an \
object of the class, with brackets: CrossEntropyLoss(…)
    """
    for name, value in given.items():
        fits, expected, remedy = ARGUMENTS[name]
        if not fits(value):
            refuse(name, value, expected, remedy)
        if isinstance(value, torch.optim.LBFGS):
            raise ValueError(
                "LBFGS computes the loss several times in a step, through a closure, which needs another "
                "loop: use SGD or Adam here"
            )


def check_pair(batch: Any, name: str, which: str = "the first batch") -> None:
    """Refuse a batch that is not (inputs, targets), with the targets a tensor of at least one sample.

    >>> check_pair((torch.zeros(2, 4), torch.tensor([0, 1])), "batches")  # says nothing
    """
    if isinstance(batch, str | Tensor | Mapping) or not hasattr(batch, "__len__") or len(batch) != 2:
        raise ValueError(
            f"{name}: {which} is {described(batch)}, expected a pair (inputs, targets): let the "
            "dataset or collate_fn return two things; several inputs go into one tuple or dict, "
            "((a, b), targets)"
        )
    inputs, targets = batch
    counted = isinstance(inputs, int) and isinstance(targets, tuple | list)
    if inputs is None or counted or isinstance(inputs, str) or type(inputs).__name__ == "ndarray":
        remedy = "give torch.as_tensor(inputs); a transform has to return its result"
        raise ValueError(
            f"{name}: the inputs of {which} are {described(inputs)}, expected a tensor, or tensors in a "
            f"tuple, list or mapping: {'give the loader, without enumerate' if counted else remedy}"
        )
    single = isinstance(targets, int | float) or (isinstance(targets, Tensor) and not targets.ndim)
    if single or not isinstance(targets, Tensor):
        remedy = f"these are single samples, {LOADER}" if single else "give torch.as_tensor(targets)"
        raise ValueError(
            f"{name}: the targets of {which} are {described(targets)}, expected a tensor [N, …] with "
            f"one entry a sample: {remedy}"
        )
    if not targets.shape[0]:
        raise ValueError(
            f"{name}: {which} holds no sample, its targets are {described(targets)}, expected one or "
            "more: leave out empty batches"
        )


def check_run(
    model: nn.Module,
    batches: Pairs,
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer,
    device: torch.device | str,
    epochs: int | range,
    validation: Pairs | None,
    scheduler: Any,
    step: Any,
    autosave: Any,
) -> tuple[torch.device, range]:
    """Check everything that `fit` is given; return the device, with its index, and the epoch numbers.

    >>> model = nn.Linear(4, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> check_run(model, [], nn.CrossEntropyLoss(), optimizer, "cpu", 3, None, None, None, None)
    (device(type='cpu'), range(0, 3))
    """
    check_arguments(model=model, batches=batches, loss_fn=loss_fn, optimizer=optimizer)
    optional = {"validation": validation, "scheduler": scheduler, "step": step}
    check_arguments(**{name: value for name, value in optional.items() if value is not None})
    numbers = epochs
    if not isinstance(numbers, range):
        numbers = range(
            whole_number("epochs", numbers, 0, "give the number of passes over the data, 0 or more")
        )
    elif numbers and min(numbers[0], numbers[-1]) < 0:
        raise ValueError(
            f"epochs={numbers} has a negative number, expected epochs counted from 0: range(3, 10) goes on "
            "after three that are finished"
        )
    if step is not None and step.optimizer is not optimizer:
        raise ValueError("step has another optimizer than fit was given: build it as Step(optimizer, …)")
    if scheduler is not None and scheduler is getattr(step, "scheduler", None):
        raise ValueError(
            f"scheduler is {described(scheduler)}, which the Step already steps, so it would be stepped "
            "after each epoch and after each step: give it to one of the two"
        )
    if step is not None and step.accumulate > 1 and loss_reduction(loss_fn) == "sum":
        raise ValueError(
            f"accumulate={step.accumulate} with a loss that has reduction='sum': accumulated batches are "
            "weighted as means, so use reduction='mean'"
        )
    if autosave is not None:
        by_steps = getattr(step, "scheduler", None)
        if scheduler is not None and by_steps is not None:
            raise ValueError(
                "both scheduler and step have a schedule, and autosave saves only one: give one, by "
                "epochs to fit or by steps to Step"
            )
        _check_autosave(autosave, model, optimizer, scheduler or by_steps, epochs)
        for loader in (batches, validation):
            autosave.check_loader(loader)
    device = check_placement(model, device, loss_fn=loss_fn, optimizer=optimizer)
    check_schedule(scheduler, optimizer, len(numbers))
    if step is not None and step.scheduler is not None:
        check_schedule(
            step.scheduler, optimizer, len(numbers) * math.ceil(length_hint(batches) / step.accumulate)
        )
    for name, each in (("batches", batches), ("validation", validation)):
        if _once(each) and len(numbers) > 1:
            raise ValueError(
                f"{name} is {described(each)}, which is exhausted after one pass, but there are "
                f"{len(numbers)} epochs: give a list, a DataLoader or Batches"
            )
    return device, numbers


def _once(batches: Any) -> bool:
    """Return whether the batches are an iterator of Python or of a DataLoader, which gives them only once."""
    known = type(batches).__module__ in ("builtins", "itertools", "torch.utils.data.dataloader")
    return known and hasattr(batches, "__next__")


def _check_autosave(autosave: Any, model: Any, optimizer: Any, scheduler: Any, epochs: Any) -> None:
    if isinstance(autosave, type) or not hasattr(autosave, "attach_fit"):
        raise TypeError(
            f"autosave is a {type(autosave).__name__}: give an AutoSave, as in "
            "`with AutoSave(folder, model=model, optimizer=optimizer) as saves: fit(…, autosave=saves)`"
        )
    for name, given in (("model", model), ("optimizer", optimizer), ("scheduler", scheduler)):
        if getattr(autosave, name) is not given:
            raise ValueError(f"autosave has another {name} than fit was given: give the same one to both")
    if isinstance(epochs, range):
        raise ValueError(
            f"epochs is {epochs} with autosave, which itself finds where to continue: give the number of "
            "epochs of the whole run"
        )


def check_placement(
    model: nn.Module, device: torch.device | str, *, loss_fn: Any = None, optimizer: Any = None
) -> torch.device:
    """Return `device` with its index, after checking that everything which computes is on it.

    >>> check_placement(nn.Linear(4, 3), "cpu")
    device(type='cpu')
    """
    device = torch.empty(0, device=choose_device(device)).device  # "cuda" -> cuda:0, as tensors report it
    _check_tensors("the model", model, device, "move the model first: model.to(device)")
    if isinstance(loss_fn, nn.Module):
        _check_tensors("the loss function", loss_fn, device, "move it too: loss_fn.to(device)")
    if optimizer is not None:
        _check_optimizer(optimizer, model, device)
    return device


def _check_tensors(owner: str, obj: Any, device: torch.device, remedy: str) -> None:
    if isinstance(obj, nn.Module) and _is_on(obj, device):  # in half the time of looking with names
        return
    for name, found in tensor_devices(obj).items():
        if found != device:
            raise DeviceError(f"{owner} has {name!r} on {found}, but the batches go to {device}: {remedy}")


def _is_on(module: nn.Module, device: torch.device) -> bool:
    for tensors in (module._parameters, module._buffers):
        for tensor in tensors.values():
            if tensor is not None and tensor.device != device:
                return False
    return all(part is None or _is_on(part, device) for part in module._modules.values())


def _check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, device: torch.device) -> None:
    rebuild = "build the optimizer after model.to(device), from model.parameters()"
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    ours = {id(parameter) for parameter in model.parameters()}
    shared = [parameter for parameter in held if id(parameter) in ours]
    if not shared:
        where = ", ".join(sorted({str(parameter.device) for parameter in held}))
        raise DeviceError(
            f"the optimizer holds none of the model's parameters: its own are on {where}, the model is on "
            f"{device}, so training would change nothing: {rebuild}"
        )
    if not any(parameter.requires_grad for parameter in shared):
        raise ValueError(
            f"all {len(shared)} parameters that the optimizer holds are frozen (requires_grad=False), so "
            "training would change nothing: unfreeze some with model.requires_grad_(True), or give the "
            "optimizer those that are not frozen"
        )
    _check_tensors("the optimizer", [group["params"] for group in optimizer.param_groups], device, rebuild)
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.ndim and value.device != device:  # not a step counter
                raise DeviceError(
                    f"the optimizer keeps {name!r} on {value.device}, but the model is on {device}: it was "
                    f"moved after the first step; {rebuild}"
                )


def check_schedule(scheduler: Any, optimizer: Any, steps: int = 0) -> None:
    """Refuse a scheduler of another optimizer, or one that ends within the next `steps` steps.

    >>> check_schedule(None, torch.optim.SGD(nn.Linear(4, 3).parameters()))  # says nothing
    """
    total = getattr(scheduler, "total_steps", None)  # of OneCycleLR
    if isinstance(total, int) and scheduler.last_epoch + steps > total:
        raise ValueError(
            f"scheduler is {described(scheduler)} of {total} steps, {scheduler.last_epoch} of them done, but "
            f"would be stepped {steps} times here: build it with total_steps={steps} (fit "
            "steps its scheduler once an epoch, a Step steps its own in every step)"
        )
    theirs = getattr(getattr(scheduler, "optimizer", None), "param_groups", None)
    if theirs is not None and not any(group is ours for group in theirs for ours in optimizer.param_groups):
        raise ValueError(
            f"scheduler is {described(scheduler)} of another optimizer, expected one of the "
            "optimizer given, whose learning rate would never change: build a new one, "
            f"{type(scheduler).__name__}(optimizer, …)"
        )


def check_weights(model: nn.Module, epoch: int) -> None:
    """Refuse parameters that hold NaN or infinity, which the last step may have made; mostly one host read.

    >>> check_weights(nn.Linear(4, 3), epoch=1)  # says nothing
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad and p.numel()]
    if not named:
        return
    sums = torch.stack(
        [p.detach().sum() for _, p in named]
    )  # the fastest check: a sum is finite only if all its terms are
    if torch.isfinite(sums).all():
        return
    for name, parameter in named:
        value = torch.linalg.vector_norm(parameter.detach(), math.inf).item()
        if not math.isfinite(value):  # else the sum alone was too large for its type
            found = f"the weights {name!r} are not finite after epoch {epoch}, although its losses were"
            raise NonFiniteLossError(value, epoch, 0, found)


def loss_reduction(loss_fn: Any) -> str:
    """Return how the loss of a batch combines those of its samples: ``"mean"`` or ``"sum"``.

    >>> loss_reduction(nn.CrossEntropyLoss())
    'mean'
    """
    reduction = str(getattr(loss_fn, "reduction", "mean"))  # a plain function is assumed to average
    if reduction in ("mean", "sum"):
        return reduction
    raise ValueError(
        f"the loss function has reduction={reduction!r}, which gives no single number to train on: "
        "use reduction='mean' (or 'sum')"
    )


def class_indices(logits: Any, targets: Any) -> bool:
    """Return whether `targets` are class indices ``[N, …]`` for logits ``[N, C, …]``.

    >>> class_indices(torch.zeros(2, 3), torch.tensor([0, 1]))
    True
    """
    return (
        isinstance(logits, Tensor)
        and isinstance(targets, Tensor)
        and not (targets.is_floating_point() or targets.is_complex())
        and logits.ndim == targets.ndim + 1
    )


def ignored_label(loss_fn: Any) -> int | None:
    """Return the label that the loss ignores, if any.

    >>> ignored_label(nn.CrossEntropyLoss())
    -100
    """
    label = -100 if loss_fn in (F.cross_entropy, F.nll_loss) else getattr(loss_fn, "ignore_index", None)
    return label if isinstance(label, int) else None


class Feed:
    """A loop's batches and loss function: the first batch and its loss are checked as they pass.

    Labels in memory are all checked before the first step. Others that arrive on the CPU are checked as they
    pass, in every epoch, since shuffling may bring new ones: after a label out of range, a process cannot use
    the GPU any more. Labels on the device, where each check waits for it, are checked in the first pass only.
    On the CPU, the loss checks labels itself.

    In a ``with`` block, an error from the loop gets a note that says which batch it was, and what was in it.

    >>> batches = [(torch.zeros(2, 4), torch.tensor([0, 1]))]
    >>> with Feed(batches, nn.CrossEntropyLoss(), torch.device("cpu")) as feed:
    ...     losses = [feed.loss(nn.Linear(4, 3)(inputs), targets) for inputs, targets in feed]
    """

    def __init__(
        self,
        batches: Pairs,
        loss_fn: LossFunction,
        device: torch.device,
        *,
        losses: Any = None,
        on_device: bool = True,
        name: str = "",
    ) -> None:
        self.batches, self.loss_fn, self.device = batches, loss_fn, device
        self._losses = losses  # where training collects them; None if nothing is trained
        self._on_device = on_device
        self._name = name  # of the data in messages, if not "batches"
        self._number = 0  # of the batch that the loop has, counted from 1 …
        self._batch: Any = None  # … and the batch itself
        self._dimensions = 0  # of the targets whose loss was checked
        self._classes = 0  # known from the first outputs; 0: no labels to check

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._batch is not None and isinstance(error, Exception) and hasattr(error, "add_note"):
            error.add_note(f"The batch of {self._step} has {_in_words(self._batch)}. {PAGE}")

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for number, batch in enumerate(self.batches, 1):
            if not self._dimensions:
                check_pair(batch, self._name or "batches")
            self._number, self._batch = number, batch
            if self._classes:
                self._check_labels()
            yield batch
            self._batch = None  # an error while fetching the next one is not about this one
        self._on_device = False

    @property
    def _step(self) -> str:
        """Name this step and, while training, say whether earlier steps have changed the weights."""
        epoch = getattr(self._losses, "epoch", 0)
        number = self._number if self._losses is None else len(self._losses) + 1
        named = f"epoch {epoch}, step {number}" if epoch > 1 else f"step {number}"
        changed = epoch and epoch + number > 2
        named = f"{named} (the weights have learned from the batches before it)" if changed else named
        return f"{self._name}: {named}" if self._name else named

    def _check_labels(self) -> None:
        targets = self._batch[1]
        if targets.device.type == "cpu" or self._on_device:
            _check_range(targets, self._classes, self._step, ignored_label(self.loss_fn))

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Return the loss of a batch; that of the first one is checked."""
        if targets.ndim == self._dimensions:
            return self.loss_fn(outputs, targets)
        self._dimensions = targets.ndim
        if class_indices(outputs, targets) and (self.device.type != "cpu" or by_class(self.loss_fn)):
            in_memory = self._on_device and check_labels(self.batches, outputs.shape[1], self.loss_fn)
            if self.device.type != "cpu" and not in_memory:  # on the CPU the loss checks labels itself
                self._classes = outputs.shape[1]
                self._check_labels()
        if _outer(outputs, targets):
            with _NoOuter(outputs, targets, self._step):
                loss = self.loss_fn(outputs, targets)
        else:
            loss = self.loss_fn(outputs, targets)
        self._check_loss(loss, outputs)
        return loss

    def _check_loss(self, loss: Any, outputs: Any) -> None:
        name = str(getattr(self.loss_fn, "__name__", type(self.loss_fn).__name__))
        if not isinstance(loss, Tensor):
            raise TypeError(
                f"{self._step}: {name} returned {described(loss)}, expected a tensor of one "
                "number: return the loss itself, without .item() or float()"
            )
        if loss.ndim:
            raise ValueError(
                f"{self._step}: the loss function returned a tensor of shape {list(loss.shape)}, expected "
                "one number: use reduction='mean' (or 'sum')"
            )
        if self._losses is None:
            return
        if not loss.requires_grad:
            detached = isinstance(outputs, Tensor) and not outputs.requires_grad
            where = "the model's outputs have" if detached else f"{name} returned a loss that has"
            raise ValueError(
                f"{self._step}: {where} no gradient, expected one for the backward pass: compute without "
                "torch.no_grad(), detach(), argmax() and NumPy, and leave some of the model's parameters "
                "trainable"
            )
        if loss.device.type == "cpu" and not math.isfinite(loss.item()):  # elsewhere reading it would wait
            raise NonFiniteLossError(loss.item(), self._losses.epoch, len(self._losses) + 1)


def _in_words(batch: Any) -> str:
    """Describe a batch for the note of an error."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        return f"{described(batch)}, expected a pair (inputs, targets)"
    words = [
        f"{described(part)} on {part.device}" if isinstance(part, Tensor) else described(part)
        for part in batch
    ]
    return f"{words[0]} as inputs and {words[1]} as targets"


def check_labels(batches: Any, classes: int, loss_fn: Any, name: str = "") -> bool:
    """Refuse a label out of range, wherever it is in batches that are in memory; return whether they are.

    In memory are those of a list, of ``Batches``, and of a ``DataLoader`` over a ``TensorDataset``.

    >>> check_labels([(torch.zeros(2, 4), torch.tensor([0, 1]))], 3, nn.CrossEntropyLoss())
    True
    """
    found = _targets_in_memory(batches)
    for where, targets in found:
        _check_range(targets, classes, f"{name}: {where}" if name else where, ignored_label(loss_fn))
    return bool(found)


def by_class(loss_fn: Any) -> bool:
    """Return whether integer targets of this loss can only be class indices.

    >>> by_class(nn.CrossEntropyLoss()), by_class(nn.MSELoss())
    (True, False)
    """
    return loss_fn in CLASS_LOSSES or isinstance(loss_fn, CLASS_LOSSES[:2])


def _targets_in_memory(batches: Any) -> list[tuple[str, Tensor]]:
    if isinstance(batches, list | tuple):
        pairs = [each if isinstance(each, list | tuple) and len(each) == 2 else (0, 0) for each in batches]
        named = [(f"step {number}", targets) for number, (_, targets) in enumerate(pairs, 1)]
        return [(where, targets) for where, targets in named if isinstance(targets, Tensor)]
    if isinstance(batches, DataLoader) and batches.collate_fn is default_collate:
        batches = batches.dataset if isinstance(batches.dataset, TensorDataset) else None
    tensors = getattr(batches, "tensors", ())
    return [("the data", tensors[1])] if isinstance(tensors, tuple) and len(tensors) == 2 else []


def _outer(outputs: Any, targets: Tensor) -> bool:
    """Return whether broadcasting would compare each output with each target: [N, 1] with [N]."""
    if not isinstance(outputs, Tensor) or outputs.ndim == targets.ndim:
        return False
    sizes = list(zip_longest(reversed(outputs.shape), reversed(targets.shape), fillvalue=1))
    broadcast = all(one == two or 1 in (one, two) for one, two in sizes)
    return broadcast and any(one < two for one, two in sizes) and any(one > two for one, two in sizes)


class _NoOuter(TorchFunctionMode):
    """Refuse any function that broadcasts outputs and targets themselves against one another.

    A loss may first bring them to one shape, or deliberately pair all samples with ``targets[:, None]``.
    """

    def __init__(self, outputs: Tensor, targets: Tensor, where: str) -> None:
        super().__init__()
        self.outputs, self.targets, self.where = outputs, targets, where

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [id(value) for value in (*args, *kwargs.values())]
        together = id(self.outputs) in given and id(self.targets) in given
        if together and func not in (F.cross_entropy, F.nll_loss):
            raise ValueError(
                f"{self.where}: the loss would compare each of {described(self.outputs)}, the outputs, with "
                f"each of {described(self.targets)}, the targets, as these shapes broadcast: "
                f"{_shape_remedy(self.outputs, self.targets)}"
            )
        return func(*args, **kwargs)


def _check_range(targets: Tensor, classes: int, where: str, ignored: int | None) -> None:
    low, high = _extremes(targets)
    if (low < 0 or high >= classes) and ignored is not None:
        low, high = _extremes(targets[targets.long() != ignored])  # uint8 cannot hold -100
    if low < 0 or high >= classes:
        raise ValueError(
            f"{where}: the targets hold {low if low < 0 else high}, but must lie in 0 to {classes - 1}, "
            f"as the model gives {classes} logits a sample: correct the labels, give the model more outputs, "
            "or name one label to ignore: nn.CrossEntropyLoss(ignore_index=…)"
        )


def _extremes(targets: Tensor) -> tuple[int, int]:
    """Return the lowest and the highest label, or zeros if there is none; waits for a GPU."""
    if not targets.numel():
        return 0, 0
    low, high = torch.stack(targets.aminmax()).tolist()
    return low, high


def _shape_remedy(outputs: Tensor, targets: Tensor) -> str:
    """Say how to bring the targets to the shape of the outputs."""
    if targets.numel() == outputs.numel():
        how = f"give targets.view({', '.join(map(str, [-1, *outputs.shape[1:]]))})"
        if outputs.ndim == targets.ndim + 1 and outputs.shape[-1] == 1:
            how = f"give targets.unsqueeze({targets.ndim})"
        elif outputs.ndim == targets.ndim - 1 and targets.shape[-1] == 1:
            how = f"give targets.squeeze({outputs.ndim})"
    elif targets.shape[:1] != outputs.shape[:1]:
        how = (
            f"the model gives {len(outputs) if outputs.ndim else 0} outputs for {len(targets)} "
            "targets: pair each input with its target"
        )
    else:
        how = "give such targets, or a model with as many outputs as there are targets"
    return f"targets of the outputs' shape are expected, {list(outputs.shape)}: {how}"
