"""The dispatch key by which the practice GPU intercepts a thread's operators.

A ``TorchDispatchMode`` would see them all, but it is called too often and is slow: PyTorch also calls it
whenever autograd detaches a tensor. Instead PyTorch's dispatcher can call Python directly, by a kernel for a
dispatch key below autograd's. The key is ``Fake``, for which no PyTorch up to 2.15 has a kernel. In a thread
that includes it, every operator calls the kernel first, except those that only make views: these share their
storage with a tensor that is known. In older versions of PyTorch the key is above ``Python``, the key for
tensors that wrap others: there a mode is used.

Where another mode intercepts the operators, too, the order matters, and a mode is used: see
:class:`practice_gpu.operators.dispatch.Operators`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

_VIEWS = """
    _reshape_alias _unsafe_view alias as_strided detach diagonal expand permute select.int slice.Tensor
    split.Tensor split_with_sizes squeeze squeeze.dim squeeze.dims t transpose.int unbind.int unfold unsqueeze
    view view.dtype
"""
_RECORDS = "_record_function_enter_new _record_function_exit._RecordFunction"
"""Operators with which the profiler marks an optimizer's step; they compute nothing."""

_Key = torch._C.DispatchKey
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
_include = torch._C._dispatch_tls_set_dispatch_key_included


def _free_key() -> Any:
    """Return the key, or None if this PyTorch does not have it below ``Python``, or uses it."""
    try:
        key = torch._C._dispatch_key_parse("Fake")
    except RuntimeError:
        return None
    is_below = torch._C._dispatch_keyset_full_after(_Key.Python).has(key)
    return key if is_below and not torch._C._dispatch_has_backend_fallback(key) else None


KEY = _free_key()
_KEY_ALONE = torch._C.DispatchKeySet(KEY or _Key.Undefined)
_ABOVE = (
    torch._C._dispatch_keyset_full()
    - torch._C._dispatch_keyset_full_after(_Key.Python)
    - torch._C.DispatchKeySet(_Key.Python)
)
"""The keys above ``Python``, such as autograd's: a mode does not see them twice either."""
_LIBRARIES: list[torch.library.Library] = []
"""They last as long as the process: a thread may include the key until it ends."""


def install(see: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
    """Have `see` called as every operator's kernel, with the operator, its arguments and its keywords."""
    if KEY is None or _LIBRARIES:
        return

    def kernel(func: Any, /, *args: Any, **kwargs: Any) -> Any:
        _exclude(KEY, True)
        try:
            if _is_excluded(_Key.Python):  # as in torch._C._DisableTorchDispatch: nothing may intercept it
                return func(*args, **kwargs)
            if _is_excluded(_Key.AutogradOther):
                return see(func, args, kwargs)
            with torch._C._ExcludeDispatchKeyGuard(_ABOVE):  # autograd had nothing to do
                return see(func, args, kwargs)
        finally:
            _exclude(KEY, False)

    everything = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    everything.fallback(kernel, "Fake")  # type: ignore[no-untyped-call]
    _LIBRARIES.append(everything)
    for namespace, names in (("aten", _VIEWS), ("profiler", _RECORDS)):
        library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
        for name in names.split():
            library.impl(name, torch.library.fallthrough_kernel, "Fake")  # type: ignore[no-untyped-call]
        _LIBRARIES.append(library)


def include(wanted: bool) -> None:
    """Send this thread's operators to the kernel, or stop doing so."""
    _include(KEY, wanted)


def in_kernel() -> bool:
    """Return whether this runs inside the kernel, where operators do not call it."""
    return KEY is not None and bool(_is_excluded(KEY))


def passed_by() -> AbstractContextManager[None]:
    """Let this thread's operators bypass the kernel."""
    return nullcontext() if KEY is None else torch._C._ExcludeDispatchKeyGuard(_KEY_ALONE)


def above() -> AbstractContextManager[None]:
    """Inside the kernel, let this thread's operators go through autograd again and bypass the kernel."""
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), _KEY_ALONE)


def only_shapes() -> bool:
    """Return whether this thread's tensors are fake ones, with shapes and devices, but no numbers."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


@contextmanager
def unobserved() -> Iterator[None]:
    """Hide this thread's operators from all modes, and from the practice GPU."""
    with torch._C._DisableTorchDispatch(), passed_by():
        yield
