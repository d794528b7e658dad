"""The private parts of PyTorch that the practice GPU needs, checked before it changes anything."""

from importlib import import_module

import torch

from practice_gpu.errors import PracticeError
from practice_gpu.operators.facts import native_functions_path

_NEEDED = {
    "to find a tensor's storage without making a Python object": "torch._C._storage_address",
    "to tell sparse tensors from strided ones": "torch._C._has_storage",
    "to see through torch.func's wrappers": """
        torch._C._functorch.is_functorch_wrapped_tensor torch._C._functorch.get_unwrapped
    """,
    "to group an optimizer's tensors by simulated device": "torch._C._group_tensors_by_device_and_dtype",
    "to recognise operators that consist of others": "torch._C._dispatch_has_kernel_for_dispatch_key",
    "to look at a tensor unobserved": "torch._C._DisableTorchDispatch",
    "to copy a tensor unobserved": "torch._C.DisableTorchFunction",
    "to run an operator that consists of others": """
        torch._C.DispatchKey torch._C._SetExcludeDispatchKeyGuard torch.ops.aten.add.Tensor._op_dk
    """,
    "to run TorchScript": "torch._C.ScriptFunction torch._C.ScriptMethod",
    "to notice a move in torch.jit.trace": "torch._C._get_tracing_state",
    "to give TorchScript PyTorch's own functions": """
        torch.jit._builtins._builtin_table torch.jit._builtins._find_builtin
        torch.jit._recursive.try_compile_fn torch.jit._script.script
    """,
    "to leave DataParallel's table of streams as it is": "torch.nn.parallel._functions._streams",
    "to find the tensors among the inputs of torch.export": "torch.utils._pytree.tree_leaves",
    "to export without interception": "torch.utils._python_dispatch._disable_current_modes",
    "to be called for every operator": """
        torch._C._dispatch_key_parse torch._C._dispatch_has_backend_fallback
        torch._C._dispatch_tls_set_dispatch_key_included
    """,
    "to call an operator's own kernel": """
        torch._C._dispatch_tls_set_dispatch_key_excluded torch._C._dispatch_keyset_full
        torch._C._dispatch_keyset_full_after torch._C._ExcludeDispatchKeyGuard torch._C.DispatchKeySet
    """,
    "to recognise what nothing may intercept": "torch._C._dispatch_tls_is_dispatch_key_excluded",
    "to find where a tensor's gradient goes": """
        torch._C._ForceDispatchKeyGuard torch._C._dispatch_tls_local_include_set
    """,
    "to move a module to where a tensor is": "torch._C._nn",
    "to let the device check classes, as CUDA does": "torch._C._nn.one_hot",
    "to replay an operator on a lazy conjugate": "torch._conj",
    "to replay an operator on a lazy negative": "torch._neg_view",
    "to ignore fake tensors": """
        torch._C._get_dispatch_mode torch._C._TorchDispatchModeKey.FAKE
    """,
    "to run what the compilers call collectives": "torch.ops.aten.add.Tensor.redispatch",
    "to know whether an operator belongs to the backward pass": "torch._C._current_graph_task_id",
    "to know whether another mode intercepts the operators": "torch._C._len_torch_dispatch_stack",
    "to copy a tensor that wraps others": "torch.ops.aten._to_copy",
    "to put a tensor that wraps others on a simulated device": "torch.Tensor._make_wrapper_subclass",
    "to compare the devices of gradients": "torch.autograd._engine_run_backward",
    "to run an operator without PyTorch's Python layer": "torch.ops.aten.add.Tensor._op",
    "to know an operator's arguments": "torch.ops.aten.add.Tensor._schema",
    "to recognise a generator": "torch.Generator._cdata",
    "to name the gradient of a move as CUDA does": "torch.autograd.Function._backward_cls",
    "to compare the devices of a recurrent layer": "torch._VF.lstm",
    "to find a storage in the ledger": "torch.UntypedStorage._cdata",
    "to restore the default device": "torch._GLOBAL_DEVICE_CONTEXT",
    "to leave PyTorch's table of attributes as it is": "torch.overrides.get_default_nowrap_functions",
    "to find the default device": """
        torch.overrides._get_current_function_mode_stack torch.utils._device.DeviceContext
    """,
    "to leave PyTorch's table of factory functions as it is": "torch.utils._device._device_constructors",
    "to compute in another type what the CPU has no kernel for": "torch.utils._pytree.tree_map_only",
    "to see every operator": "torch.utils._python_dispatch.TorchDispatchMode",
    "to leave in the right order": "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
}
NAMES = {name: why for why, names in _NEEDED.items() for name in names.split()}
"""The purpose of each name."""


def check() -> None:
    """Raise an error that names every part that this PyTorch lacks, and its purpose."""
    missing = [f"{name} ({why})" for name, why in NAMES.items() if not _exists(name)]
    path = native_functions_path()
    if not path.is_file():
        missing.append(f"{path} (to know how CUDA checks an operator's devices)")
    if missing:
        raise PracticeError(
            f"the practice GPU cannot work with PyTorch {torch.__version__}, which lacks: "
            + "; ".join(missing)
        )


def _exists(name: str) -> bool:
    parts = name.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        try:
            found: object = import_module(".".join(parts[:depth]))
        except ImportError:  # not a module: an attribute of the one above
            continue
        for part in parts[depth:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False
