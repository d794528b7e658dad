"""What a practice GPU does not simulate: functions and classes that say so when they are called."""

import functools
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from practice_gpu import errors
from practice_gpu.patching.patches import Patches

_FUNCTIONS = {
    "torch.cuda": """
        caching_allocator_alloc caching_allocator_delete caching_allocator_disabled
        caching_allocator_enable change_current_allocator
        clock_rate current_blas_handle current_solver_handle device_memory_used export_dot export_graph_data
        get_stream_from_external host_memory_stats host_memory_stats_as_nested_dict list_gpu_processes
        memory_usage power_draw reset_accumulated_host_memory_stats reset_peak_host_memory_stats temperature
        use_mem_pool utilization _compile_kernel _dump_snapshot _record_memory_history _sleep _snapshot
    """,
    "torch.cuda.gds": "gds_deregister_buffer gds_register_buffer",
    "torch.cuda.graph_annotations": """
        clear_kernel_annotations dump_kernel_py_stacks get_kernel_annotations get_kernel_py_stacks
        mark_kernels
    """,
    "torch.cuda.graphs": """
        export_dot export_graph_data register_graph_capture_end_hook register_graph_capture_start_hook
        register_graph_destroy_hook register_graph_instantiate_hook register_graph_replay_end_hook
        register_graph_replay_start_hook
    """,
    "torch.cuda.green_contexts": "get_num_locality_domains",
    "torch.cuda.jiterator": "_create_jit_fn _create_multi_output_jit_fn",
    "torch.cuda.memory": """
        caching_allocator_alloc caching_allocator_delete caching_allocator_disabled
        caching_allocator_enable change_current_allocator
        host_memory_stats host_memory_stats_as_nested_dict list_gpu_processes
        reset_accumulated_host_memory_stats reset_peak_host_memory_stats use_mem_pool
        _dump_snapshot _record_memory_history _snapshot
    """,
    "torch.cuda.nccl": "all_gather all_reduce broadcast init_rank reduce reduce_scatter unique_id version",
    "torch.cuda.tunable": """
        dynamic_dims_mask enable get_cublaslt_requested_algo_count get_filename get_max_tuning_duration
        get_max_tuning_iterations get_results get_rotating_buffer_size get_validators mgpu_tune_gemm_in_file
        read_file record_untuned_enable set_cublaslt_requested_algo_count set_filename
        set_max_tuning_duration set_max_tuning_iterations set_numerical_check_tolerances
        set_rotating_buffer_size tune_gemm_in_file tuning_enable wildcard_fallback_enable
    """,
    "torch.backends.cuda": "blas_workspace_size cublas_workspace_size cublaslt_workspace_size",
}

_CLASSES = {
    "torch.accelerator": "Graph",
    "torch.accelerator.graphs": "Graph",
    "torch.cuda": "CUDAPluggableAllocator GreenContext MemPool",
    "torch.cuda.gds": "GdsFile",
    "torch.cuda.green_contexts": "GreenContext SMPartition",
    "torch.cuda.memory": "CUDAPluggableAllocator MemPool",
}

_NO = {
    "torch.cuda.gds": "is_available",
    "torch.cuda.graph_annotations": "is_available",
    "torch.cuda.green_contexts": "is_localization_supported",
    "torch.cuda.nccl": "is_available",
    "torch.cuda.tunable": """
        is_enabled record_untuned_is_enabled tuning_is_enabled wildcard_fallback_is_enabled
    """,
}
"""Functions that return False."""

_BELOW = ("_accelerator_", "_cuda_", "_nccl_", "_gds_")
"""Prefixes of functions in ``torch._C`` that may need a driver."""

_NO_DRIVER = (
    "NVIDIA driver",
    "driver version is insufficient",
    "Invalid device argument",
    "not initialized",
    "none is available",
)


def refuse(what: str) -> Callable[..., Any]:
    """Return a function that raises :class:`PracticeError`, since `what` is not simulated."""

    def refused(*_: Any, **__: Any) -> Any:
        raise errors.not_simulated(what)

    return refused


def refused_class(original: type, refused: Callable[..., Any]) -> type:
    """Return a class like `original` for annotations, ``isinstance`` and subclasses; calls are `refused`."""
    members = {"__new__": refused, "__module__": original.__module__, "__doc__": original.__doc__}
    return types.new_class(original.__name__, (original,), exec_body=lambda body: body.update(members))


def add_patches(patches: Patches) -> None:
    """Plan to refuse these, in :mod:`torch.cuda`, its submodules and the C++ functions that they call."""
    for place, owner, name in _names(_FUNCTIONS):
        patches.set(owner, name, refuse(f"{place}.{name}"))
    classes: dict[type, type] = {}
    for place, owner, name in _names(_CLASSES):
        original = getattr(owner, name, None)
        if isinstance(original, type):
            made = classes.get(original) or refused_class(original, refuse(f"{place}.{name}"))
            classes[original] = made
            patches.set(owner, name, made)
    for _, owner, name in _names(_NO):
        patches.set(owner, name, lambda *_: False)
    for name in dir(torch._C):
        function = getattr(torch._C, name)
        if name.startswith(_BELOW) and callable(function) and not isinstance(function, type):
            patches.set(torch._C, name, _or_refuse(name, function))


def _names(table: dict[str, str]) -> list[tuple[str, Any, str]]:
    """Return module name, module and name of everything in a table that this PyTorch has."""
    found = []
    for place, names in table.items():
        try:
            owner = import_module(place)
        except ImportError:  # this version or build of PyTorch does not have it
            continue
        found += [(place, owner, name) for name in names.split()]
    return found


def _or_refuse(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Call a function of ``torch._C``, but refuse it if it needs a driver."""

    @functools.wraps(function)
    def answer(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            if not any(text in str(error) for text in _NO_DRIVER):
                raise
        raise errors.not_simulated(f"torch._C.{name}")

    return answer
