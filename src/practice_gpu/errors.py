"""CUDA's errors: the type and the text of every error that the practice GPU can raise.

Each function returns an exception, for the caller to raise. Where a CUDA build of PyTorch raises it without a
GPU, the tests compare the texts (``oracle.py``).
"""

import re
from collections.abc import Sequence

import torch

from practice_gpu.sizes import format_size

_TENSOR_TYPE = re.compile(r"\b(?:torch\.(?=(?:sparse\.)?[A-Z]\w*Tensor\b)|CPU(?=[A-Z]\w*Type\b))")
_SAME = "Expected all tensors to be on the same device"

_AFTERWARDS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)

_ERROR_TYPES = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"

_UNSAFE = """torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.
Many models use a sigmoid layer right before the binary cross entropy layer.
In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits
or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are
safe to autocast."""

TYPE_NAMES = {
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


COMPARED = {
    "meshgrid cartesian_prod": "meshgrid expects all tensors to have the same device",
    "block_diag": "torch.block_diag: input tensors must all be on the same device. Input 0 is on device "
    "{first} and input {number} is on device {other}",
    "multi_dot chain_matmul": "multi_dot(): all tensors must be on the same device but tensor 0 is on "
    "{first} and tensor {number} on {other}",
    "cholesky_solve": "Expected b and A to be on the same device, but found b on {first} and A on {other} "
    "instead.",
    "stft": "stft input and window must be on the same device but got self on {first} and window on {other}",
    "istft": "istft input and window must be on the same device but got self on {first} and window on "
    "{other}",
    "quantile nanquantile": "quantile() q tensor must be on the same device as the input tensor",
    "gradient": "torch.gradient expected each tensor to be on the same device, but got devices {first} and "
    "{other}!",
    "_weight_norm": "weight_norm: expected v_in and g_in to be on the same device, but v_in is on {first} "
    "and g_in is on {other}",
    "take_along_dim": "Expected tensor to have {first} Device, but got tensor with {other} Device (while "
    "checking arguments for torch.take_along_dim():)",
    "rms_norm": f"{_SAME}, but got weight is on {{other}}, different from other tensors on {{first}} (when "
    "checking argument in method wrapper_CUDA___fused_rms_norm)",
}
"""Functions whose C++ body needs all tensors on the first one's device, and their messages about another."""


class PracticeError(RuntimeError):
    """The practice GPU itself cannot do what the program wants (CUDA has no such error)."""


def device_name(index: int) -> str:
    """Return ``"cpu"`` for -1, else ``"cuda:<index>"``."""
    return "cpu" if index < 0 else f"cuda:{index}"


def type_name(dtype: torch.dtype, index: int) -> str:
    """Return the legacy name that messages use: ``torch.FloatTensor``, ``torch.cuda.FloatTensor``, …"""
    name = TYPE_NAMES.get(dtype, "Float")
    return f"torch.{'cuda.' if index >= 0 else ''}{name}Tensor"


def scalar_name(dtype: torch.dtype) -> str:
    """Return ``Float``, ``Long``, …"""
    return TYPE_NAMES.get(dtype, "Float")


def on_device(error: Exception) -> RuntimeError | None:
    """Return the CPU's error with CUDA's names of tensor types, or None if that is the same."""
    text = _TENSOR_TYPE.sub(lambda name: "CUDA" if name.group() == "CPU" else "torch.cuda.", str(error))
    text = text.replace('"normal_kernel_cpu"', '"normal_kernel_cuda"')  # also in functions without a tensor
    kind = type(error) if isinstance(error, RuntimeError) else RuntimeError
    return None if text == str(error) else kind(text)


def compared(text: str, first: int, other: int, number: int) -> RuntimeError:
    """A message of ``COMPARED`` about tensor number `number`."""
    return RuntimeError(text.format(first=device_name(first), other=device_name(other), number=number))


def two_devices(common: int, other: int) -> RuntimeError:
    """TensorIterator's error, that of every element-wise operator."""
    return RuntimeError(
        f"{_SAME}, but found at least two devices, {device_name(common)} and {device_name(other)}!"
    )


def wrong_argument(argument: str, index: int, common: int, method: str) -> RuntimeError:
    """The error of the check that torchgen generates before most CUDA operators."""
    return RuntimeError(
        f"{_SAME}, but got {argument} is on {device_name(index)}, different from other tensors on "
        f"{device_name(common)} (when checking argument in method {method})"
    )


def out_of_memory(
    size: int, device: int, capacity: int, allowed: int, allocated: int, spare: int = 0
) -> RuntimeError:
    """The caching allocator's error when ``size`` bytes no longer fit; graphs keep ``spare`` bytes."""
    limit = f"{format_size(allowed)} allowed; " if allowed < capacity else ""
    error: RuntimeError = torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {format_size(size)}. "
        f"GPU {device} has a total capacity of {format_size(capacity)} "
        f"of which {format_size(capacity - allocated - spare)} is free. Including non-PyTorch memory, "
        f"this process has {format_size(allocated + spare)} memory in use. {limit}"
        f"Of the allocated memory {format_size(allocated)} is allocated by PyTorch, "
        f"and {format_size(spare)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
        "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
    return error


def invalid_ordinal() -> RuntimeError:
    """CUDA's error for ``cuda:7`` on a machine with fewer GPUs."""
    return _cuda_error("invalid device ordinal", "GPU device may be out of range, do you have enough GPUs?")


INVALID_ARGUMENT, NO_ALLOCATOR = "Invalid device argument", "Allocator not initialized for device"


def no_allocator(what: str, index: int) -> RuntimeError:
    """The caching allocator has no part for this device, or none at all before CUDA is used.

    It prints the number as a character (``CUDACachingAllocator.cpp``), and number 0 ends the text.
    """
    return RuntimeError(f"{what} {chr(index % 256)}: did you call init?".partition("\0")[0])


def no_stream(index: int, count: int) -> RuntimeError:
    """``torch.cuda.current_stream(7)`` on a machine with fewer GPUs (``CUDAStream.cpp``)."""
    return RuntimeError(f"Device index value {index} is out of index range [0, {count})")


def device_assert() -> RuntimeError:
    """CUDA's error when a kernel finds an index out of bounds."""
    return _cuda_error("device-side assert triggered", _explained_as("cudaErrorAssert"))


def absent(name: str, overload: str) -> RuntimeError:
    """The dispatcher's error for an operator without a CUDA kernel, but without its list of backends."""
    operator = f"aten::{name}.{overload}".removesuffix(".")
    return NotImplementedError(
        f"Could not run '{operator}' with arguments from the 'CUDA' backend. This could be because the "
        "operator doesn't exist for this backend, or was omitted during the selective/custom build process "
        "(if using custom build). If you are a Facebook employee using PyTorch on mobile, please visit "
        "https://fburl.com/ptmfixes for possible resolutions."
    )


def half_fft(sizes: Sequence[int]) -> RuntimeError:
    """A Fourier transform in half precision (``ATen/native/cuda/CuFFTPlanCache.h``)."""
    return RuntimeError(
        "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, but "
        f"got a signal size of{list(sizes)}"
    )


def not_deterministic(kernel: str, warn_only: bool) -> RuntimeError:
    """``torch.use_deterministic_algorithms(True)`` and a kernel that is not (``ATen/Context.cpp``)."""
    lacks = f"{kernel} does not have a deterministic implementation, but you set "
    issue = (
        "file an issue at https://github.com/pytorch/pytorch/issues to help us prioritize adding "
        "deterministic support for this operation."
    )
    if warn_only:
        return RuntimeError(
            f"{lacks}'torch.use_deterministic_algorithms(True, warn_only=True)'. You can {issue}"
        )
    return RuntimeError(
        f"{lacks}'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this "
        "operation, or you can use the 'warn_only=True' option, if that's acceptable for your application. "
        f"You can also {issue}"
    )


def cublas_not_deterministic() -> RuntimeError:
    """The same for a matrix product, if cuBLAS is not configured for it (``ATen/Context.cpp``)."""
    return RuntimeError(
        "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or "
        "`at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic because "
        "it uses CuBLAS and you have CUDA >= 10.2. To enable deterministic behavior in this case, you must "
        "set an environment variable before running your PyTorch application: "
        "CUBLAS_WORKSPACE_CONFIG=:4096:8 or CUBLAS_WORKSPACE_CONFIG=:16:8. For more information, go to "
        "https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility"
    )


def unchecked(what: str, said: str) -> PracticeError:
    """The CPU finds wrong values that CUDA does not check."""
    return PracticeError(
        f"{what}. The CPU, which computes for the practice GPU, says: {said.splitlines()[0]}. "
        "Correct the values: a real GPU would go on with wrong numbers"
    )


def _cuda_error(what: str, hint: str) -> RuntimeError:
    error: RuntimeError = torch.AcceleratorError(f"CUDA error: {what}\n{hint}\n{_AFTERWARDS}")
    return error


def _explained_as(status: str) -> str:
    return f"Search for `{status}' in {_ERROR_TYPES} for more information."


def capturing() -> RuntimeError:
    """CUDA's error when the host would wait for a device during a capture."""
    return _cuda_error(
        "operation not permitted when stream is capturing", _explained_as("cudaErrorStreamCaptureUnsupported")
    )


def capture_spoilt() -> RuntimeError:
    """CUDA's error for everything after that, and at the end of the capture."""
    return _cuda_error(
        "operation failed due to a previous error during capture",
        _explained_as("cudaErrorStreamCaptureInvalidated"),
    )


def no_cublas_handle() -> RuntimeError:
    """The first matrix product of a process, in a capture: cuBLAS cannot get the memory for its handle."""
    return RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")


def captured_event() -> RuntimeError:
    """CUDA's error when the host queries an event that was recorded in a capture."""
    return _cuda_error(
        "operation not permitted on an event last recorded in a capturing stream",
        _explained_as("cudaErrorCapturedEvent"),
    )


def captured_copy() -> RuntimeError:
    """A copy in a capture from or to host memory that is not pinned."""
    return RuntimeError(
        "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
        "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
    )


def default_stream() -> RuntimeError:
    """A capture on the default stream."""
    return RuntimeError(
        "CUDA graphs must be captured on a non-default stream. "
        "(However, after capture, it's ok to replay them on the default stream.)"
    )


def second_capture() -> RuntimeError:
    """A capture into an object that already holds a graph."""
    return RuntimeError(
        "This CUDAGraph instance already owns a captured graph. "
        "To capture a new graph, create a new instance."
    )


def nothing_captured(method: str) -> RuntimeError:
    """``replay()`` or ``pool()`` of an empty ``CUDAGraph``."""
    return RuntimeError(f"Called CUDAGraph::{method} without a preceding successful capture.")


def wrong_capture_mode(mode: object) -> RuntimeError:
    """``capture_error_mode`` is not one of three words."""
    return RuntimeError(
        f"Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got {mode}"
    )


def unregistered_generator() -> RuntimeError:
    """Random numbers in a capture from a generator that the graph does not know, before PyTorch 2.12."""
    return RuntimeError("Attempt to increase offset for a CUDA generator not in capture mode.")


def seeded_in_capture() -> RuntimeError:
    """``torch.cuda.manual_seed`` in a capture."""
    return RuntimeError(
        "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the "
        "same as the original seed."
    )


def stale_memory() -> PracticeError:
    """A graph is replayed, and a tensor that it was captured with is gone."""
    return PracticeError(
        "this graph uses the memory of a tensor that was given back since the capture. The practice GPU "
        "stops here; a real GPU often says nothing, and reads and overwrites whatever is in that memory now. "
        "Keep the tensors that a graph was captured with, and capture again after optimizer.load_state_dict()"
    )


def forked() -> RuntimeError:
    """PyTorch's error when a forked child of a process that used CUDA uses it again."""
    return RuntimeError(
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
        "'spawn' start method"
    )


def not_cuda() -> RuntimeError:
    """``tensor.cuda("cpu")``."""
    return RuntimeError("Invalid device, must be cuda device")


def moved_by_hook(hook: object, before: str, after: str) -> RuntimeError:
    """A hook of a tensor returns a gradient on another kind of device (``autograd/python_hook.cpp``)."""
    name = getattr(hook, "__name__", "<unknown>")
    return RuntimeError(f"hook '{name}' has changed the type of value (was {before} got {after})")


def not_numpy(index: int) -> TypeError:
    """NumPy arrays live in host memory."""
    return TypeError(
        f"can't convert {device_name(index)} device type tensor to numpy. "
        "Use Tensor.cpu() to copy the tensor to host memory first."
    )


def not_pinnable(dtype: torch.dtype, index: int) -> RuntimeError:
    """Only host memory can be page-locked."""
    return RuntimeError(f"cannot pin '{type_name(dtype, index)}' only dense CPU tensors can be pinned")


def factory_pinned() -> RuntimeError:
    """``torch.zeros(2, device="cuda", pin_memory=True)``."""
    return RuntimeError("Only dense CPU tensors can be pinned")


def wrong_generator(expected: str, found: str) -> RuntimeError:
    """A random operator was given another device's generator."""
    return RuntimeError(f"Expected a '{expected}' device type for generator but found '{found}'")


def wrong_gradient(gradient: int, tensor: int) -> RuntimeError:
    """``tensor.grad = gradient`` across devices."""
    if gradient >= 0 and tensor >= 0:
        return RuntimeError(
            f"attempting to assign a gradient located on device with index '{gradient}' "
            f"to a tensor located on device with index '{tensor}'. "
            "Please ensure that the gradient and the tensor are on the same device"
        )
    kinds = ["cuda" if index >= 0 else "cpu" for index in (gradient, tensor)]
    return RuntimeError(
        f"attempting to assign a gradient with device type '{kinds[0]}' "
        f"to a tensor with device type '{kinds[1]}'. "
        "Please ensure that the gradient and the tensor are on the same device"
    )


def wrong_storage(tensor: int, storage: int) -> RuntimeError:
    """``tensor.set_(other)`` across devices."""
    return RuntimeError(
        f'Attempted to set the storage of a tensor on device "{device_name(tensor)}" to a storage on '
        f'different device "{device_name(storage)}".  This is no longer allowed; the devices must match.'
    )


def invalid_gradient(prefix: str, index: int, expected: int, found: int) -> RuntimeError:
    """A backward pass meets a gradient on another device than the tensor that it belongs to."""
    return RuntimeError(
        f"{prefix} gradient at index {index} - expected device {device_name(expected)} "
        f"but got {device_name(found)}"
    )


def wrong_recurrent(kind: str, found: int, input_on: int) -> RuntimeError:
    """An LSTM, GRU or RNN whose input is elsewhere; ``kind`` is ``hidden`` or ``parameter``."""
    return RuntimeError(
        f"Input and {kind} tensors are not at the same device, found input tensor at {device_name(input_on)} "
        f"and {kind} tensor at {device_name(found)}"
    )


def wrong_attention(query: int, key: int, value: int) -> RuntimeError:
    """``scaled_dot_product_attention`` across devices."""
    return RuntimeError(
        "Expected query, key, and value to have the same device type, but got query.device: "
        f"{device_name(query)} key.device: {device_name(key)} and value.device: {device_name(value)} instead."
    )


def wrong_convolution(
    argument: str, dtype: torch.dtype, index: int, input_on: int, tail: str
) -> RuntimeError:
    """A convolution whose weight or bias is elsewhere."""
    return RuntimeError(
        f"Input type ({type_name(dtype, input_on)}) and {argument} type ({type_name(dtype, index)}) "
        f"should be the same{tail}"
    )


def wrong_convolution_type(argument: str, dtype: torch.dtype, given: torch.dtype) -> RuntimeError:
    """A convolution on a GPU whose weight or bias has another type than its input."""
    return RuntimeError(
        f"Input type ({type_name(given, 0)}) and {argument} type ({type_name(dtype, 0)}) should be the same"
    )


def wrong_indices(index: int) -> RuntimeError:
    """Indices on a GPU for a tensor that is not there."""
    return RuntimeError(
        f"indices should be either on cpu or on the same device as the indexed tensor ({device_name(index)})"
    )


def wrong_mask(mask: int, index: int) -> RuntimeError:
    """``masked_fill`` with the mask elsewhere."""
    return RuntimeError(
        f"expected self and mask to be on the same device, but got mask on {device_name(mask)} and self on "
        f"{device_name(index)}"
    )


def wrong_fill() -> RuntimeError:
    """``masked_fill`` of a CPU tensor with a tensor value, something being on a GPU."""
    return RuntimeError("masked_fill_: Expected inputs to be on same device")


def wrong_type(text: str, expected: str, found: str) -> TypeError:
    """``torch.cuda.LongTensor`` with a wrong tensor; `text` is the CPU's error for one on the meta device."""
    return TypeError(
        text.replace("device=cpu", f"device={expected}").replace("device=meta", f"device={found}")
    )


def wrong_legacy_device(expected: str, found: str) -> RuntimeError:
    """``torch.cuda.FloatTensor(2, device="cpu")``."""
    return RuntimeError(
        f"legacy constructor expects device type: {expected} but device type: {found} was passed"
    )


def on_host_only(method: str) -> TypeError:
    """``apply_``, ``map_`` and ``map2_`` (``torch/csrc/utils/tensor_apply.cpp``)."""
    return TypeError(f"{method} is only implemented on CPU tensors")


def wrong_partner(method: str, argument: str, tensor: str, other: str) -> TypeError:
    """``map_`` and ``map2_`` of tensors that are not of one type."""
    which = f"'{argument}'" if argument == "other" else f"argument '{argument}'"
    return TypeError(f"{method}: expected {tensor} for {which} (got {other})")


def wrong_sections(index: int) -> RuntimeError:
    """``torch.tensor_split`` at positions that are on a GPU."""
    return RuntimeError(
        f"tensor_split expected tensor_indices_or_sections to be on cpu, but it's on {device_name(index)}"
    )


def wrong_lengths(dim: int, dtype: torch.dtype, index: int) -> RuntimeError:
    """``pack_padded_sequence`` with its lengths on a GPU."""
    return RuntimeError(
        f"'lengths' argument should be a 1D CPU int64 tensor, but got {dim}D {device_name(index)} "
        f"{scalar_name(dtype)} tensor"
    )


def wrong_groups() -> RuntimeError:
    """An optimizer's parameters, gradients and state are not together."""
    return RuntimeError(
        "Tensors of the same index must be on the same device and the same dtype "
        "except `step` tensors that can be CPU and float32/64, "
        "and optimizer states that can be bfloat16 for mixed-precision training"
    )


def unsafe_to_autocast() -> RuntimeError:
    """``BCELoss`` under ``torch.autocast("cuda")``."""
    return RuntimeError(_UNSAFE)


def synchronising() -> RuntimeError:
    """``torch.cuda.set_sync_debug_mode("error")`` and an operation that waits."""
    return RuntimeError("called a synchronizing CUDA operation")


def not_simulated(what: str) -> PracticeError:
    """Something that only a real GPU can do."""
    return PracticeError(
        f"the practice GPU does not simulate {what}: run this on a machine with a CUDA GPU, or leave it out"
    )


def other_settings(capacity: int, count: int, asked: object) -> PracticeError:
    """A thread opens a practice GPU with other settings than the one that is open."""
    return PracticeError(
        f"another thread has opened practice_gpu(memory={format_size(capacity)!r}, count={count}), and this "
        f"one asks for {asked!r}: all threads of a process share one practice GPU. Give both the same memory "
        "and count, or open this one after the other has been closed"
    )


def moved_in_script() -> PracticeError:
    """A scripted function moves a tensor to the device."""
    return PracticeError(
        "the practice GPU does not simulate .to() and .cuda() inside TorchScript: on CUDA they would move "
        "the tensor. Move it before you call the scripted function, or call the function unscripted"
    )


def moved_in_trace() -> PracticeError:
    """A function that ``torch.jit.trace`` follows moves a tensor to the device."""
    return PracticeError(
        "the practice GPU does not simulate a move between devices inside torch.jit.trace: on CUDA it would "
        "be recorded. Move the tensors before you trace, or do not trace"
    )


def traced_across_devices() -> PracticeError:
    """``torch.jit.trace`` of a model and inputs that are not on one device."""
    return PracticeError(
        "the practice GPU does not simulate torch.jit.trace of a model and inputs on several devices: "
        "move them to one device before you trace"
    )


def traced_constant() -> PracticeError:
    """A function that ``torch.jit.trace`` follows makes a tensor of Python numbers."""
    return PracticeError(
        "the practice GPU does not simulate torch.jit.trace of a function that makes its own tensor, with "
        "torch.tensor() for instance: the trace would not know where it is. Make it a buffer of the model"
    )


def exported() -> PracticeError:
    """``torch.export.export`` of a model or input on the device."""
    return PracticeError(
        "the practice GPU does not simulate torch.export.export of a model or input on the device: on "
        "CUDA, the exported program would contain the device. Export the model on the CPU, after model.cpu()"
    )


# -- several processes


def no_nccl() -> PracticeError:
    """The program makes an NCCL group by hand."""
    return PracticeError(
        "the practice GPU does not simulate the classes of NCCL, which send data between GPUs directly: "
        'make the group with torch.distributed.init_process_group("nccl")'
    )


def no_backend(kind: str) -> RuntimeError:
    """A collective's tensors are on a type of device that the group does not serve (``ProcessGroup.hpp``)."""
    return RuntimeError(f"No backend type associated with device type {kind}")


def not_dense_cuda() -> ValueError:
    """Some of a collective's tensors are on the CPU, or sparse (``ProcessGroupNCCL.cpp``)."""
    return ValueError("Tensors must be CUDA and dense")


def several_devices() -> ValueError:
    """A collective's tensors are on several devices (``ProcessGroupNCCL.cpp``)."""
    return ValueError("Expected list of tensors on the same device")


def received_from_any() -> RuntimeError:
    """``recv`` without a source (``Backend.hpp``)."""
    return RuntimeError("Backend nccl does not support recvAnysource")


def bitwise(op: str) -> ValueError:
    """A bitwise reduction (``ProcessGroupNCCL.cpp``)."""
    return ValueError(f"Cannot use ReduceOp.{op} with NCCL")


def unlike_calls(rank: int, call: str, other: int, theirs: str) -> PracticeError:
    """Two processes of a group make different calls."""
    return PracticeError(
        f"rank {rank} calls {call}, but rank {other} calls {theirs}. NCCL does not compare them: the GPUs "
        "would wait for one another until the group's timeout, and then its watchdog would end the "
        "processes. All ranks have to call the same collectives, in the same order, with tensors of the "
        "same size and type"
    )


def same_gpu(rank: int, other: int, index: int, version: Sequence[int]) -> RuntimeError:
    """Two processes of a group are on the same GPU.

    Sources: ``init.cc`` of NCCL 2.19.3 and, for the newer text, the library of NCCL 2.30.7; for the
    text around it, ``NCCLUtils.cpp`` and ``getNcclErrorDetailStr`` of PyTorch. NCCL names a GPU by its bus
    number, in hexadecimal; here the device number replaces it.
    """
    error: type[RuntimeError] = torch.distributed.DistBackendError
    text = (
        "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this "
        "configuration."
    )
    if tuple(version) < (2, 30):
        text = (
            f"Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device {(index + 1) << 12:x}"
        )
    return error(
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage (run with "
        f"NCCL_DEBUG=WARN for details), NCCL version {'.'.join(map(str, version))}\n"
        f"ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n{text}"
    )
