"""Functions that make tensors, on the requested device."""

import functools
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from practice_gpu import errors
from practice_gpu.device.gpu import PracticeGPU, as_device
from practice_gpu.device.ledger import CPU, HOST
from practice_gpu.patching import keys
from practice_gpu.patching.patches import Handler, Patches
from practice_gpu.surface.tensors import move

_MADE = """
    arange bartlett_window blackman_window empty empty_permuted empty_strided eye full hamming_window
    hann_window kaiser_window linspace logspace ones rand randint randn randperm range scalar_tensor
    tril_indices triu_indices zeros
"""
"""These follow the default device."""
_SPARSE = """
    sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor
    sparse_csr_tensor
"""
_LIKE = "empty_like full_like ones_like rand_like randint_like randn_like zeros_like"
_OF_PARTS = "wrapper_SparseCUDA___sparse_coo_tensor_with_dims_and_tensors"
_NEW = "new_empty new_empty_strided new_full new_ones new_zeros"
_SHAPES = {"dtype", "memory_format", "requires_grad"}
"""Keywords that do not affect the device."""
_STORAGES = torch.UntypedStorage | torch.TypedStorage
_CONVERTED = "tensor as_tensor asarray"


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the replacements in :mod:`torch`, ``torch.fft`` and on :class:`torch.Tensor`."""
    for owner, names, handler in (
        (torch, _MADE, _made),
        (torch, _SPARSE, _sparse),
        (torch.fft, "fftfreq rfftfreq", _made),
        (torch.nested, "nested_tensor", _made),
        (torch, _LIKE, _like),
        (torch, "normal", _beside),
        (torch.Tensor, _NEW, _like),
        (torch.Tensor, "new_tensor", _beside),
        (torch.Tensor, "new", _new),
        (torch, _CONVERTED, _converted),
    ):
        for name in names.split():
            patches.handle(owner, name, handler)


def _default() -> torch.device | None:
    """Return the device of the innermost ``with torch.device(…)``, or of ``set_default_device``."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    for mode in reversed(modes):  # as torch.get_default_device does
        if isinstance(mode, DeviceContext):
            return mode.device
    return None


def _made(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    """``torch.zeros`` and the like: on the requested device, else the default device, else the CPU."""
    if kwargs.get("layout") is torch.jagged:  # PyTorch's Python code makes it from tensors that come here
        return original(*args, **kwargs)
    device = kwargs.get("device")
    if device is None:
        device = _default()
    return make(gpu, original, device, CPU, args, kwargs)


def _sparse(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    """``torch.sparse_coo_tensor`` and the like: on the requested device, else where its parts are."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if not tensors:
        return _made(gpu, original, *args, **kwargs)
    device = kwargs.get("device")
    if device is not None:
        target = gpu.index_of(as_device(device))
        args = tuple(_moved(gpu, value, target, original.__name__) for value in args)
        kwargs = {name: _moved(gpu, value, target, original.__name__) for name, value in kwargs.items()}
        return make(gpu, original, device, CPU, args, kwargs)
    first, *others = [gpu.ledger.index(tensor) for tensor in tensors]
    for other in others:
        if other != first and original.__name__ == "sparse_coo_tensor":
            raise errors.wrong_argument("values", other, first, _OF_PARTS)
    return make(gpu, original, None, first, args, kwargs)


def _moved(gpu: PracticeGPU, value: Any, target: int, name: str) -> Any:
    return move(gpu, value, target, f"torch.{name}()") if isinstance(value, torch.Tensor) else value


def _like(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    """``torch.zeros_like`` and ``Tensor.new_zeros``: where the tensor is, unless a keyword says otherwise."""
    if kwargs.keys() <= _SHAPES:
        return original(*args, **kwargs)
    return _beside(gpu, original, *args, **kwargs)


def _beside(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    """Make it on the requested device, else on that of the first tensor."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    home = gpu.ledger.index(tensors[0]) if tensors else CPU
    return make(gpu, original, kwargs.get("device"), home, args, kwargs)


def _new(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> Any:
    like = functools.partial(original, tensor)
    return legacy(gpu, like, gpu.ledger.index(tensor), tensor.dtype, ".new()", args, kwargs)


def legacy(
    gpu: PracticeGPU,
    original: Handler,
    home: int,
    dtype: torch.dtype,
    call: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """``torch.cuda.FloatTensor`` and ``Tensor.new``: for one dtype and type of device; they move nothing.

    Source: ``legacy_tensor_generic_ctor_new`` in PyTorch's ``torch/csrc/utils/tensor_new.cpp``.
    """
    kind, device = ("cpu" if home < 0 else "cuda"), kwargs.get("device")
    given = args[0] if args else kwargs.get("other")
    if isinstance(given, torch.Tensor | _STORAGES) and device is None:
        alone = len(args) < 2  # or they are indices and values of a sparse tensor
        if alone and isinstance(given, torch.Tensor) and _type(gpu, given) != (kind, dtype):
            _refuse_type(original, given, kind)
        return original(*args, **kwargs)
    if device is not None and not isinstance(given, torch.Tensor) and as_device(device).type != kind:
        raise errors.wrong_legacy_device(kind, as_device(device).type)
    made = make(gpu, original, device, home, args, kwargs)
    if not isinstance(given, int | torch.Size | None):  # data, not sizes
        gpu.record_copy(CPU, gpu.ledger.index(made), call, made, non_blocking=False)
    return made


def _type(gpu: PracticeGPU, tensor: torch.Tensor) -> tuple[str, torch.dtype]:
    return gpu.device_of(tensor).type, tensor.dtype


def _refuse_type(original: Handler, given: torch.Tensor, kind: str) -> None:
    """Raise PyTorch's error for a tensor of another type, if it raises one."""
    device = str(given.device)
    try:
        original(torch.empty(0, dtype=given.dtype, layout=given.layout, device="meta"))
    except TypeError as error:
        raise errors.wrong_type(str(error), kind, device) from None


def _converted(gpu: PracticeGPU, original: Handler, data: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``torch.tensor``, ``as_tensor``, ``asarray``: Python data starts on the host and is copied."""
    device = kwargs.get("device")
    if device is None:
        device = _default()
    if not isinstance(data, torch.Tensor):
        result = make(gpu, original, device, CPU, (data, *args), kwargs)
        if isinstance(result, torch.Tensor):
            place = gpu.ledger.index(result)
            gpu.record_copy(CPU, place, f"torch.{original.__name__}()", result, non_blocking=False)
        return result
    home = gpu.ledger.index(data) if device is None else gpu.index_of(as_device(device))
    if original.__name__ == "tensor":
        data = data.detach()
    moved = move(gpu, data, home, f"torch.{original.__name__}()")
    kwargs = {**kwargs, "device": HOST}
    if original.__name__ == "tensor":
        return make(gpu, original, None, home, (moved, *args), kwargs)
    return original(moved, *args, **kwargs)


def make(
    gpu: PracticeGPU, original: Handler, device: Any, home: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function that makes a tensor, and put the tensor on `device`, or on device number `home`."""
    if keys.only_shapes():
        return original(*args, **kwargs if device is None else {**kwargs, "device": device})
    if device is not None:
        device = as_device(device)
        if device.type not in ("cpu", "cuda"):
            return original(*args, **kwargs)
        home = gpu.index_of(device)
    kwargs = {**kwargs, "device": HOST} if device is not None else dict(kwargs)
    gpu.check_generator(kwargs.get("generator"), home)
    pinned = kwargs.pop("pin_memory", False) if "pin_memory" in kwargs else False
    if pinned and home >= 0:
        raise errors.factory_pinned()
    if home >= 0:
        gpu.ledger.use()
        if gpu.thread_state.mode is None:
            gpu.watch_thread()
    mode = gpu.thread_state.mode
    if mode is None:
        result = original(*args, **kwargs)
    else:
        mode.placement, before = home, mode.placement
        try:
            result = original(*args, **kwargs)
        finally:
            mode.placement = before
    if isinstance(result, torch.Tensor):
        if home >= 0:
            gpu.ledger.place(result, home)
        elif pinned:
            gpu.ledger.mark_pinned(result)
    return result
