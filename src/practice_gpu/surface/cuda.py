"""``torch.cuda`` and ``torch.accelerator``: what they return while a practice GPU is open.

Wherever possible, PyTorch's Python code reads and checks the arguments, and only the functions of
``torch._C`` that it calls are replaced. A build for the CPU lacks those functions.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import torch

from practice_gpu import errors
from practice_gpu.device.allocator import Allocator
from practice_gpu.device.events import WAIT
from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.device.ledger import CPU
from practice_gpu.patching.patches import Handler, Patches
from practice_gpu.surface import factories

CAPABILITY = (8, 0)

_Functions = dict[str, Callable[..., Any]]


@dataclass(frozen=True)
class DeviceProperties:
    """What ``torch.cuda.get_device_properties`` returns.

    It describes no real GPU. The limits of threads, registers and shared memory are those of compute
    capability 8.0, https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities. The rates and
    the cache exist only for code that divides by them.
    """

    name: str
    total_memory: int
    uuid: UUID
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    multi_processor_count: int = 1
    warp_size: int = 32
    is_integrated: bool = False
    is_multi_gpu_board: bool = False
    gcnArchName: str = ""
    max_threads_per_block: int = 1024
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 * 1024
    shared_memory_per_block_optin: int = 163 * 1024
    shared_memory_per_multiprocessor: int = 164 * 1024
    L2_cache_size: int = 2**20
    clock_rate: int = 1_000_000
    memory_clock_rate: int = 1_000_000
    memory_bus_width: int = 64
    pci_domain_id: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the replacements in :mod:`torch.cuda`, :mod:`torch.accelerator` and their submodules."""
    for table in (_devices(gpu), _memory(gpu)):
        for name, function in table.items():
            for owner in (torch.cuda, torch.cuda.memory, torch.cuda.random):
                patches.set(owner, name, function)
    patches.set(torch.cuda, "_initialized", True)
    for name, function in _below(gpu).items():
        patches.put(torch._C, name, function)
    properties = lambda index: DeviceProperties(gpu.name, gpu.capacity, UUID(int=index + 1))  # noqa: E731
    patches.put(torch.cuda, "_get_device_properties", properties)
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    for kind in ("flash", "efficient", "cudnn"):  # the CPU's kernels compute attention
        patches.set(torch.backends.cuda, f"can_use_{kind}_attention", lambda params, debug=False: False)
    patches.set(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    patches.wrap(torch.autograd.profiler.profile, "__init__", _hosts_side_only)
    for other in (torch.backends.mps, torch.mps, torch.xpu):  # the simulated GPU is the only accelerator
        patches.set(other, "is_available", lambda: False)
        patches.set(other, "device_count", lambda: 0)
    patches.handle(torch, "set_default_tensor_type", _set_default_type)
    for owner, on_host in ((torch, torch), (torch.cuda, torch), (torch.cuda.sparse, torch.sparse)):
        for name in (f"{kind}Tensor" for kind in _LEGACY):
            if hasattr(owner, name):
                patches.set(owner, name, _legacy_type(gpu, getattr(on_host, name), getattr(owner, name)))


def _devices(gpu: PracticeGPU) -> _Functions:
    exchange = _exchange(gpu)
    return {
        "is_available": lambda: True,
        "device_count": lambda: gpu.count,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "get_arch_list": lambda: ["sm_80"],
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: True,
        "init": gpu.ledger.use,
        "is_initialized": lambda: gpu.ledger.used,
        "_lazy_init": gpu.ledger.use,
        "_lazy_call": lambda function, **_: function(),
        "_is_in_bad_fork": gpu.ledger.is_forked,
    }


def _exchange(gpu: PracticeGPU) -> Callable[[int], int]:
    def exchange(index: int) -> int:
        if index < 0:
            return -1
        before, gpu.current = gpu.current, gpu.number(index)
        return before

    return exchange


def _memory(gpu: PracticeGPU) -> _Functions:
    def summary(device: Any = None, abbreviated: bool = False) -> str:
        figures = torch.cuda.memory_stats(device)
        rows = "\n".join(f"| {name:<30} | {value:>20,} |" for name, value in figures.items() if value > 0)
        return f"{gpu.name}, device {gpu.number(device)}: simulated memory, in blocks of 512 bytes\n{rows}"

    def information(device: Any = None) -> tuple[int, int]:
        return gpu.ledger.allocators[gpu.number(device)].free(), gpu.capacity

    return {
        "memory_summary": summary,
        "memory_snapshot": lambda mempool_id=None, include_traces=True: [],
        "mem_get_info": information,
        "ipc_collect": lambda: None,
        "get_allocator_backend": lambda: "native",
    }


def _hosts_side_only(original: Callable[..., None]) -> Callable[..., None]:
    """Profile the CPU instead of CUDA: there are no kernels, and PyTorch would look for a driver."""

    @functools.wraps(original)
    def init(profiler: Any, *args: Any, **options: Any) -> None:
        if options.get("use_device") == "cuda":
            warnings.warn(
                "the practice GPU has no kernels to profile: the profile shows the CPU, which also simulates",
                stacklevel=2,
            )
            options = {**options, "use_device": None, "use_cpu": True}
        original(profiler, *args, **options)

    return init


def _below(gpu: PracticeGPU) -> _Functions:
    """Functions of ``torch._C`` that PyTorch's Python code calls."""
    exchange, modes = _exchange(gpu), (0, 1, 2)

    def set_device(index: int) -> None:
        gpu.current = gpu.number(index)

    def allocator(index: int, what: str = errors.INVALID_ARGUMENT) -> Allocator:
        if not (gpu.ledger.used and 0 <= index < gpu.count):
            raise errors.no_allocator(what, index)
        return gpu.ledger.allocators[index]

    def reset_accumulated(index: int) -> None:
        allocator(index)  # there are no accumulated figures

    def set_fraction(fraction: float, index: int) -> None:
        chosen = allocator(index, errors.NO_ALLOCATOR)
        chosen.allowed = int(chosen.capacity * fraction)

    def get_fraction(index: int) -> float:
        chosen = allocator(index, errors.NO_ALLOCATOR)
        return chosen.allowed / chosen.capacity

    def empty_cache() -> None:
        for each in gpu.ledger.allocators:
            each.empty_cache()

    def synchronize(index: int | None = None) -> None:
        if gpu.capture is not None:  # in any thread: it would wait for all streams of the device
            gpu.capture.refuse_wait()
        gpu.record(WAIT, "torch.cuda.synchronize()", tolerated=True)

    def set_mode(mode: int) -> None:
        if mode not in modes:
            raise RuntimeError("invalid value of debug_mode, expected one of 0,1,2")
        gpu.log.debug_mode = mode

    return {
        **dict.fromkeys(("_cuda_exchangeDevice", "_accelerator_exchangeDevice"), exchange),
        **dict.fromkeys(("_cuda_maybeExchangeDevice", "_accelerator_maybeExchangeDevice"), exchange),
        **dict.fromkeys(("_cuda_emptyCache", "_accelerator_emptyCache"), empty_cache),
        **dict.fromkeys(
            ("_cuda_memoryStats", "_accelerator_getDeviceStats"), lambda index: allocator(index).statistics()
        ),
        **dict.fromkeys(
            ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"),
            lambda index: allocator(index).reset_peak(),
        ),
        **dict.fromkeys(
            ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats"), reset_accumulated
        ),
        **dict.fromkeys(("_cuda_getDevice", "_accelerator_getDeviceIndex"), lambda: gpu.current),
        **dict.fromkeys(("_cuda_setDevice", "_accelerator_setDeviceIndex"), set_device),
        **dict.fromkeys(("_cuda_synchronize", "_accelerator_synchronizeDevice"), synchronize),
        "_cuda_canDeviceAccessPeer": lambda index, peer: index != peer,
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": get_fraction,
        "_cuda_set_sync_debug_mode": set_mode,
        "_cuda_get_sync_debug_mode": lambda: gpu.log.debug_mode,
        "_accelerator_getMemoryInfo": _memory(gpu)["mem_get_info"],
        "_accelerator_getDeviceCapability": lambda index: {"supported_dtypes": {*_LEGACY.values()}},
        "_cuda_getDeviceCount": lambda: gpu.count,
        "_cuda_init": gpu.ledger.use,
        "_cuda_isInBadFork": gpu.ledger.is_forked,
        "_accelerator_getDefaultGenerator": lambda device: gpu.generators[gpu.number(device)],
        "_accelerator_emptyHostCache": lambda: None,
        "_accelerator_isAllocatorInitialized": lambda: gpu.ledger.used,
    }


# -- torch.FloatTensor, torch.cuda.FloatTensor and the like

_LEGACY = {name: dtype for dtype, name in errors.TYPE_NAMES.items() if not dtype.is_complex}


def _set_default_type(gpu: PracticeGPU, original: Handler, kind: Any) -> None:
    """Set a default dtype and, for ``torch.cuda.FloatTensor``, a default device."""
    name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
    found = getattr(torch, name.replace("torch.cuda.", "torch.").removeprefix("torch."), None)
    original(getattr(found, "of_the_host", kind) if name.startswith("torch.") else kind)
    torch.set_default_device("cuda" if name.startswith("torch.cuda.") else None)


def _legacy_type(gpu: PracticeGPU, make: Callable[..., torch.Tensor], kind: type) -> type:
    """Return a replacement for `kind`: it makes tensors of its dtype on its device, and recognises them."""
    on_gpu = kind.__module__.startswith("torch.cuda")

    class Legacy(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
            if make.is_sparse:  # type: ignore[attr-defined]
                device = kwargs.pop("device", None) if on_gpu else None
                made = make(*args, **kwargs)
                return made.cuda(device) if on_gpu else made
            home, call = (gpu.current if on_gpu else CPU), f"{kind.__module__}.{kind.__name__}()"
            return factories.legacy(gpu, make, home, make.dtype, call, args, kwargs)  # type: ignore[no-any-return, attr-defined]

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, make) and instance.is_cuda is on_gpu  # type: ignore[attr-defined, arg-type]

    facts = {name: getattr(make, name) for name in ("dtype", "layout", "is_sparse")}
    facts |= {"is_cuda": on_gpu, "of_the_host": make, "__module__": kind.__module__}
    return Legacy(kind.__name__, (), facts)
