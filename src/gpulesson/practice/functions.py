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
from gpulesson.practice.keys import unobserved
from gpulesson.practice.patches import Handler, Patches

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_STEP_DTYPES = (torch.float32, torch.float64)


def plan(patches: Patches, gpu: PracticeGPU) -> None:
    """Plan the replacements in :mod:`torch`, :mod:`torch.nn.functional` and ``torch._C``."""
    for name in _RECURRENT:
        for owner in (torch, torch._VF):
            patches.handle(owner, name, _recurrent)
    patches.handle(F, "scaled_dot_product_attention", _attention)
    patches.handle(torch, "ctc_loss", _ctc_loss)
    patches.handle(torch, "get_device", _get_device)
    patches.handle(torch._C, "_group_tensors_by_device_and_dtype", _group_by_device)
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
