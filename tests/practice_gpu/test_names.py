"""Every public name of ``torch.cuda`` and its like: a class stays a class, and nothing asks for a driver."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from practice_gpu import PracticeError, practice_gpu
from practice_gpu.patching import absent


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


def test_what_is_derived_from_a_class_can_be_made(gpu):
    for base in (torch.cuda.Stream, torch.cuda.Event, torch.cuda.CUDAGraph):
        assert isinstance(type("Derived", (base,), {})(), base)
    assert isinstance(torch.cuda.Event(), torch.Event)
    assert isinstance(torch.cuda.Stream(), torch.Stream)
    assert issubclass(torch.cuda.ExternalStream, torch.cuda.Stream)
    with pytest.raises(PracticeError, match=r"does not simulate torch\.cuda\.MemPool: run this on"):
        type("Derived", (torch.cuda.MemPool,), {})()


# -- every function and class is called

REFUSED = {
    f"{place}.{name}".removeprefix("torch.")
    for table in (absent._FUNCTIONS, absent._CLASSES)
    for place, names in table.items()
    for name in names.split()
} | {"cuda.ExternalStream", "cuda.tunable.write_file"}
"""What raises ``PracticeError``; what is in no table is called without arguments, and has to answer."""
REFUSED.remove("cuda.nccl.version")  # the process groups answer
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
    if path in {*CALLED, *REFUSED, *NOT_CALLED}:
        return path
    package, _, name = path.rpartition(".")
    return f"{package.rpartition('.')[0]}.{name}"  # torch.cuda.memory.empty_cache is that of torch.cuda


@pytest.mark.filterwarnings("ignore")
def test_every_name_answers_or_says_that_it_is_not_simulated():
    """A new name of PyTorch that wants arguments or a driver fails this test: write it into a table."""
    assert len(BEFORE) > 200
    assert not REFUSED & CALLED.keys()
    wrong = {}
    with practice_gpu(force=True):
        for path in BEFORE:
            name = table_name(path)
            if name in NOT_CALLED:
                continue
            refused = False
            try:
                CALLED.get(name, given())(current(path))
            except PracticeError:
                refused = True
            except Exception as error:
                wrong[path] = f"{type(error).__name__}: {error}"
                continue
            if refused is not (name in REFUSED):
                wrong[path] = "refuses" if refused else "does not refuse"
    assert wrong == {}


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
