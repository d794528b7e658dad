"""What `checkpoint` has to know of a run's objects: mistakes, what was loaded into them, the way back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gpulesson._files import printable

_Undo = Callable[[], None]


def unwrapped(model: Any) -> Any:
    """Return the model that a ``DistributedDataParallel`` wraps, whose names are those of one process."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


_NEEDED = {
    "model": ["state_dict()", "named_parameters()"],
    "optimizer": ["state_dict()", "param_groups"],
    "scheduler": ["state_dict()", "step()"],
    "generator": ["get_state()"],
}


def find_mistake(model: Any, optimizer: Any, scheduler: Any, generator: Any) -> str | None:
    """Say which part has no state, or does not belong to the others."""
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "generator": generator}
    for name, part in parts.items():
        lacks = isinstance(part, type) or any(not hasattr(part, each.strip("()")) for each in _NEEDED[name])
        mixed = name == "scheduler" and hasattr(part, "param_groups")
        if (lacks or mixed) and (part is not None or name == "model"):
            needed = " and ".join(_NEEDED[name]) + (", but no param_groups" if mixed else "")
            return f"the {name} is {printable(repr(part), 100)}: give an object that has {needed}"
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor) and (nn.parameter.is_lazy(value) or value.is_meta):
            return (
                f"the model's {printable(name)} has no values yet: call a lazy model once on a batch, and "
                "move one from the meta device with to_empty(device=…)"
            )
    if optimizer is not None:
        ours = {id(parameter) for _, parameter in model.named_parameters()}
        if not any(id(each) in ours for group in optimizer.param_groups for each in group["params"]):
            return "the optimizer changes no parameter of this model: build it from model.parameters()"
    other = None if optimizer is None else getattr(scheduler, "optimizer", None)
    if other is not None and other.param_groups is not optimizer.param_groups:
        return "the scheduler changes the learning rate of another optimizer: build it from this one"
    return None


def find_not_finite(model: nn.Module) -> str | None:
    """Name a parameter that holds NaN or infinity, or a buffer that holds NaN (a mask may hold infinity).

    Only what the state dict holds is looked at. One small operation a tensor, and one transfer a device.
    """
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    flags: dict[torch.device, dict[str, Tensor]] = {}
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor) and not _is_extra(name) and _has_nan(value):
            damaged = torch.isnan(value) if name in buffers else value.isfinite().logical_not_()
            flags.setdefault(value.device, {})[name] = damaged.any()
    for found in flags.values():
        for name, flag in zip(found, torch.stack(list(found.values())).tolist(), strict=True):
            if flag:
                return name
    return None


def _has_nan(tensor: Tensor) -> bool:
    number = tensor.is_floating_point() or tensor.is_complex()
    # numbers of 8 bits know no such operation
    return number and tensor.layout is torch.strided and tensor.element_size() > 1


def _is_extra(name: str) -> bool:
    """Return whether that entry of a state dict is what a module's ``get_extra_state()`` gave: anything."""
    return name.rpartition(".")[2] == "_extra_state"


def tensor_outline(state: Mapping[str, Any]) -> dict[str, str]:
    """Describe each entry of a model's state dict, by ``model NAME``."""
    outline = {}
    for name, value in state.items():
        if _is_extra(name):
            outline[f"model {name}"] = "extra state"
        elif isinstance(value, Tensor):
            outline[f"model {name}"] = f"{value.dtype} {list(value.shape)}"
        else:
            outline[f"model {name}"] = type(value).__name__
    return outline


def compare(saved: Mapping[str, str], given: Mapping[str, str]) -> list[str]:
    """Return a line for each difference between a file's outline and that of what is given, 12 at most."""
    names = [name for name in {**given, **saved} if saved.get(name) != given.get(name)]
    names = [name for name in names if not name.startswith("optimizer parameter")] or names  # they follow
    lines = [
        f"{printable(name)}: {printable(saved.get(name))} in the file, {printable(given.get(name))} given"
        for name in names[:12]
    ]
    return lines + ([f"and {len(names) - 12} more"] if len(names) > 12 else [])


def undo_point(model: Any, optimizer: Any, scheduler: Any, generator: Any) -> _Undo:
    """Return a function that puts the state of now back.

    The model's tensors are copied to the host, since loading writes into them. An optimizer gets new tensors
    when it loads, so that its old ones need only be kept.
    """
    tensors = model.state_dict()
    for name, value in tensors.items():
        tensors[name] = value.to("cpu", copy=True) if isinstance(value, Tensor) else copy.deepcopy(value)
    attributes = [(part, dict(vars(part))) for part in (optimizer, scheduler) if part is not None]
    nested = None if scheduler is None else copy.deepcopy(scheduler.state_dict())
    numbers = None if generator is None else generator.get_state()

    def undo() -> None:
        model.load_state_dict(tensors)
        for part, old in attributes:
            vars(part).clear()
            vars(part).update(old)
        if scheduler is not None:
            scheduler.load_state_dict(nested)
        if generator is not None:
            generator.set_state(numbers)

    return undo


def load_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Load a state dict, and raise ValueError if the optimizer could not go on with it."""
    kinds = [_kinds(group) for group in optimizer.param_groups]
    # Optimizers and schedulers keep the very tensors they are given, and change them: hand them copies.
    optimizer.load_state_dict(copy.deepcopy(state))
    for group, before in zip(optimizer.param_groups, kinds, strict=True):
        _check_kinds("the optimizer", before, _kinds(group))
        if missing := before.keys() - group.keys():
            raise ValueError(f"the optimizer's state has no {printable(', '.join(sorted(missing)))}")
    # Only these two keep other shapes than the parameter's; of the optimizers of others we know nothing.
    known = type(optimizer).__module__.startswith("torch.optim.")
    same_shape = known and not isinstance(optimizer, torch.optim.LBFGS | torch.optim.Adafactor)
    for parameter, held in optimizer.state.items():
        if not isinstance(parameter, Tensor) or not isinstance(held, dict):
            if known:
                raise ValueError("the optimizer's state has entries that belong to no parameter")
            continue
        for name, value in held.items():
            if same_shape and isinstance(value, Tensor) and value.ndim and value.shape != parameter.shape:
                raise ValueError(
                    f"the optimizer's {printable(name)} has shape {list(value.shape)} for a parameter of "
                    f"shape {list(parameter.shape)}"
                )


def load_scheduler(scheduler: Any, state: Mapping[str, Any]) -> None:
    """Load a state dict, and raise ValueError if it would replace a method or change a value's kind."""
    before = scheduler.state_dict()
    if wrong := [name for name in state if name not in before and hasattr(scheduler, name)]:
        raise ValueError(f"the scheduler's state would replace {printable(', '.join(map(str, wrong)))}")
    kinds = _kinds(before)
    scheduler.load_state_dict(copy.deepcopy(state))
    _check_kinds("the scheduler", kinds, _kinds(scheduler.state_dict()))


def _kinds(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _kind(value) for name, value in values.items() if name != "params"}


def _kind(value: Any) -> str:
    if isinstance(value, bool | int | float) or (isinstance(value, Tensor) and value.numel() == 1):
        return "a number"
    if isinstance(value, list | tuple):
        return _list_of(map(_kind, value))
    return "" if value is None else type(value).__name__


def _list_of(kinds: Iterable[str]) -> str:
    found = sorted({kind for kind in kinds if kind})
    return f"a list of {' and '.join(found)}" if found else ""


def _check_kinds(owner: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    for name, kind in before.items():
        found = after.get(name, "")
        if kind and found and kind != found:  # what was None may have become something
            raise ValueError(f"{owner}'s {printable(name)} is {found}, not {kind}")
