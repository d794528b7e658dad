"""Functions whose C++ body compares devices before any operator runs: the comparison is made here.

And two that would else be slow or wrong: grouping an optimizer's tensors, and taking samples out of a
dataset.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from gpulesson.practice import errors
from gpulesson.practice.gpu import PracticeGPU
from gpulesson.practice.patches import Handler, Patches

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_FOURIER = [f"{kind}fft{n}" for kind in ("", "i", "r", "ir", "h", "ih") for n in ("", "2", "n")]
_FFT_TYPES = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex32: torch.complex64,
}
_STEP_DTYPES = (torch.float32, torch.float64)


def plan(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the replacements in :mod:`torch`, :mod:`torch.nn.functional` and ``torch._C``."""
    for name in _RECURRENT:
        for owner in (torch, torch._VF):
            patches.handle(owner, name, _recurrent)
    patches.handle(F, "scaled_dot_product_attention", _attention)
    patches.handle(torch, "ctc_loss", _ctc_loss)
    patches.handle(torch, "get_device", _get_device)
    patches.handle(F, "one_hot", _one_hot)
    patches.handle(torch._C._nn, "one_hot", _one_hot)
    for name in ("quantile", "nanquantile"):
        patches.handle(torch, name, _quantile)
        patches.handle(torch.Tensor, name, _quantile)
    patches.handle(torch._C, "_group_tensors_by_device_and_dtype", _group_by_device)
    for name in _FOURIER:
        patches.handle(torch.fft, name, _fft(name))
    patches.handle(torch, "compile", _compile)
    patches.handle(torch.autograd, "grad", _gradients)
    patches.add(TensorDataset, "__getitems__", _samples(gpu))
    patches.plan(torch.backends.cudnn, "is_acceptable", lambda tensor: False)  # nn.LSTM asks before cuDNN


def _get_device(gpu: PracticeGPU, original: Handler, tensor: torch.Tensor) -> int:
    return gpu.ledger.index(tensor)


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
    """CUDA takes the lengths from either device; the CPU kernel wants numbers."""
    given = [_numbers(value) for value in args[:2]]
    named = {name: _numbers(v) if name.endswith("lengths") else v for name, v in kwargs.items()}
    return original(log_probs, targets, *given, *args[2:], **named)


def _one_hot(gpu: PracticeGPU, original: Handler, tensor: Any, num_classes: int = -1) -> Any:
    """CUDA does not look at the classes: ``scatter_`` does, in its kernel (``ATen/native/Onehot.cpp``)."""
    if gpu.ledger.index(tensor) < 0 or not tensor.numel() or num_classes == 0 or num_classes < -1:
        return original(tensor, num_classes)
    if num_classes < 0:
        num_classes = int(tensor.max().item()) + 1
    result = torch.zeros(*tensor.shape, num_classes, dtype=tensor.dtype, device=tensor.device)
    return result.scatter_(-1, tensor.unsqueeze(-1), 1)


def _quantile(gpu: PracticeGPU, original: Handler, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """CUDA does not look at the quantiles: ``gather`` does, in its kernel (``ATen/native/Sorting.cpp``)."""
    try:
        return original(tensor, *args, **kwargs)
    except RuntimeError as error:
        if gpu.ledger.index(tensor) >= 0 and "q values must be in the range" in str(error):
            raise errors.device_assert() from None
        raise


def _fft(name: str) -> Handler:
    """Return what does a Fourier transform in half precision: cuFFT knows it, and the CPU does not."""

    def handler(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
        given: Any = args[0] if args else None
        wide = _FFT_TYPES.get(given.dtype) if isinstance(given, torch.Tensor) else None
        if wide is None or gpu.ledger.index(given) < 0:
            return original(*args, **kwargs)
        result = original(given.to(wide), *args[1:], **kwargs)
        if given.dtype is torch.bfloat16:  # it has no complex type: CUDA, too, returns float32's
            return result
        for sizes in _signal_sizes(name, *args, **kwargs):
            if any(size & (size - 1) for size in sizes):
                raise errors.half_fft(sizes)
        return result.to(torch.complex32 if result.is_complex() else torch.float16)

    return handler


def _signal_sizes(
    name: str, tensor: Any, n: Any = None, dim: Any = None, norm: Any = None, s: Any = None, out: Any = None
) -> list[list[int]]:
    """Return the sizes that each of cuFFT's plans is made for."""
    sizes = n if s is None else s
    one = name.endswith("fft")
    if dim is None:
        count = 1 if one else 2 if name.endswith("2") else tensor.dim() if sizes is None else len(sizes)
        dim = range(-count, 0)
    dims = [dim] if isinstance(dim, int) else list(dim)
    if sizes is None:
        found = [tensor.size(each) for each in dims]
        if name.startswith(("hfft", "irfft")):  # half of the numbers are given
            found[-1] = 2 * (found[-1] - 1)
    else:
        found = [sizes] if isinstance(sizes, int) else list(sizes)
    if name.startswith(("fft", "ifft")):
        return [found]
    plans = [found[-1:], found[:-1]]  # the side that is real is transformed apart
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
    """
    Return what a DataLoader looks for to take many samples at once.

    The operator mode would see an operator for every tensor of every sample; it needs none where all are on
    the host.
    """

    def getitems(dataset: TensorDataset, indices: list[int]) -> list[tuple[torch.Tensor, ...]]:
        alone = torch._C._len_torch_dispatch_stack() == 1
        if alone and all(gpu.ledger.index(tensor) < 0 for tensor in dataset.tensors):
            with torch._C._DisableTorchDispatch():
                return [dataset[index] for index in indices]
        return [dataset[index] for index in indices]

    return getitems


def _gradients(
    gpu: PracticeGPU, original: Handler, outputs: Any, inputs: Any, *args: Any, **kwargs: Any
) -> Any:
    """A gradient that is all zeros was made from a shape alone: it is where the input is."""
    gradients = original(outputs, inputs, *args, **kwargs)
    if gpu.ledger.any_unplaced:
        inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
        for tensor, gradient in zip(inputs, gradients, strict=False):
            if isinstance(gradient, torch.Tensor) and gpu.ledger.is_unplaced(gradient):
                gpu.ledger.place(gradient, gpu.ledger.index(tensor))
    return gradients


def _compile(gpu: PracticeGPU, original: Handler, /, *args: Any, **kwargs: Any) -> Any:
    """Compile nothing: kernels for a GPU could not run here."""
    return original(*args, **{**kwargs, "disable": True})
