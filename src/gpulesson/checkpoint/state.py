"""The objects of a run: mistakes among them, whether a state fits, loading that can be undone."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gpulesson._arguments import described
from gpulesson._files import printable
from gpulesson.checkpoint.differences import difference, wrong_number
from gpulesson.checkpoint.rng import find_wrong_generator, rng_state, set_rng_state
from gpulesson.checkpoint.tensorfile import Refused


class RunParts(NamedTuple):
    """The objects of a run whose states are saved together."""

    model: Any
    optimizer: Any = None
    scheduler: Any = None
    generator: Any = None


def unwrapped(model: Any) -> Any:
    """Return the model inside a ``DistributedDataParallel``, with the names that one process has."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


# --- mistakes


_NEEDED = {
    "model": ["state_dict()", "named_parameters()"],
    "optimizer": ["state_dict()", "param_groups"],
    "scheduler": ["state_dict()", "step()"],
    "generator": ["get_state()"],
}


def find_mistake(parts: RunParts) -> str | None:
    """Say which part has no state or does not belong to the others."""
    for name, part in parts._asdict().items():
        if (part is not None or name == "model") and (wrong := _find_other_kind(name, part)):
            return wrong
    return _find_no_values(parts.model) or _find_stranger(*parts[:3])


def _find_other_kind(name: str, part: Any) -> str | None:
    lacks = isinstance(part, type) or any(not hasattr(part, each.strip("()")) for each in _NEEDED[name])
    mixed = name == "scheduler" and hasattr(part, "param_groups")
    if not lacks and not mixed:
        return None
    needed = " and ".join(_NEEDED[name]) + (", but no param_groups" if mixed else "")
    return f"the {name} is {printable(described(part), 100)}: give an object that has {needed}"


def _find_no_values(model: Any) -> str | None:
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor) and (nn.parameter.is_lazy(value) or value.is_meta):
            return (
                f"the model's {printable(name)} has no values yet: call a lazy model once on a batch, and "
                "move one from the meta device with to_empty(device=…)"
            )
    return None


def _find_stranger(model: Any, optimizer: Any, scheduler: Any) -> str | None:
    if optimizer is None:
        return None
    ours = {id(parameter) for _, parameter in model.named_parameters()}
    if not any(id(each) in ours for group in optimizer.param_groups for each in group["params"]):
        return "the optimizer changes no parameter of this model: build it from model.parameters()"
    names = _parameter_names(model, optimizer)
    if twice := [name for name in names if name.startswith("not of") and names.count(name) > 1]:
        return (
            f"the optimizer has {len(twice)} parameters ({printable(twice[0])}) that cannot be "
            "told apart: make them part of the model, or give the optimizer pairs of a name and a parameter"
        )
    other = getattr(scheduler, "optimizer", None)
    if other is not None and other.param_groups is not optimizer.param_groups:
        return "the scheduler changes the learning rate of another optimizer: build it from this one"
    return None


def find_not_finite(model: nn.Module) -> str | None:
    """Name a parameter that holds NaN or infinity, or a buffer that holds NaN (a mask may hold infinity).

    It reads the least and the greatest number of each tensor in the state dict, which are NaN if one is.
    """
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor) and not _is_extra(name) and _may_hold_nan(value):
            number = torch.view_as_real(value) if value.is_complex() else value
            ends = torch.stack(torch.aminmax(number.detach()))
            if (ends.isnan() if name in buffers else ends.isfinite().logical_not_()).any():
                return name
    return None


def _may_hold_nan(tensor: Tensor) -> bool:
    number = tensor.numel() and (tensor.is_floating_point() or tensor.is_complex())
    # there is no aminmax for 8-bit floats
    return bool(number) and tensor.layout is torch.strided and tensor.element_size() > 1


def _is_extra(name: str) -> bool:
    """Return whether an entry of a state dict comes from ``get_extra_state()``, which may return anything."""
    return name.rpartition(".")[2] == "_extra_state"


# --- outlines of runs, to be compared


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


def outline(parts: RunParts) -> dict[str, str]:
    """Describe the parts of a run except the model: classes, and the optimizer's parameters by name."""
    model, optimizer, scheduler, generator = parts
    found = {}
    if optimizer is not None:
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        found["optimizer"] = f"{type(optimizer).__name__} with groups of {sizes} parameters"
        # the saved state refers to these numbers
        for place, name in enumerate(_parameter_names(model, optimizer)):
            found[f"optimizer parameter {place}"] = name
    if scheduler is not None:
        found["scheduler"] = type(scheduler).__name__
    if generator is not None:
        found["generator"] = f"a generator of the {generator.device.type}"
    return found


def _parameter_names(model: Any, optimizer: Any) -> list[str]:
    """Return the names of the optimizer's parameters in the model, or else in the optimizer itself."""
    ours = {parameter: name for name, parameter in model.named_parameters()}
    found = []
    for group in optimizer.param_groups:
        names = group.get("param_names") or [None] * len(group["params"])
        for parameter, name in zip(group["params"], names, strict=True):
            other = f"not of the model, {name or f'{parameter.dtype} {list(parameter.shape)}'}"
            found.append(ours.get(parameter, other))
    return found


def compare(saved: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Raise `Refused` with a line for each difference between two outlines, 12 at most."""
    names = [name for name in {**given, **saved} if saved.get(name) != given.get(name)]
    names = [
        name for name in names if not name.startswith("optimizer parameter")
    ] or names  # unless only they differ
    lines = [
        f"{printable(name)}: {printable(saved.get(name))} in the file, {printable(given.get(name))} given"
        for name in names[:12]
    ]
    if names:
        more = [f"and {len(names) - 12} more"] if len(names) > 12 else []
        raise Refused("\n  ".join(["these differ", *lines, *more]))


# --- loading


@contextmanager
def all_or_nothing(parts: RunParts) -> Iterator[None]:
    """After an error in the block, restore the parts of a run and the random states.

    The model's tensors are copied to the host, since loading overwrites them. An optimizer gets new tensors
    when it loads, so that its old ones need only be kept.
    """
    model, optimizer, scheduler, generator = parts
    tensors = model.state_dict()
    for name, value in tensors.items():
        tensors[name] = value.to("cpu", copy=True) if isinstance(value, Tensor) else copy.deepcopy(value)
    attributes = [(part, dict(vars(part))) for part in (optimizer, scheduler) if part is not None]
    nested = None if scheduler is None else copy.deepcopy(scheduler.state_dict())
    numbers = None if generator is None else generator.get_state()
    global_numbers = rng_state()
    try:
        yield
    except BaseException:
        model.load_state_dict(tensors)
        for part, old in attributes:
            vars(part).clear()
            vars(part).update(old)
        if scheduler is not None:
            scheduler.load_state_dict(nested)
        if generator is not None:
            generator.set_state(numbers)
        set_rng_state(global_numbers)
        raise


def find_wrong_state(scheduler: Any, generator: Any, states: Any) -> str | None:
    """Say what in a checkpoint's states the scheduler or the generator could not continue with."""
    if generator is not None:
        way = "the generator's state"
        wrong = difference(states.generator, generator.get_state(), way)
        if wrong := wrong or find_wrong_generator(states.generator, way):
            return wrong
    if scheduler is None:
        return None
    given, found = scheduler.state_dict(), states.scheduler
    if replaced := [name for name in found if name not in given and hasattr(scheduler, name)]:
        return f"the scheduler's state would replace {printable(replaced[0], 100)}"
    return difference(found, given, "the scheduler's state", firm=True) if _of_torch(scheduler) else None


_HOW = {"foreach": False, "fused": None, "capturable": False, "differentiable": False}
"""How an optimizer computes, at its simplest. These options belong to the machine: a file's are ignored."""


def load_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Load a state dict; `Refused` if the optimizer could not continue with it."""
    known = _of_torch(optimizer)
    # An optimizer keeps and changes the tensors that it is given: pass copies.
    state = copy.deepcopy(state)
    if known and (wrong := _find_wrong_layout(optimizer, state)):
        raise Refused(wrong)
    before = [_options(group) for group in optimizer.param_groups]
    for group, given in zip(state["param_groups"] if known else [], before, strict=known):
        group.update((name, given[name]) for name in _HOW if name in given)
    step = next((each for each in (_first_states, _try_a_step) if known and _works(each, optimizer)), None)
    try:
        optimizer.load_state_dict(state)
    except KeyError as error:
        raise Refused(f"the optimizer's state lacks {printable(error)}") from error
    except Exception as error:
        raise Refused(f"the optimizer does not accept this state: {printable(error)}") from error
    for number, (group, options) in enumerate(zip(optimizer.param_groups, before, strict=True)):
        if wrong := difference(_options(group), options, f"the optimizer's group {number}", more=True):
            raise Refused(wrong)
    try:
        expected = step(optimizer) if step else {}
    except Exception as error:
        raise Refused(
            f"the optimizer cannot take a step with these options and states: {printable(error, 200)}"
        ) from error
    for parameter, held in optimizer.state.items():
        if isinstance(parameter, Tensor) and isinstance(held, dict):
            _check_moments(parameter, held, expected.get(parameter))


def _check_moments(parameter: Tensor, held: dict[str, Any], expected: dict[str, Any] | None) -> None:
    """Compare the state of a parameter with that of a first step, and restore its strides."""
    if expected is not None:
        there = {name: value for name, value in held.items() if value is not None}
        first = {name: held.get(name) if name == "step" else value for name, value in expected.items()}
        if wrong := difference(there, first, "the state of a parameter"):
            raise Refused(wrong)
    for name, value in held.items():  # a file has no strides; fused steps need those of the parameter
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            held[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _find_wrong_layout(optimizer: Any, state: Mapping[str, Any]) -> str | None:
    """Say where a state dict differs from the optimizer's: in groups or in the parameters with a state."""
    groups = [{"params": group["params"]} for group in optimizer.state_dict()["param_groups"]]
    own = {"state": {}, "param_groups": groups}
    if wrong := difference(state, own, "the optimizer's state", more=True):
        return wrong
    numbers = {each for group in state["param_groups"] for each in group["params"]}
    for number, held in state["state"].items():
        if number not in numbers:
            return "the optimizer's state has entries that belong to no parameter"
        if wrong := difference(held, {}, "the state of a parameter", more=True):
            return wrong
        if "step" in held and (wrong := _wrong_step(held["step"])):
            return f"the optimizer's step is {wrong}"
    return None


def _wrong_step(value: Any) -> str | None:
    if isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 0:
        value = value.item()
    return wrong_number(value, "step")


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def _of_torch(part: Any) -> bool:
    return f"{type(part).__module__}.".startswith("torch.optim.")


def _works(step: Any, optimizer: Any) -> bool:
    with suppress(Exception):  # it needs a closure, reads values, or needs sparse gradients
        step(optimizer)
        return True
    return False


def _first_states(optimizer: Any) -> dict[Tensor, dict[str, Any]]:
    """Return the states that an optimizer of this class and these options makes at its first step.

    A second optimizer takes a step on meta tensors, after PyTorch has checked the options.
    """
    kind_of: Any = type(optimizer)
    twins: dict[Tensor, Tensor] = {}
    groups = []
    for group in optimizer.param_groups:
        alike: dict[Any, Tensor] = {}  # one twin for all parameters of a shape and dtype
        for parameter in group["params"]:
            form = parameter.shape, parameter.dtype
            if form not in alike:
                alike[form] = torch.empty_like(parameter, device="meta").requires_grad_()
                alike[form].grad = torch.empty_like(alike[form])
            twins[parameter] = alike[form]
        options = _options(group) | _HOW
        groups.append(options | {"params": list(alike.values())})
        known = inspect.signature(kind_of).parameters.keys() & options.keys()
        kind_of(list(alike.values()), **{name: options[name] for name in known})
    stepped = kind_of(groups)
    stepped.step()
    return {each: stepped.state[twin] for each, twin in twins.items() if twin in stepped.state}


def _try_a_step(optimizer: Any) -> dict[Tensor, dict[str, Any]]:
    """Take a step with a copy of the state on the CPU, for optimizers that cannot use meta tensors."""
    twin: Any = type(optimizer)(
        [
            {"params": [torch.zeros_like(each, device="cpu").requires_grad_() for each in group["params"]]}
            for group in optimizer.param_groups
        ]
    )
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for group in twin.param_groups:
        group.update(_HOW | ({"max_iter": 1} if "max_iter" in group else {}))

    def closure() -> Tensor:
        for group in twin.param_groups:
            for each in group["params"]:
                each.grad = torch.ones_like(each)
        return torch.tensor(1.0)

    twin.step(closure)
    return {}
