"""Every public name of ``torch.cuda`` and its like: a class stays a class, and nothing asks for a driver."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from practice_gpu import PracticeError, practice_gpu


def _modules() -> Iterator[ModuleType]:
    for package in (torch.cuda, torch.accelerator):
        yield package
        for found in pkgutil.iter_modules(package.__path__):
            if not found.name.startswith("_"):
                yield importlib.import_module(f"{package.__name__}.{found.name}")
    yield torch.backends.cuda
    yield torch.backends.cudnn.m


def _public(module: ModuleType) -> dict[str, Any]:
    """Return PyTorch's own public functions and classes in a module; not what it only imports."""
    return {
        name: value
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and str(getattr(value, "__module__", "")).startswith(("torch.cuda", "torch.accel", "torch.backends",
                                                              "torch.nn.parallel", "torch._C"))
    }  # fmt: skip


MODULES = {module.__name__: module for module in _modules()}
BEFORE = {
    f"{place}.{name}".removeprefix("torch."): value
    for place, module in MODULES.items()
    for name, value in _public(module).items()
}
CLASSES = [path for path, value in BEFORE.items() if isinstance(value, type)]
FUNCTIONS = [path for path, value in BEFORE.items() if not isinstance(value, type)]
OTHERS = ["Stream", "Event", "Generator", "UntypedStorage", "nn.DataParallel", "distributed.ProcessGroupNCCL"]


def current(path: str) -> Any:
    """Return what has a name now."""
    place, _, name = f"torch.{path}".rpartition(".")
    return getattr(MODULES.get(place) or importlib.import_module(place), name)


def test_a_class_stays_a_class_and_a_function_a_function():
    """For ``X | None``, ``isinstance`` and ``issubclass``."""
    others = [path for path in OTHERS if isinstance(current(path), type)]
    assert len(CLASSES) > 60 < len(FUNCTIONS)
    with practice_gpu(force=True):
        assert [path for path in [*CLASSES, *others] if not isinstance(current(path), type)] == []
        assert [path for path in FUNCTIONS if isinstance(current(path), type)] == []
        for path in [*CLASSES, *others]:
            found = current(path)
            assert found | None
            assert not isinstance(3, found)
            assert issubclass(found, found)


def test_what_is_derived_from_a_class_can_be_made():
    with practice_gpu(force=True):
        for base in (torch.cuda.Stream, torch.cuda.Event, torch.cuda.CUDAGraph):
            assert isinstance(type("Derived", (base,), {})(), base)
        assert isinstance(torch.cuda.Event(), torch.Event)
        assert isinstance(torch.cuda.Stream(), torch.Stream)
        assert issubclass(torch.cuda.ExternalStream, torch.cuda.Stream)
        with pytest.raises(PracticeError, match=r"does not simulate torch\.cuda\.MemPool: run this on"):
            type("Derived", (torch.cuda.MemPool,), {})()


# -- every function and class is called

CALLED_PLAINLY = """
    accelerator.current_accelerator accelerator.current_device_idx accelerator.current_device_index
    accelerator.current_stream accelerator.device_count accelerator.empty_cache accelerator.empty_host_cache
    accelerator.get_device_capability accelerator.get_memory_info accelerator.is_available
    accelerator.max_memory_allocated accelerator.max_memory_reserved accelerator.memory_allocated
    accelerator.memory_reserved accelerator.memory_stats accelerator.reset_accumulated_memory_stats
    accelerator.reset_peak_memory_stats accelerator.synchronize
    accelerator.random.get_rng_state accelerator.random.get_rng_state_all accelerator.random.initial_seed
    backends.cuda.cudnn_sdp_enabled backends.cuda.flash_sdp_enabled
    backends.cuda.fp16_bf16_reduction_math_sdp_allowed backends.cuda.is_built
    backends.cuda.is_ck_sdpa_available backends.cuda.is_flash_attention_available
    backends.cuda.math_sdp_enabled backends.cuda.mem_efficient_sdp_enabled
    backends.cuda.preferred_blas_library backends.cuda.preferred_linalg_library
    backends.cuda.preferred_rocm_fa_library backends.cuda.sdp_kernel
    backends.cudnn.flags backends.cudnn.is_available backends.cudnn.set_flags backends.cudnn.version
    cuda.BFloat16Tensor cuda.BoolTensor cuda.ByteTensor cuda.CharTensor cuda.CUDAGraph cuda.DoubleTensor
    cuda.Event cuda.FloatTensor cuda.HalfTensor cuda.IntTensor cuda.LongTensor cuda.ShortTensor cuda.Stream
    cuda.amp.GradScaler cuda.amp.amp_definitely_not_available cuda.amp.autocast cuda.amp.custom_fwd
    cuda.cudaStatus cuda.cudart cuda.current_device cuda.current_stream cuda.default_stream cuda.device_count
    cuda.empty_cache cuda.gds.is_available cuda.get_allocator_backend cuda.get_arch_list
    cuda.get_device_capability cuda.get_device_name cuda.get_device_properties cuda.get_gencode_flags
    cuda.get_per_process_memory_fraction cuda.get_rng_state cuda.get_rng_state_all cuda.get_sync_debug_mode
    cuda.graph_annotations.is_available cuda.graph_pool_handle cuda.green_contexts.is_localization_supported
    cuda.init cuda.initial_seed cuda.ipc_collect cuda.is_available cuda.is_bf16_supported
    cuda.is_current_stream_capturing cuda.is_initialized cuda.is_tf32_supported cuda.max_memory_allocated
    cuda.max_memory_cached cuda.max_memory_reserved cuda.mem_get_info cuda.memory_allocated cuda.memory_cached
    cuda.memory_reserved cuda.memory_snapshot cuda.memory_stats cuda.memory_stats_as_nested_dict
    cuda.memory_summary cuda.nvtx.range_pop cuda.profiler.start cuda.profiler.stop
    cuda.reset_accumulated_memory_stats cuda.reset_max_memory_allocated cuda.reset_max_memory_cached
    cuda.nccl.version cuda.reset_peak_memory_stats cuda.seed cuda.seed_all cuda.synchronize
    cuda.tunable.is_enabled
    cuda.tunable.record_untuned_is_enabled cuda.tunable.tuning_is_enabled
    cuda.tunable.wildcard_fallback_is_enabled
"""
NEEDS_A_GPU = """
    accelerator.Graph
    backends.cuda.blas_workspace_size backends.cuda.cublas_workspace_size
    backends.cuda.cublaslt_workspace_size
    cuda.CUDAPluggableAllocator cuda.ExternalStream cuda.GreenContext cuda.MemPool
    cuda.caching_allocator_alloc cuda.caching_allocator_delete cuda.caching_allocator_disabled
    cuda.caching_allocator_enable
    cuda.change_current_allocator cuda.clock_rate cuda.current_blas_handle cuda.current_solver_handle
    cuda.device_memory_used cuda.export_dot cuda.export_graph_data
    cuda.gds.GdsFile cuda.gds.gds_deregister_buffer cuda.gds.gds_register_buffer cuda.get_stream_from_external
    cuda.graph_annotations.clear_kernel_annotations cuda.graph_annotations.dump_kernel_py_stacks
    cuda.graph_annotations.get_kernel_annotations cuda.graph_annotations.get_kernel_py_stacks
    cuda.graph_annotations.mark_kernels cuda.graphs.register_graph_capture_end_hook
    cuda.graphs.register_graph_capture_start_hook cuda.graphs.register_graph_destroy_hook
    cuda.graphs.register_graph_instantiate_hook cuda.graphs.register_graph_replay_end_hook
    cuda.graphs.register_graph_replay_start_hook
    cuda.green_contexts.SMPartition cuda.green_contexts.get_num_locality_domains
    cuda.host_memory_stats cuda.host_memory_stats_as_nested_dict cuda.list_gpu_processes cuda.memory_usage
    cuda.nccl.all_gather cuda.nccl.all_reduce cuda.nccl.broadcast cuda.nccl.init_rank cuda.nccl.reduce
    cuda.nccl.reduce_scatter cuda.nccl.unique_id
    cuda.power_draw cuda.reset_accumulated_host_memory_stats cuda.reset_peak_host_memory_stats
    cuda.temperature cuda.tunable.dynamic_dims_mask cuda.tunable.enable
    cuda.tunable.get_cublaslt_requested_algo_count
    cuda.tunable.get_filename cuda.tunable.get_max_tuning_duration cuda.tunable.get_max_tuning_iterations
    cuda.tunable.get_results cuda.tunable.get_rotating_buffer_size cuda.tunable.get_validators
    cuda.tunable.mgpu_tune_gemm_in_file cuda.tunable.read_file cuda.tunable.record_untuned_enable
    cuda.tunable.set_cublaslt_requested_algo_count cuda.tunable.set_filename
    cuda.tunable.set_max_tuning_duration cuda.tunable.set_max_tuning_iterations
    cuda.tunable.set_numerical_check_tolerances cuda.tunable.set_rotating_buffer_size
    cuda.tunable.tune_gemm_in_file cuda.tunable.tuning_enable cuda.tunable.wildcard_fallback_enable
    cuda.tunable.write_file
    cuda.use_mem_pool cuda.utilization
"""
"""What raises ``PracticeError``."""


KERNELS = ("flash", "efficient", "cudnn")
SWITCHES = ("flash", "mem_efficient", "math", "cudnn")
KINDS = ("BFloat16", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")


def given(*arguments: Any, **options: Any) -> Callable[[Any], Any]:
    """Return a function that calls a function with these arguments; a function among them makes one."""

    def call(function: Any) -> Any:
        made = [value() if callable(value) else value for value in arguments]
        return function(*made, **options)

    return call


def entered(*arguments: Any) -> Callable[[Any], Any]:
    """Return a function that opens a context with these arguments, and computes in it."""

    def enter(function: Any) -> None:
        with given(*arguments)(function):
            assert torch.ones(2, device="cuda").sum().is_cuda

    return enter


def vector() -> torch.Tensor:
    return torch.arange(4.0, device="cuda")


def attention() -> Any:
    query = torch.ones(1, 1, 4, 8, device="cuda")
    options = (None, 0.0, False, False)
    return torch.backends.cuda.SDPAParams(query, query, query, *options)


def captured(context: Any) -> None:
    graph = torch.cuda.CUDAGraph()
    with context(graph):
        vector()
    graph.replay()


CALLED: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(CALLED_PLAINLY.split(), given()),
    **{f"cuda.{kind}Storage": given(3) for kind in (*KINDS, "Bool", "ComplexDouble", "ComplexFloat")},
    **{f"cuda.sparse.{kind}Tensor": given(2, 3) for kind in KINDS},
    "accelerator.device_index": entered(0),
    **dict.fromkeys(("accelerator.set_device_idx", "accelerator.set_device_index"), given(0)),
    "accelerator.set_stream": given(lambda: torch.cuda.Stream()),
    "backends.cuda.SDPAParams": lambda _: attention(),
    **{
        f"backends.cuda.can_use_{kind}_attention": given(attention)
        for kind in ("flash", "efficient", "cudnn")
    },
    **{
        f"backends.cuda.enable_{kind}_sdp": given(True)
        for kind in ("flash", "mem_efficient", "math", "cudnn")
    },
    "backends.cuda.allow_fp16_bf16_reduction_math_sdp": given(False),
    "backends.cudnn.is_acceptable": given(vector),
    "cuda.CudaError": given(2),
    "cuda.StreamContext": entered(lambda: torch.cuda.Stream()),
    "cuda.amp.custom_bwd": given(lambda: abs),
    "cuda.can_device_access_peer": given(0, 0),
    "cuda.check_error": given(0),
    "cuda.comm.broadcast": given(vector, [0]),
    "cuda.comm.broadcast_coalesced": given(lambda: [vector()], [0]),
    "cuda.comm.gather": given(lambda: [vector()]),
    "cuda.comm.reduce_add": given(lambda: [vector()]),
    "cuda.comm.reduce_add_coalesced": given(lambda: [[vector()]]),
    "cuda.comm.scatter": given(vector, [0]),
    "cuda.device": entered(0),
    "cuda.device_of": entered(lambda: vector().untyped_storage()),
    "cuda.graph": captured,
    "cuda.make_graphed_callables": given(lambda: torch.nn.Linear(4, 2).cuda(), lambda: (vector(),)),
    **dict.fromkeys(("cuda.manual_seed", "cuda.manual_seed_all"), given(3)),
    "cuda.nvtx.mark": given("here"),
    "cuda.nvtx.range": entered("here"),
    "cuda.nvtx.range_end": given(1),
    "cuda.nvtx.range_push": given("here"),
    "cuda.nvtx.range_start": given("here"),
    "cuda.profiler.profile": entered(),
    "cuda.set_device": given(0),
    "cuda.set_per_process_memory_fraction": given(0.5),
    "cuda.set_rng_state": given(lambda: torch.cuda.get_rng_state()),
    "cuda.set_rng_state_all": given(lambda: torch.cuda.get_rng_state_all()),
    "cuda.set_stream": given(lambda: torch.cuda.Stream()),
    "cuda.set_sync_debug_mode": given("default"),
    "cuda.stream": entered(lambda: torch.cuda.Stream()),
    "cuda.tunable.write_file_on_exit": given(False),
}
NOT_CALLED = {
    "cuda.profiler.init": "PyTorch refuses it for CUDA 12 and later, where it is not needed",
    "cuda.DeferredCudaCallError": "an exception",
    **dict.fromkeys(
        ("backends.cuda.cuBLASModule", "backends.cuda.cuFFTPlanCache", "backends.cuda.cuFFTPlanCacheManager",
         "backends.cuda.cuFFTPlanCacheAttrContextProp", "backends.cudnn.CudnnModule",
         "backends.cudnn.ContextProp", "backends.cudnn.PropModule"),
        "a class whose instances are there already",
    ),
}  # fmt: skip


def table_name(path: str) -> str:
    """Return the name in the tables of a function or class that several modules have."""
    if path not in {*CALLED, *NEEDS_A_GPU.split(), *NOT_CALLED}:
        package, _, name = path.rpartition(".")
        return f"{package.rpartition('.')[0]}.{name}"  # torch.cuda.memory.empty_cache is that of torch.cuda
    return path


@pytest.mark.filterwarnings("ignore")
def test_every_name_answers_or_says_that_it_is_not_simulated():
    """A name that is new in PyTorch is in no table, and fails this test: write it into one."""
    refusing = NEEDS_A_GPU.split()
    assert len(BEFORE) > 200
    wrong = {}
    with practice_gpu(force=True):
        for path in BEFORE:
            name = table_name(path)
            if name not in CALLED and name not in refusing:
                if name not in NOT_CALLED:
                    wrong[path] = "is in no table"
                continue
            refused = False
            try:
                CALLED.get(name, given())(current(path))
            except PracticeError:
                refused = True
            except Exception as error:
                wrong[path] = f"{type(error).__name__}: {error}"
                continue
            if refused is not (name in refusing):
                wrong[path] = "refuses" if refused else "does not refuse"
    assert wrong == {}


ONE_DEVICE = """
    mem_get_info set_device synchronize Stream
"""


@pytest.mark.parametrize("device", [1, "cuda:1", torch.device("cuda", 7)])
def test_a_device_that_is_not_there_is_refused_in_cudas_words(device):
    with practice_gpu(force=True):
        for name in ONE_DEVICE.split():
            with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"):
                getattr(torch.cuda, name)(device)
        with (
            pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"),
            torch.cuda.device(device),
        ):
            pass
        with pytest.raises(IndexError):  # CUDA is not asked: PyTorch has the generators in a tuple
            torch.cuda.get_rng_state(device)


# -- what is below

BELOW = "_cuda_getDevice _cuda_getCurrentBlasHandle _cuda_sleep _accelerator_getDeviceIndex _cuda_memoryStats"


def test_functions_of_torch_c_ask_for_no_driver():
    arguments: dict[str, tuple[int, ...]] = {"_cuda_sleep": (1,), "_cuda_memoryStats": (0,)}
    refused = []
    with practice_gpu(force=True):
        torch.cuda.init()
        for name in BELOW.split():
            if hasattr(torch._C, name):
                try:
                    getattr(torch._C, name)(*arguments.get(name, ()))
                except PracticeError as error:
                    refused.append(str(error).split()[6])
    assert set(refused) <= {"torch._C._cuda_getCurrentBlasHandle:", "torch._C._cuda_sleep:"}
    assert hasattr(torch._C, "_cuda_sleep") is bool(refused)
