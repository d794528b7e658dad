"""CUDA's same-device rules, needed only when an operator really mixes devices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from practice_gpu import errors
from practice_gpu.device.ledger import CPU
from practice_gpu.operators.facts import Facts, device_check

COMPOSITE = -2
"""Answer of :func:`home`: the operator consists of others, each with its own device."""


@dataclass(frozen=True)
class Operand:
    """One tensor argument, and the simulated device that it is on."""

    argument: str
    tensor: torch.Tensor
    index: int


def home(func: Any, facts: Facts, operands: Sequence[Operand]) -> int:
    """Return the device of a mixed operator, -1 for the CPU, or ``COMPOSITE``; or raise CUDA's error.

    `operands` are in the order of the schema, ``out=`` first.
    """
    special = _SPECIAL.get(facts.name)
    if special is not None:
        answer = special(facts, operands)
        if answer is not None:
            return answer
    kind, method = device_check(facts.name, facts.overload)
    if kind == "none" and composite_key(func) is not None:
        return COMPOSITE
    if kind == "generated" and not facts.name.startswith("_foreach_"):
        together(operands, method)
    return iterator(facts, operands)


def together(operands: Sequence[Operand], method: str) -> None:
    """Check as the code that torchgen generates: all must be on the device of the first."""
    common = operands[0].index
    for operand in operands:
        if operand.index != common:
            raise errors.wrong_argument(operand.argument, operand.index, common, method)


def iterator(facts: Facts, operands: Sequence[Operand]) -> int:
    """Check as TensorIterator: a CPU tensor without dimensions may join, unless the operator writes to it."""
    common = next(operand.index for operand in operands if operand.index >= 0)
    in_place = facts.name.endswith("_") and not facts.name.endswith("__")
    for position, operand in enumerate(operands):
        if operand.index == common:
            continue
        written = position == 0 and (in_place or operand.argument == "out")
        if operand.index >= 0 or operand.tensor.dim() or written:
            raise errors.two_devices(common, operand.index)
    return common


def composite_key(func: Any) -> Any:
    """Return the dispatch key under which an operator consists of others, or None if it does not."""
    for name in ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"):
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), name):
            return getattr(torch._C.DispatchKey, name)
    return None


# -- operators with special rules: each returns a device, raises, or returns None for the ordinary rules


def _free(facts: Facts, operands: Sequence[Operand]) -> int:
    return operands[0].index


def _index(facts: Facts, operands: Sequence[Operand]) -> int:
    """Refuse indices on another device when reading; writing moves them, and a value without dimensions."""
    itself = operands[0].index
    reads = facts.name in ("index", "_unsafe_index")
    for operand in operands[1:]:
        if operand.argument == "indices" and reads and operand.index not in (CPU, itself):
            raise errors.wrong_indices(itself)
        if operand.argument == "values" and operand.index != itself and operand.tensor.dim():
            places = (itself, operand.index) if itself >= 0 else (operand.index, itself)
            raise errors.two_devices(*places)
    return itself


def _masked_fill(facts: Facts, operands: Sequence[Operand]) -> int:
    itself, mask = operands[0].index, operands[1].index
    if itself < 0 and facts.overload == "Tensor":
        raise errors.wrong_fill()
    if mask != itself:
        raise errors.wrong_mask(mask, itself)
    return itself


def _where(facts: Facts, operands: Sequence[Operand]) -> int:
    common = next(operand.index for operand in operands if operand.index >= 0)
    for operand in operands:
        if operand.index != common and operand.tensor.dim():
            raise errors.two_devices(common, operand.index)
    return common


def _convolution(facts: Facts, operands: Sequence[Operand]) -> int:
    first = operands[0]
    for operand in operands[1:]:
        argument, tensor, index = operand.argument, operand.tensor, operand.index
        if index == first.index:
            continue
        tail = ""
        if first.index < 0:  # a CPU input selects a CPU kernel before the other devices are checked
            if first.tensor.size(0) == 1 and first.tensor.numel() <= 20480:
                raise errors.wrong_argument(argument, index, CPU, "wrapper_CUDA___slow_conv2d_forward")
            tail = f" or input should be a MKLDNN tensor and {argument} is a dense tensor"
        raise errors.wrong_convolution(argument, tensor.dtype, index, first.index, tail)
    return first.index


def _batch_norm(facts: Facts, operands: Sequence[Operand]) -> int:
    cudnn = operands[0].tensor.dim() >= 3 and operands[0].index >= 0
    together(operands, f"wrapper_CUDA__{'cudnn' if cudnn else 'native'}_batch_norm")
    return operands[0].index


def _ctc_loss(facts: Facts, operands: Sequence[Operand]) -> int:
    checked = [operand for operand in operands if "lengths" not in operand.argument]
    together(checked, device_check(facts.name, facts.overload)[1])
    return checked[0].index


def _mv(facts: Facts, operands: Sequence[Operand]) -> int:
    matrix, vector = operands[0].index, operands[1].index
    raise errors.wrong_argument("mat", matrix, vector, "wrapper_CUDA_addmv_")


def _complex(facts: Facts, operands: Sequence[Operand]) -> int | None:
    if facts.overload == "":
        together(operands, "wrapper_CUDA_out_complex_out")
    return None


def _set(facts: Facts, operands: Sequence[Operand]) -> int:
    raise errors.wrong_storage(operands[0].index, operands[1].index)


def _nested(facts: Facts, operands: Sequence[Operand]) -> int | None:
    together([replace(operand, argument="tensors") for operand in operands], "wrapper_CUDA_cat")
    return None


def _attention(facts: Facts, operands: Sequence[Operand]) -> int | None:
    query, key, value = (operand.index for operand in operands[:3])
    if not query == key == value:
        raise errors.wrong_attention(query, key, value)
    return None


def _pack_padded_sequence(facts: Facts, operands: Sequence[Operand]) -> int:
    lengths = operands[1]
    if lengths.index >= 0:
        raise errors.wrong_lengths(lengths.tensor.dim(), lengths.tensor.dtype, lengths.index)
    return COMPOSITE


_FREE = """
    _copy_from _foreach_copy_ _has_compatible_shallow_copy_type _local_scalar_dense _to_copy copy_
    is_same_size lift_fresh record_stream sym_size
"""
_INDEXING = "index index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put"
_SPECIAL: dict[str, Callable[[Facts, Sequence[Operand]], int | None]] = {
    **dict.fromkeys(_FREE.split(), _free),
    **dict.fromkeys(_INDEXING.split(), _index),
    **dict.fromkeys(("masked_fill", "masked_fill_"), _masked_fill),
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _convolution),
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"), _batch_norm
    ),
    **dict.fromkeys(("_scaled_dot_product_flash_attention_for_cpu", "_fused_sdp_choice"), _attention),
    "where": _where,
    "_ctc_loss": _ctc_loss,
    "mv": _mv,
    "set_": _set,
    "_nested_tensor_from_tensor_list": _nested,
    "complex": _complex,
    "_pack_padded_sequence": _pack_padded_sequence,
}
