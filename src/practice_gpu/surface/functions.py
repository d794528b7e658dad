"""Functions whose C++ body compares devices before any operator runs: here Python compares them.

There are also two that would otherwise be slow or wrong: grouping an optimizer's tensors, and taking samples
from a dataset.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge
from torch.utils.data import TensorDataset

from practice_gpu import errors
from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.device.ledger import CPU, dense_parts, tensors_in
from practice_gpu.patching.keys import unobserved
from practice_gpu.patching.patches import Handler, Patches
from practice_gpu.surface.tensors import get_device, move

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_PLACES = "_practice_places"
_FOURIER = [f"{kind}fft{n}" for kind in ("", "i", "r", "ir", "h", "ih") for n in ("", "2", "n")]
_FFT_TYPES = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_STEP_DTYPES = (torch.float32, torch.float64)


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the replacements in :mod:`torch`, :mod:`torch.nn.functional` and ``torch._C``."""
    for name in _RECURRENT:
        for owner in (torch, torch._VF):
            patches.handle(owner, name, _recurrent)
    both: tuple[Any, ...] = torch, torch.Tensor
    for names, text in errors.COMPARED.items():
        for name in names.split():
            for owner in (*both, torch.linalg):
                patches.handle(owner, name, functools.partial(_compared, text))
    patches.handle(F, "scaled_dot_product_attention", _attention)
    patches.handle(torch, "ctc_loss", _ctc_loss)
    for owner in both:
        patches.handle(owner, "tensor_split", _tensor_split)
        for name in ("quantile", "nanquantile"):
            patches.handle(owner, name, _quantile)
    patches.handle(torch, "get_device", get_device)
    patches.handle(torch._C._nn, "_parse_to", _parse_to)
    for owner in (F, torch._C._nn):
        patches.handle(owner, "one_hot", _one_hot)
    for owner, name in ((torch.linalg, "matrix_rank"), (torch, "vander"), (torch, "max_pool1d")):
        patches.handle(owner, name, _beside)
    patches.handle(torch._C, "_group_tensors_by_device_and_dtype", _group_by_device)
    for name in _FOURIER:
        patches.handle(torch.fft, name, _fft(name))
    patches.handle(torch.autograd, "grad", _gradients)
    patches.handle(torch.autograd, "_engine_run_backward", _from_the_roots)
    patches.wrap(torch.autograd.Function, "apply", functools.partial(_apply_noting_places, gpu))
    patches.handle(torch.autograd.function.BackwardCFunction, "apply", _backward_of_a_function)
    patches.add(TensorDataset, "__getitems__", _samples(gpu))
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)  # nn.LSTM checks this first


def _parse_to(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Read the arguments of ``Module.to``; a tensor gives its device."""
    device, *others = original(*args, **kwargs)
    tensor = args[0] if args else kwargs.get("tensor")
    return gpu.device_of(tensor) if isinstance(tensor, torch.Tensor) else device, *others


def _recurrent(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    packed = isinstance(args[3], list | tuple)
    hidden, parameters = (args[2], args[3]) if packed else (args[1], args[2])
    home = gpu.ledger.index(args[0])
    hidden = hidden if isinstance(hidden, list | tuple) else (hidden,)
    for kind, tensors in (("hidden", hidden), ("parameter", parameters)):
        for tensor in tensors:
            index = gpu.ledger.index(tensor)
            if index != home:
                raise errors.wrong_recurrent(kind, index, home)
    return original(*args, **kwargs)


def _compared(text: str, gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    """Compare the devices of all tensor arguments with that of the first."""
    tensors = tensors_in([*args, *kwargs.values()])
    places = [gpu.ledger.index(tensor) for tensor in tensors if not gpu.ledger.is_unplaced(tensor)]
    for number, place in enumerate(places):
        if place != places[0]:
            raise errors.compared(text, places[0], place, number)
    return original(*args, **kwargs)


def _attention(
    gpu: PracticeGPU, original: Handler, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any
) -> Any:
    places = [gpu.ledger.index(tensor) for tensor in (query, key, value)]
    if len(set(places)) > 1:
        raise errors.wrong_attention(*places)
    return original(query, key, value, *args, **kwargs)


def _ctc_loss(
    gpu: PracticeGPU, original: Handler, log_probs: Any, targets: Any, *args: Any, **kwargs: Any
) -> Any:
    """Convert lengths to numbers for the CPU kernel; CUDA refuses only those on a GPU beside CPU tensors."""
    if gpu.ledger.index(log_probs) < 0 and gpu.ledger.index(targets) < 0:
        for name, value in (*zip(("input_lengths", "target_lengths"), args, strict=False), *kwargs.items()):
            if isinstance(value, torch.Tensor) and (index := gpu.ledger.index(value)) >= 0:
                raise errors.wrong_argument(name, index, CPU, "wrapper_CUDA_Tensor__ctc_loss")
    given = [_numbers(value) for value in args[:2]]
    named = {name: _numbers(v) if name.endswith("lengths") else v for name, v in kwargs.items()}
    return original(log_probs, targets, *given, *args[2:], **named)


def _tensor_split(gpu: PracticeGPU, original: Handler, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and (index := gpu.ledger.index(value)) >= 0:
            raise errors.wrong_sections(index)
    return original(tensor, *args, **kwargs)


def _one_hot(gpu: PracticeGPU, original: Handler, tensor: Any, num_classes: int = -1) -> Any:
    """Let ``scatter_`` check the classes, in its kernel, as CUDA does (``ATen/native/Onehot.cpp``)."""
    if gpu.ledger.index(tensor) < 0 or not tensor.numel() or num_classes == 0 or num_classes < -1:
        return original(tensor, num_classes)
    if num_classes < 0:
        num_classes = int(tensor.max().item()) + 1
    result = torch.zeros(*tensor.shape, num_classes, dtype=tensor.dtype, device=tensor.device)
    return result.scatter_(-1, tensor.unsqueeze(-1), 1)


def _quantile(gpu: PracticeGPU, original: Handler, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Report wrong quantiles as ``gather`` does in CUDA, in its kernel (``ATen/native/Sorting.cpp``)."""
    try:
        return original(tensor, *args, **kwargs)
    except RuntimeError as error:
        if gpu.ledger.index(tensor) >= 0 and "q values must be in the range" in str(error):
            raise errors.device_assert() from None
        raise


def _beside(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    """Put what depends only on a shape, such as the ranks of empty matrices, on the first tensor's device."""
    result = original(*args, **kwargs)
    if gpu.ledger.is_unplaced(result):
        gpu.ledger.place(result, gpu.ledger.index(next(tensors_in([*args, *kwargs.values()]))))
    return result


def _fft(name: str) -> Handler:
    """Return a handler for Fourier transforms in half precision, which only cuFFT supports."""

    def handler(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
        given: Any = args[0] if args else None
        wide = _FFT_TYPES.get(given.dtype) if isinstance(given, torch.Tensor) else None
        if wide is None or gpu.ledger.index(given) < 0:
            return original(*args, **kwargs)
        result = original(given.to(wide), *args[1:], **kwargs)
        if given.dtype is torch.bfloat16:  # it has no complex type: CUDA returns float32's, too
            return result
        for sizes in _signal_sizes(name, *args, **kwargs):
            if any(size & (size - 1) for size in sizes):
                raise errors.half_fft(sizes)
        return result.to(torch.complex32 if result.is_complex() else torch.float16)

    return handler


def _signal_sizes(
    name: str, tensor: Any, n: Any = None, dim: Any = None, norm: Any = None, s: Any = None, out: Any = None
) -> list[list[int]]:
    """Return the sizes of each of cuFFT's plans."""
    sizes = n if s is None else s
    one = name.endswith("fft")
    if dim is None:
        count = 1 if one else 2 if name.endswith("2") else tensor.dim() if sizes is None else len(sizes)
        dim = range(-count, 0)
    dims = [dim] if isinstance(dim, int) else list(dim)
    if sizes is None:
        found = [tensor.size(each) for each in dims]
        if name.startswith(("hfft", "irfft")):  # the input has half of the numbers
            found[-1] = 2 * (found[-1] - 1)
    else:
        found = [sizes] if isinstance(sizes, int) else list(sizes)
    if name.startswith(("fft", "ifft")):
        return [found]
    plans = [found[-1:], found[:-1]]  # the real dimension has a separate plan
    return plans if name.startswith(("rfft", "ihfft")) else plans[::-1]


def _numbers(lengths: Any) -> Any:
    return lengths.tolist() if isinstance(lengths, torch.Tensor) and lengths.dim() == 1 else lengths


def _group_by_device(
    gpu: PracticeGPU, original: Handler, tensor_lists: list[list[Any]], with_indices: bool = False
) -> dict[tuple[torch.device, torch.dtype], tuple[list[list[Any]], list[int]]]:
    """Group an optimizer's tensors by the first list's devices and dtypes, as the C++ function does."""
    index = gpu.ledger.index
    first, *others = tensor_lists
    homes = [index(tensor) for tensor in first]
    for tensors in others:
        for home, tensor in zip(homes, tensors, strict=False):
            elsewhere = tensor is not None and (place := index(tensor)) != home
            if elsewhere and (place >= 0 or tensor.dtype not in _STEP_DTYPES):
                raise errors.wrong_groups()
    rows: dict[tuple[int, torch.dtype], list[int]] = {}
    for row, (home, tensor) in enumerate(zip(homes, first, strict=True)):
        rows.setdefault((home, tensor.dtype), []).append(row)
    groups = {}
    for (home, dtype), chosen in rows.items():
        device = gpu.devices[home] if home >= 0 else first[chosen[0]].device
        lists = [[tensors[row] for row in chosen] if tensors else [] for tensors in tensor_lists]
        groups[device, dtype] = (lists, chosen if with_indices else [])
    return groups


def _samples(gpu: PracticeGPU) -> Callable[[TensorDataset, list[int]], list[tuple[torch.Tensor, ...]]]:
    """Return the method with which a DataLoader takes many samples at once.

    It hides the operators for every tensor of every sample from the practice GPU, where all are on the host.
    """

    def getitems(dataset: TensorDataset, indices: list[int]) -> list[tuple[torch.Tensor, ...]]:
        mode = gpu.thread_state.mode
        alone = mode is not None and mode.alone
        if alone and all(gpu.ledger.index(tensor) < 0 for tensor in dataset.tensors):
            with unobserved():
                return [dataset[index] for index in indices]
        return [dataset[index] for index in indices]

    return getitems


def _gradients(
    gpu: PracticeGPU, original: Handler, outputs: Any, inputs: Any, *args: Any, **kwargs: Any
) -> Any:
    """Put gradients on their tensors' devices.

    A gradient of zeros is made from a shape alone, and the engine moves one that has no dimensions.
    """
    inputs = (inputs,) if isinstance(inputs, torch.Tensor | GradientEdge) else tuple(inputs)
    gradients = original(outputs, inputs, *args, **kwargs)
    return tuple(
        _beside_its_tensor(gpu, gradient, tensor) for gradient, tensor in zip(gradients, inputs, strict=True)
    )


def _beside_its_tensor(gpu: PracticeGPU, gradient: Any, tensor: Any) -> Any:
    home = _place(gpu, tensor)
    if home is None or _place(gpu, gradient) is None:
        return gradient
    if gpu.ledger.is_unplaced(gradient):
        gpu.ledger.place(gradient, home)
    return gradient if gradient.dim() else move(gpu, gradient, home, ".to() in backward")


def _from_the_roots(
    gpu: PracticeGPU,
    original: Handler,
    roots: Sequence[Any],
    gradients: Sequence[Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a backward pass from the given gradients, which must be on their tensors' devices."""
    homes = [_place(gpu, root) for root in roots]
    gradients = _validated(gpu, gradients, homes, "invalid")
    try:
        return original(roots, gradients, *args, **kwargs)
    except RuntimeError as error:
        of_saved = "modified by an inplace operation: [torch." in str(error)
        on_device = errors.on_device(error) if of_saved and homes[0] not in (None, CPU) else None
        if on_device is None:
            raise
        raise on_device from None


def _apply_noting_places(gpu: PracticeGPU, original: Any) -> Any:
    """Return ``torch.autograd.Function.apply`` with a record of where arguments and results are."""
    unbound = vars(torch.autograd.Function)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        results = unbound.__get__(None, cls)(*args, **kwargs)
        places = [
            [_place(gpu, value) for value in values]
            for values in (args, results if isinstance(results, tuple) else (results,))
        ]
        for result in tensors_in(results):
            node: Any = result.grad_fn
            if isinstance(node, BackwardCFunction):
                setattr(node, _PLACES, places)
        return results

    return classmethod(apply)


def _backward_of_a_function(gpu: PracticeGPU, original: Handler, node: Any, *gradients: Any) -> Any:
    """Call a user's ``backward`` with zeros on the right device, and validate what it returns."""
    arguments, results = getattr(node, _PLACES, ((), ()))
    for gradient, home in zip(gradients, results, strict=False):
        if home is not None and isinstance(gradient, torch.Tensor) and gpu.ledger.is_unplaced(gradient):
            gpu.ledger.place(gradient, home)
    returned = original(node, *gradients)
    several = isinstance(returned, tuple)
    prefix = f"Function {type(node).__name__} returned an invalid"
    valid = _validated(gpu, returned if several else (returned,), arguments, prefix)
    return valid if several else valid[0]


def _place(gpu: PracticeGPU, value: Any) -> int | None:
    """Return where a tensor is; None for anything else, and for a batch that ``vmap`` hides."""
    return gpu.ledger.index(value) if isinstance(value, torch.Tensor) and dense_parts(value) else None


def _validated(
    gpu: PracticeGPU, gradients: Sequence[Any], homes: Sequence[int | None], prefix: str
) -> tuple[Any, ...]:
    """Compare gradients' devices as ``validate_outputs`` in ``torch/csrc/autograd/engine.cpp`` does.

    It counts only the tensors among a function's arguments.
    """
    valid = list(gradients)
    tensors = [position for position, home in enumerate(homes) if home is not None]
    for index, position in enumerate(tensors[: len(valid)]):
        gradient, home = valid[position], homes[position]
        found = _place(gpu, gradient)
        if home is None or found is None:
            continue
        if gpu.ledger.is_unplaced(gradient):
            gpu.ledger.place(gradient, home)
        elif found != home:
            if gradient.dim():
                raise errors.invalid_gradient(prefix, index, home, found)
            valid[position] = move(gpu, gradient, home, ".to() in backward")
    return tuple(valid)
