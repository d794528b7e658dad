"""Choose a device, describe it, move a batch to it, and find where tensors are."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from gpulesson import _hardware
from gpulesson._arguments import refuse
from gpulesson._hardware import DeviceInfo
from gpulesson._report import DeviceReport, built_for, device_report

__all__ = [
    "DeviceError",
    "DeviceInfo",
    "DeviceReport",
    "choose_device",
    "device_name",
    "device_report",
    "devices_of",
    "named_device",
    "tensor_devices",
    "to_device",
]

Batch = TypeVar("Batch")
CONTAINERS = "tensors, in containers or alone"
NAMES = "give 'cpu', 'cuda' or torch.device('cuda:0'), for instance"


class DeviceError(RuntimeError):
    """A device does not exist, or tensors are not on the expected one."""


def choose_device(name: str | torch.device | None = None) -> torch.device:
    """Return the device to compute on: the one named, else the accelerator, else the CPU.

    The order: the argument, the environment variable ``GPULESSON_DEVICE``, the accelerator that torch finds,
    the CPU.

    Parameters
    ----------
    name : str or torch.device, optional
        Any name that ``torch.device`` takes, for example ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``
        or ``"xpu"``. ``"gpu"`` means any accelerator; without one, that is an error.

    Returns
    -------
    torch.device
        A device that exists. Torch's default device stays as it is.

    Raises
    ------
    DeviceError
        The name is unknown, or the device does not exist. The message lists the devices that do.

    Examples
    --------
    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name is not None:
        if not isinstance(name, str | int | torch.device):
            refuse("device", name, "a device or its name", NAMES, error=DeviceError)
        return _existing(str(name), "the argument")
    if wish := os.environ.get("GPULESSON_DEVICE", "").strip():
        return _existing(wish, "the environment variable GPULESSON_DEVICE")
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def device_name(device: torch.device | str) -> str:
    """Return the name of the hardware, for example ``"NVIDIA H200"``, or the processor's name for the CPU.

    Parameters
    ----------
    device : torch.device or str
        As in `choose_device`.

    Returns
    -------
    str

    Raises
    ------
    DeviceError
        The device does not exist.

    Examples
    --------
    >>> isinstance(device_name("cpu"), str)
    True
    """
    return _hardware.device_name(choose_device(device))


def to_device(batch: Batch, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
    """Move every tensor of a batch to a device, and keep the batch's structure.

    Parameters
    ----------
    batch : Tensor or nested tuple, namedtuple, list, mapping
        Anything else, for example a string or a number, is returned as it is.
    device : torch.device or str
        Where the tensors go.
    non_blocking : bool
        Do not wait for the copy. It helps only from pinned memory. Use it for CUDA only: on MPS
        the copy may still read a batch that has been freed (pytorch/pytorch#189690).

    Returns
    -------
    same type as `batch`
        New containers; a tensor that already is on `device` is not copied.

    Raises
    ------
    TypeError
        `batch` is or contains a model, an optimizer, a loader, a dataset, a set, a generator or a class,
        whose tensors would not be moved.
    DeviceError
        `device` is not the name of a device.

    Examples
    --------
    >>> batch = {"image": torch.zeros(2, 3), "name": "boots"}
    >>> to_device(batch, "cpu")["image"].device
    device(type='cpu')
    """
    if isinstance(batch, Tensor) and isinstance(device, torch.device):
        # the common case, in every step of a training run: nothing to look through
        return batch.to(device, non_blocking=non_blocking)  # type: ignore[return-value]
    return cast(Batch, _moved(batch, named_device(device), non_blocking))


def tensor_devices(obj: Any) -> dict[str, torch.device]:
    """Return the device of each tensor of a model, an optimizer or a batch.

    Parameters
    ----------
    obj : torch.nn.Module, torch.optim.Optimizer, Tensor, or nested tuple, list, mapping
        Of a module: its parameters *and buffers*; of an optimizer: its parameters and state.

    Returns
    -------
    dict of str to torch.device
        Named as in ``state_dict``, for example ``"layers.0.weight"``; a lone tensor is called ``"tensor"``.

    Raises
    ------
    TypeError
        `obj` is or contains a loader, a dataset, a set, a generator or a class.

    Examples
    --------
    >>> tensor_devices(torch.nn.Linear(2, 1))
    {'weight': device(type='cpu'), 'bias': device(type='cpu')}
    """
    return {name or "tensor": tensor.device for name, tensor in _named_tensors(obj)}


def devices_of(obj: Any) -> set[torch.device]:
    """Return the set of devices that hold the tensors of `obj`; see `tensor_devices`.

    Examples
    --------
    >>> devices_of([torch.zeros(2), torch.zeros(3)])
    {device(type='cpu')}
    """
    return set(tensor_devices(obj).values())


def named_device(name: str | torch.device, asked: str = "") -> torch.device:
    """Return the device of this name, whether or not it exists; `choose_device` checks that, too.

    Raises
    ------
    DeviceError
        The name is unknown; `asked` is how the message begins.

    Examples
    --------
    >>> named_device("cuda:1")
    device(type='cuda', index=1)
    """
    try:
        return torch.device(name)
    except (TypeError, ValueError):  # not a name
        refuse("device", name, "a device or its name", NAMES, error=DeviceError)
    except RuntimeError as error:
        raise DeviceError(
            f"{asked or f'device {name!r}'} is not the name of a device. Names are cpu, gpu (any "
            "accelerator, in choose_device), cuda, cuda:0, cuda:1, …, mps, xpu. "
            f"On this machine: {', '.join(_present())}."
        ) from error


def _existing(name: str, origin: str) -> torch.device:
    """Return the device that `name` means, or raise an error that says where the name came from."""
    asked = f"device {name!r} (from {origin})"
    if name.lower() == "gpu":
        if found := torch.accelerator.current_accelerator(check_available=True):
            return found
        raise DeviceError(f"{asked} asks for a GPU, and torch finds none here. {_remedy()}")
    device = named_device(name.lower(), asked)
    if device.type == "meta" or (device.index or 0) < _count(device.type):
        return device
    if device.type == "cpu" or _count(device.type):
        raise DeviceError(
            f"{asked} is not there. On this machine: {', '.join(_present())}. "
            "Name one of these; they are counted from 0."
        )
    raise DeviceError(f"{asked} is not there: torch finds no {device.type} device. {_remedy()}")


def _count(device_type: str) -> int:
    """Return how many devices of this type torch can use."""
    try:
        module = torch.get_device_module(device_type)
    except RuntimeError:  # a type that this build of torch cannot use
        return 0
    return int(module.device_count()) if module.is_available() else 0


def _present() -> list[str]:
    return ["cpu"] + [f"{kind}:{i}" for kind in ("cuda", "mps", "xpu") for i in range(_count(kind))]


def _remedy() -> str:
    return (
        f"On this machine: {', '.join(_present())} (torch {torch.__version__}, built for {built_for()}). "
        "Run `python -m gpulesson` to see what is missing and what to install, "
        "or use 'cpu', on which every lesson runs too."
    )


def _moved(item: Any, device: torch.device, non_blocking: bool) -> Any:
    if isinstance(item, Tensor):
        return item.to(device, non_blocking=non_blocking)
    if isinstance(item, Mapping):
        values = {key: _moved(value, device, non_blocking) for key, value in item.items()}
        if type(item) is dict or not hasattr(item, "update"):
            return values
        moved = copy.copy(item)  # keeps the attributes of a subclass of dict
        moved.update(values)
        return moved
    if isinstance(item, tuple | list):
        make = getattr(item, "_make", type(item))  # a namedtuple is built by _make
        return make([_moved(value, device, non_blocking) for value in item])
    _refuse_holder("batch", item)
    if isinstance(item, nn.Module | torch.optim.Optimizer):
        remedy = "a model moves itself, model.to(device), before its optimizer is built"
        refuse("batch", item, CONTAINERS, remedy)
    return item


def _refuse_holder(name: str, item: Any) -> None:
    """Refuse what holds or yields tensors but is not searched: silence would look like success."""
    if isinstance(item, type | DataLoader | Dataset | Iterator | AbstractSet) or hasattr(item, "tensors"):
        remedy = "give single batches of a loader or dataset, and a list instead of a generator"
        refuse(name, item, CONTAINERS, remedy)


def _named_tensors(obj: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(obj, Tensor):
        yield prefix, obj
    elif isinstance(obj, nn.Module):
        for name, module in obj.named_modules(prefix=prefix):  # named_parameters takes three times as long
            for key, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None:
                    yield f"{name}.{key}" if name else key, tensor
    elif isinstance(obj, torch.optim.Optimizer):
        groups = [group["params"] for group in obj.param_groups]
        yield from _named_tensors({"params": groups, "state": list(obj.state.values())}, prefix)
    elif isinstance(obj, Mapping):
        for key, value in obj.items():
            yield from _named_tensors(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(obj, tuple | list):
        for index, value in enumerate(obj):
            yield from _named_tensors(value, f"{prefix}.{index}" if prefix else str(index))
    else:
        _refuse_holder("obj", obj)
