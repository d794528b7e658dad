"""PyTorch's compilers: TorchScript, ``torch.compile`` and ``torch.export``."""

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from practice_gpu import errors
from practice_gpu.device.gpu import PracticeGPU, as_device
from practice_gpu.patching.patches import Handler, Patches, original_of


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the replacements in :mod:`torch.jit`, :mod:`torch.export` and of :func:`torch.compile`."""
    for owner in (torch.jit, torch.jit._script):
        patches.handle(owner, "script", functools.partial(_script, patches))
    patches.handle(torch.jit._recursive, "create_script_module", functools.partial(_unpatched, patches))
    patches.handle(torch.jit._builtins, "_get_builtin_table", functools.partial(_table, patches))
    for scripted in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        patches.handle(scripted, "__call__", _run_script)
    for name in ("trace", "trace_module"):
        patches.handle(torch.jit, name, functools.partial(_trace, patches))
    patches.handle(torch.jit, "load", _load)
    for name in ("export", "draft_export"):
        patches.handle(torch.export, name, functools.partial(_export, patches))
    warn = _warning_once()
    patches.handle(torch, "compile", functools.partial(_compile, warn))
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None:  # or nothing has been compiled yet
        patches.set(dynamo, "_callback_from_stance", functools.partial(_run_eagerly, warn))


# -- TorchScript


@contextmanager
def _as_pytorch_is(patches: Patches) -> Iterator[None]:
    """Let the compiler of TorchScript find PyTorch's functions, which it knows by identity.

    Where the program has imported ours, with ``from torch import zeros``, the compiler gets the originals.
    """
    builtins, recursive = torch.jit._builtins, torch.jit._recursive
    find: Handler = builtins._find_builtin
    compile_function: Handler = recursive.try_compile_fn
    with (
        patches.suspended(),
        patch.object(builtins, "_find_builtin", lambda function: find(original_of(function))),
        patch.object(
            recursive, "try_compile_fn", lambda function, at: compile_function(original_of(function), at)
        ),
    ):
        yield


def _script(
    patches: Patches,
    gpu: PracticeGPU,
    original: Handler,
    obj: Any,
    *args: Any,
    _frames_up: int = 0,
    **kwargs: Any,
) -> Any:
    with _as_pytorch_is(patches):
        return original(original_of(obj), *args, _frames_up=_frames_up + 2, **kwargs)  # two functions of ours


def _unpatched(patches: Patches, gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    with _as_pytorch_is(patches):
        return original(*args, **kwargs)


def _table(patches: Patches, gpu: PracticeGPU, original: Handler, /) -> Any:
    """Return TorchScript's table of functions, which is made once, from PyTorch's functions.

    Later calls only look operators up, so they must not suspend the replacements: another thread that pins
    batches would then look for a driver.
    """
    made = torch.jit._builtins._builtin_table is not None
    return original() if made else _unpatched(patches, gpu, original)


class _LastError(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers what an operator raised, since TorchScript's interpreter loses the message."""

    error: Exception | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            self.error = error
            raise


def _run_script(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    """Run TorchScript, whose interpreter looks for the driver when it moves a tensor."""
    last = _LastError()  # type: ignore[no-untyped-call]
    try:
        # or it computes constants, such as arange, ahead and unnoticed
        with last, torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return original(*args, **kwargs)
    except RuntimeError as error:
        text = str(error)
    if "NVIDIA driver" in text:
        raise errors.moved_in_script()
    if isinstance(last.error, errors.PracticeError):
        raise last.error
    raise RuntimeError(text if last.error is None else f"{text.rstrip()} {last.error}")


def _trace(
    patches: Patches, gpu: PracticeGPU, original: Handler, /, function: Any, *args: Any, **kwargs: Any
) -> Any:
    """Trace what the CPU computes: with an operator mode, PyTorch would not record convolutions.

    The trace contains no devices, so it runs where its inputs are, unless it contains a tensor.
    """
    inputs = [value for value in _pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    known = [*function.parameters(), *function.buffers()] if isinstance(function, torch.nn.Module) else []
    homes = {gpu.ledger.index(tensor) for tensor in (*known, *inputs) if tensor.dim() > 0}
    if len(homes) > 1:
        raise errors.traced_across_devices()
    on_device = any(home >= 0 for home in homes)
    try:
        with patches.suspended(), _disable_current_modes():
            traced = original(function, *args, **kwargs)
    except RuntimeError as error:
        if "NVIDIA driver" not in str(error) and "compiled with CUDA" not in str(error):
            raise
        raise errors.moved_in_trace() from None
    graph = traced.inlined_graph  # it keeps the nodes alive
    for constant in graph.findAllNodes("prim::Constant"):
        is_tensor = "value" in constant.attributeNames() and constant.kindOf("value") == "t"
        if on_device and is_tensor and constant.t("value").dim() > 0:
            raise errors.traced_constant()
    return traced


def _load(
    gpu: PracticeGPU, original: Handler, f: Any, map_location: Any = None, *args: Any, **kwargs: Any
) -> Any:
    if map_location is None or as_device(map_location).type != "cuda":
        return original(f, map_location, *args, **kwargs)
    return original(f, "cpu", *args, **kwargs).to(map_location)


# -- torch.compile


def _warning_once() -> Callable[[], None]:
    @functools.cache
    def warn() -> None:
        warnings.warn(
            "the practice GPU compiles nothing: what is given to torch.compile runs as it is", stacklevel=4
        )

    return warn


def _compile(
    warn: Callable[[], None], gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any
) -> Any:
    """Compile nothing, since kernels for a GPU could not run here."""
    warn()
    return original(*args, **{**kwargs, "disable": True})


def _run_eagerly(warn: Callable[[], None], callback: Any) -> None:
    """Warn, and return None instead of a compiler, so that an already compiled function runs as it is."""
    if callback:
        warn()


# -- torch.export


def _export(
    patches: Patches, gpu: PracticeGPU, original: Handler, /, mod: Any, *args: Any, **kwargs: Any
) -> Any:
    """Export what is on the CPU; a program with ``cuda`` in it could not be traced here."""
    given = [*mod.parameters(), *mod.buffers(), *_pytree.tree_leaves((args, kwargs))]
    if any(isinstance(value, torch.Tensor) and gpu.ledger.index(value) >= 0 for value in given):
        raise errors.exported()
    with patches.suspended(), _disable_current_modes():
        return original(mod, *args, **kwargs)
