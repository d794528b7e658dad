"""Replacements for a tensor's attributes and methods that deal with devices."""

import functools
from numbers import Integral
from types import MethodType
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary

from practice_gpu import errors
from practice_gpu.device.events import TO_HOST
from practice_gpu.device.gpu import Bypass, PracticeGPU, as_device
from practice_gpu.device.ledger import CPU, HOST
from practice_gpu.patching.patches import Handler, Patches

_DEVICES = {str, torch.device}


class ToCopy(torch.autograd.Function):
    """A copy to another device that autograd follows: the gradient is copied back."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, gpu: PracticeGPU, target: int, call: str, non_blocking: bool
    ) -> torch.Tensor:
        ctx.gpu, ctx.source = gpu, gpu.ledger.index(tensor)
        return gpu.copy(tensor, target, call, non_blocking)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return move(ctx.gpu, gradient, ctx.source, ".to() in backward"), None, None, None, None


ToCopy._backward_cls.__name__ = "ToCopyBackward0"  # what grad_fn shows for CUDA


_true_device, _to_host = torch.Tensor.device.__get__, torch.Tensor.cpu  # the unpatched ones


def move(
    gpu: PracticeGPU, tensor: torch.Tensor, target: int, call: str, non_blocking: bool = False
) -> torch.Tensor:
    """Return `tensor` on device `target`: itself if it is already there, else a copy that autograd follows.

    A tensor that is really on another device, such as an Apple GPU, is copied from there first.
    """
    source = gpu.ledger.index(tensor)
    if source < 0 and _true_device(tensor).type != "cpu":
        with Bypass(gpu.thread_state.mode):
            tensor = _to_host(tensor)
    if source == target:
        return tensor
    if torch._C._get_tracing_state() is not None:
        raise errors.moved_in_trace()
    if tensor.requires_grad and torch.is_grad_enabled():
        moved: torch.Tensor = ToCopy.apply(tensor, gpu, target, call, non_blocking)
        return moved
    return gpu.copy(tensor, target, call, non_blocking)


class Method:
    """Replaces a method of :class:`torch.Tensor`; as in PyTorch, ``__torch_function__`` comes first.

    It equals the method that it replaces, so that a subclass with a table of functions, such as torchvision's
    images, finds it there, whichever of the two the table holds.
    """

    def __init__(self, gpu: PracticeGPU, handler: Handler, original: Any) -> None:
        functools.update_wrapper(self, original)
        self._gpu, self._handler, self._original = gpu, handler, original

    def __get__(self, tensor: torch.Tensor | None, owner: type | None = None) -> Any:
        return self if tensor is None else MethodType(self, tensor)

    def __call__(self, tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
        if has_torch_function_unary(tensor):  # of a subclass or a mode
            return handle_torch_function(self, (tensor,), tensor, *args, **kwargs)
        return self._handler(self._gpu, self._original, tensor, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self is other or self._original == other

    def __hash__(self) -> int:
        return hash(self._original)


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the replacements on :class:`torch.Tensor`."""
    for name, handler in _METHODS.items():
        patches.wrap(torch.Tensor, name, functools.partial(Method, gpu, handler))
    for name, label in _READINGS.items():
        patches.handle(torch.Tensor, name, functools.partial(_reading, label))
    for name, getter in _PROPERTIES.items():
        patches.wrap(torch.Tensor, name, functools.partial(_bind_property, gpu, getter))
    for module in (torch, torch.utils.dlpack):
        patches.handle(module, "from_dlpack", _from_dlpack)
        patches.handle(module, "to_dlpack", _dlpack)
    patches.wrap(torch.Tensor, "grad", functools.partial(_gradient, gpu))
    patches.wrap(torch.Tensor, "_make_wrapper_subclass", functools.partial(_make_wrapper, gpu))


def _bind_property(gpu: PracticeGPU, getter: Handler, original: Any) -> property:
    read = original.__get__
    return property(lambda tensor: getter(gpu, read, tensor), original.__set__, doc=original.__doc__)


# -- attributes


def _device(gpu: PracticeGPU, read: Handler, tensor: torch.Tensor) -> Any:
    index = gpu.ledger.index(tensor)
    return read(tensor) if index < 0 else gpu.devices[index]


def _is_cuda(gpu: PracticeGPU, read: Handler, tensor: torch.Tensor) -> bool:
    return gpu.ledger.index(tensor) >= 0 or read(tensor)


def _is_cpu(gpu: PracticeGPU, read: Handler, tensor: torch.Tensor) -> bool:
    return gpu.ledger.index(tensor) < 0 and read(tensor)


def _gradient(gpu: PracticeGPU, original: Any) -> property:
    get, ledger = original.__get__, gpu.ledger

    def read(tensor: torch.Tensor) -> torch.Tensor | None:
        gradient: torch.Tensor | None = get(tensor)
        if ledger.any_unplaced and gradient is not None and ledger.is_unplaced(gradient):
            ledger.place(gradient, ledger.index(tensor))
        return gradient

    def write(tensor: torch.Tensor, gradient: Any) -> None:
        if isinstance(gradient, torch.Tensor) and not gpu.ledger.is_unplaced(gradient):
            places = gpu.ledger.index(gradient), gpu.ledger.index(tensor)
            if places[0] != places[1]:
                raise errors.wrong_gradient(*places)
        original.__set__(tensor, gradient)

    return property(read, write, original.__delete__, original.__doc__)


def _make_wrapper(gpu: PracticeGPU, original: Any) -> staticmethod:  # type: ignore[type-arg]
    """Put a tensor that wraps others on its device only in the ledger: PyTorch would look for a driver."""

    @functools.wraps(original)
    def make_wrapper(*args: Any, **kwargs: Any) -> torch.Tensor:
        given = [position for position, value in enumerate(args) if isinstance(value, torch.device)]
        device = args[given[0]] if given else kwargs.get("device")
        index = CPU if device is None else gpu.index_of(as_device(device))
        if index < 0:
            return original(*args, **kwargs)  # type: ignore[no-any-return]
        if given:
            args = (*args[: given[0]], HOST, *args[given[0] + 1 :])
        else:
            kwargs["device"] = HOST
        wrapper: torch.Tensor = original(*args, **kwargs)
        gpu.ledger.note_wrapper(wrapper, index)
        return wrapper

    return staticmethod(make_wrapper)


# -- methods


def _to(
    gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, /, *args: Any, **kwargs: Any
) -> torch.Tensor:
    if len(args) == 1 and not kwargs and type(args[0]) in _DEVICES:  # the usual case
        there = torch.device(args[0])
        if there.type in ("cuda", "cpu"):
            return move(gpu, tensor, gpu.index_of(there), ".to()")
    device, rest, kwargs = _split_device(gpu, args, kwargs)
    if device is None:
        return original(tensor, *args, **kwargs)  # type: ignore[no-any-return]
    if device.type not in ("cpu", "cuda"):
        return original(tensor, device, *rest, **kwargs)  # type: ignore[no-any-return]
    source, target = gpu.ledger.index(tensor), gpu.index_of(device)
    dtype = kwargs.pop("dtype", rest[0] if rest and isinstance(rest[0], torch.dtype) else None)
    flags = [value for value in rest if isinstance(value, bool)]
    non_blocking = kwargs.pop("non_blocking", flags[0] if flags else False)
    copy = kwargs.pop("copy", flags[1] if len(flags) > 1 else False) and source == target
    if source >= 0 > target or gpu.capture is not None:
        # dtypes are converted on the host, after or before the copy; in the capture of a graph, after it
        tensor = move(gpu, tensor, target, ".to()", non_blocking)
    if copy or kwargs or (dtype is not None and dtype is not tensor.dtype):
        tensor = original(tensor, dtype or tensor.dtype, copy=copy, **kwargs)
    return move(gpu, tensor, target, ".to()", non_blocking)


def _split_device(
    gpu: PracticeGPU, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.device | None, tuple[Any, ...], dict[str, Any]]:
    """Separate the device from ``Tensor.to``'s other arguments; a tensor gives its device and dtype."""
    if args and isinstance(args[0], torch.Tensor):
        kwargs = {**kwargs, "other": args[0]}
        args = args[1:]
    if "other" in kwargs:
        other = kwargs["other"]
        rest = {name: value for name, value in kwargs.items() if name != "other"}
        return gpu.device_of(other), (other.dtype, *args), rest
    if "device" in kwargs:
        rest = {name: value for name, value in kwargs.items() if name != "device"}
        device = kwargs["device"]
        return None if device is None else as_device(device), args, rest
    if args and isinstance(args[0], str | int | torch.device) and not isinstance(args[0], bool):
        return as_device(args[0]), args[1:], kwargs
    return None, args, kwargs


def _cuda(
    gpu: PracticeGPU,
    original: Handler,
    tensor: torch.Tensor,
    /,
    device: Any = None,
    non_blocking: bool = False,
    **layout: Any,
) -> torch.Tensor:
    if device is not None and as_device(device).type != "cuda":
        raise errors.not_cuda()
    moved = move(gpu, tensor, gpu.number(device), ".cuda()", non_blocking)
    return moved.contiguous(**layout) if layout else moved


def _cpu(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, /, **layout: Any) -> torch.Tensor:
    moved = move(gpu, tensor, CPU, ".cpu()")
    return moved.contiguous(**layout) if layout else moved


def _type_as(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return tensor.to(other)


def _type(
    gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any
) -> Any:
    index = gpu.ledger.index(tensor)
    if dtype is None:
        name: str = original(tensor)
        return name.replace("torch.", "torch.cuda.", 1) if index >= 0 else name
    if isinstance(dtype, torch.dtype):
        return original(tensor, dtype, *args, **kwargs)
    name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
    target = gpu.current if name.startswith("torch.cuda.") else CPU
    return move(gpu, original(tensor, name.replace("torch.cuda.", "torch.")), target, ".type()")


def get_device(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor) -> int:
    """Return the number of a tensor's device, -1 for the CPU; this is both a method and a function."""
    return gpu.ledger.index(tensor)


def _numpy(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, /, *, force: bool = False) -> Any:
    index = gpu.ledger.index(tensor)
    if index >= 0:
        if not force:
            raise errors.not_numpy(index)
        tensor = move(gpu, tensor.detach(), CPU, ".numpy(force=True)")
    return original(tensor, force=force)


def _dlpack(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
    if gpu.ledger.index(tensor) >= 0:
        raise errors.not_simulated("handing a GPU's memory to another library (NumPy would refuse it)")
    return original(tensor, *args, **kwargs)


def _from_dlpack(gpu: PracticeGPU, original: Handler, source: Any, /, **kwargs: Any) -> torch.Tensor:
    """Return a tensor that shares the memory of one on a device."""
    if not isinstance(source, torch.Tensor) or gpu.ledger.index(source) < 0:
        return original(source, **kwargs)  # type: ignore[no-any-return]
    if source.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    target = gpu.ledger.index(source) if kwargs.get("device") is None else kwargs["device"]
    return source.detach().to(as_device(target), copy=bool(kwargs.get("copy")))


def _reading(label: str, gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, *args: Any) -> Any:
    """Give the read its name in the log; the operator mode sees only that something is read."""
    gpu.thread_state.call, before = label, gpu.thread_state.call
    try:
        return original(tensor, *args)
    finally:
        gpu.thread_state.call = before


def _tolist(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor) -> Any:
    gpu.record_copy(gpu.ledger.index(tensor), CPU, ".tolist()", tensor, non_blocking=False)
    return original(tensor)


def _copy_(
    gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, other: Any, non_blocking: bool = False
) -> torch.Tensor:
    return original(tensor, _followed(gpu, tensor, other, non_blocking), non_blocking)  # type: ignore[no-any-return]


def _followed(gpu: PracticeGPU, tensor: torch.Tensor, source: Any, non_blocking: bool = False) -> Any:
    """Return the source of a copy into `tensor`, moved to its device first if a gradient must come back.

    PyTorch's ``CopyBackwards`` moves it to the true device of the source, which is the CPU.
    """
    if not isinstance(source, torch.Tensor) or not (source.requires_grad and torch.is_grad_enabled()):
        return source
    return move(gpu, source, gpu.ledger.index(tensor), ".copy_()", non_blocking)


def _setitem(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, indices: Any, value: Any) -> None:
    """Set elements, by a copy unless there are indices of several elements.

    With a number, PyTorch fills them if the indices are on the tensor's device, and otherwise puts: it
    decides by the true devices, before any operator runs.
    """
    home = gpu.ledger.index(tensor)
    parts = indices if isinstance(indices, tuple) else (indices,)
    if isinstance(value, Integral):  # NumPy's as well
        value = int(value)
    if isinstance(value, int | float | complex) and any(_is_elsewhere(gpu, home, part) for part in parts):
        value = tensor.new_full((), value)
    if not any(_is_of_several(part) for part in parts):
        value = _followed(gpu, tensor, value)
    original(tensor, indices, value)


def _is_of_several(part: Any) -> bool:
    """Return whether a part of an index selects several elements, in any order."""
    return part.dim() > 0 if isinstance(part, torch.Tensor) else hasattr(part, "__len__")


def _is_elsewhere(gpu: PracticeGPU, home: int, part: Any) -> bool:
    """Return whether a part of an index is elsewhere; PyTorch turns a list or an array into a CPU tensor."""
    if isinstance(part, torch.Tensor):
        return part.dim() > 0 and gpu.ledger.index(part) != home
    return home >= 0 and hasattr(part, "__len__")


def _on_host(
    name: str,
    names: str,
    gpu: PracticeGPU,
    original: Handler,
    tensor: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """``apply_``, ``map_``, ``map2_``, as in PyTorch's ``torch/csrc/utils/tensor_apply.cpp``."""
    others = {**dict(zip(names.split(), args, strict=False)), **kwargs}
    tensors = {key: value for key, value in others.items() if isinstance(value, torch.Tensor)}
    if not any(each.requires_grad for each in (tensor, *tensors.values())):  # PyTorch refuses these first
        for argument, other in tensors.items():
            if other.type() != tensor.type():
                raise errors.wrong_partner(name, argument, tensor.type(), other.type())
        if gpu.ledger.index(tensor) >= 0:
            raise errors.on_host_only(name)
    return original(tensor, *args, **kwargs)  # type: ignore[no-any-return]


def _register_hook(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, hook: Any) -> Any:
    @functools.wraps(hook)
    def checked(gradient: torch.Tensor) -> Any:
        result = hook(gradient)
        if isinstance(result, torch.Tensor) and result.is_cuda is not gradient.is_cuda:
            raise errors.moved_by_hook(hook, gradient.type(), result.type())
        return result

    return original(tensor, checked)


def _repr(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, **kwargs: Any) -> str:
    if gpu.ledger.index(tensor) >= 0:
        gpu.record(TO_HOST, "print", tensor.numel() * tensor.element_size())
    gpu.thread_state.quiet, before = True, gpu.thread_state.quiet
    try:
        return original(tensor, **kwargs)  # type: ignore[no-any-return]
    finally:
        gpu.thread_state.quiet = before


def _pin_memory(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, *args: Any) -> torch.Tensor:
    index = gpu.ledger.index(tensor)
    if index >= 0:
        raise errors.not_pinnable(tensor.dtype, index)
    if gpu.ledger.is_pinned(tensor):
        return tensor
    pinned = tensor.detach().clone()
    gpu.ledger.mark_pinned(pinned)
    return pinned


def _is_pinned(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, *args: Any) -> bool:
    return gpu.ledger.is_pinned(tensor)


def _record_stream(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, stream: Any) -> None:
    """Do nothing: a tensor's memory is freed with it, and nothing is asynchronous."""


_PROPERTIES: dict[str, Handler] = {"device": _device, "is_cuda": _is_cuda, "is_cpu": _is_cpu}
_METHODS: dict[str, Handler] = {
    "to": _to,
    "cuda": _cuda,
    "cpu": _cpu,
    "type_as": _type_as,
    "type": _type,
    "get_device": get_device,
    "numpy": _numpy,
    "__dlpack__": _dlpack,
    "tolist": _tolist,
    "__setitem__": _setitem,
    "copy_": _copy_,
    "apply_": functools.partial(_on_host, "apply_", ""),
    "map_": functools.partial(_on_host, "map_", "other"),
    "map2_": functools.partial(_on_host, "map2_", "x y"),
    "__repr__": _repr,
    "pin_memory": _pin_memory,
    "is_pinned": _is_pinned,
    "record_stream": _record_stream,
    "register_hook": _register_hook,
}
_READINGS = {
    "__bool__": "if tensor",
    "__int__": "int()",
    "__float__": "float()",
    "__index__": "index",
    "__complex__": "complex()",
    "__format__": "format",
}
