"""What one ATen operator costs a GPU at least: arithmetic, memory traffic, kernels to launch.

Only shapes and types count, so that meta tensors do as well as tensors with numbers. What depends on the
numbers is left out: of a table that an index reads from, nothing is counted, as all indices may be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from gpulesson_tools.planning.recording.record import Cost


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NO_KERNEL = _names(
    """_unsafe_view empty empty_like empty_permuted empty_quantized empty_strided new_empty new_empty_strided
    record_stream resize_ resize_as_ set_ unsafe_split unsafe_split_with_sizes"""
)
"""Operators that only allocate or share memory, and do not say so in their schemas."""
_CONVOLUTIONS = _names("convolution _convolution convolution_backward")
_OVERWRITES = _names(
    """_foreach_copy_ _foreach_zero_ bernoulli_ cauchy_ copy_ exponential_ fill_ geometric_ log_normal_
    normal_ random_ uniform_ zero_"""
)
"""These write their first argument in place, and do not read it."""
_SHAPE_ONLY = _names(
    """_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward
    adaptive_max_pool3d_backward avg_pool2d_backward avg_pool3d_backward max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward nll_loss_backward nll_loss2d_backward"""
)
"""These take ``self`` for its shape, as do ``zeros_like``, ``new_zeros`` and the like."""
_PARTLY = {
    name: argument
    for argument, names in {
        "self": """_index_put_impl_ _upsample_nearest_exact1d _upsample_nearest_exact2d diagonal_copy
            fill_diagonal_ gather index index_add_ index_copy_ index_fill_ index_put_ index_reduce_
            index_select masked_scatter_ masked_select nll_loss2d_forward nll_loss_forward put_ scatter_
            scatter_add_ scatter_reduce_ take tril tril_ triu triu_ upsample_bicubic2d upsample_bilinear2d
            upsample_nearest1d upsample_nearest2d upsample_nearest3d""",
        "weight": "_embedding_bag _embedding_bag_forward_only embedding",
        "input": "grid_sampler_2d grid_sampler_3d",
    }.items()
    for name in _names(names)
}
"""How much of this argument they read, or write in place, depends on numbers: it is not counted."""


class _Schema:
    """What an operator's schema says, worked out once: which arguments it reads, which it writes."""

    __slots__ = ("fresh", "name", "names", "no_kernel", "packet", "reads", "writes")

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.packet = func._overloadpacket
        self.name = schema.name.partition("::")[2]
        self.names = [argument.name for argument in schema.arguments]
        written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        self.no_kernel = (
            func.is_view
            or torch.Tag.inplace_view in func.tags
            or self.name in _NO_KERNEL
            or not (written or any("Tensor" in str(each.type) for each in schema.returns))  # the host asks
        )
        partly = _PARTLY.get(self.name)
        unread = {a.name for a in written if a.kwarg_only} | {partly}  # out=
        if self.name in _SHAPE_ONLY or self.name.endswith("_like") or self.name.startswith("new_"):
            unread.add("self")
        if self.name in _OVERWRITES:
            unread.add(self.names[0])
        self.reads = [name for name in self.names if name not in unread]
        self.writes = [a.name for a in written if a.name != partly]
        self.fresh = [each.alias_info is None for each in schema.returns]


_schema = cache(_Schema)


def cost(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Cost:
    """Return what a call of an operator costs at least.

    The parameters are those of ``__torch_dispatch__``, and what it returned. All tensors count as being on
    the device: of a copy from the host, the source is not traffic of the device's memory, and the caller has
    to leave it out. Views, and what only allocates, cost nothing.

    Examples
    --------
    >>> x, w = torch.ones(8, 4), torch.ones(4, 2)
    >>> cost(torch.ops.aten.mm.default, (x, w), {}, x @ w)
    Cost(operator='mm', dtype='float32', flop=128, least_flop=128, nbytes=224, launches=1)
    """
    schema = _schema(func)
    if schema.no_kernel:
        return Cost(schema.name, "", 0, 0, 0, 0)
    given = dict(zip(schema.names, args, strict=False)) | dict(kwargs)
    results = result if len(schema.fresh) > 1 else (result,)
    made = [each for each, fresh in zip(results, schema.fresh, strict=False) if fresh]
    tensors = [*_tensors(args), *_tensors(list(kwargs.values())), *_tensors(made)]
    formula = flop_registry.get(schema.packet)
    flop = int(formula(*args, **kwargs, out_val=result)) if formula is not None else 0
    return Cost(
        schema.name,
        dtype=_dtype(schema.name, tensors, flop),
        flop=flop,
        least_flop=_least_flop(schema.name, given, flop),
        nbytes=_traffic(schema, given, made),
        launches=_launches(schema.name, given) if any(each.numel() for each in tensors) else 0,
    )


def _traffic(schema: _Schema, given: Mapping[str, Any], made: list[Any]) -> int:
    """Return the bytes that are read and written, counting once what arguments share."""
    unused = _unused(schema.name, given)
    reads = [given.get(name) for name in schema.reads if name not in unused]
    writes = [
        given.get(name) for name in schema.writes if name != "grads" or given.get("grad_scale") is not None
    ]
    total = _distinct(reads) + _distinct(writes) + sum(_nbytes(each) for each in _tensors(made))
    if schema.name in _CONVOLUTIONS and "input" not in unused:
        total -= _stepped_over(given)
    return total


def _unused(name: str, given: Mapping[str, Any]) -> set[str]:
    """Return the names of arguments that this call does not look at."""
    if name in ("addbmm", "addmm", "addmv", "addr", "baddbmm") and given.get("beta", 1) == 0:
        return {"self"}
    if name == "convolution_backward":
        of_input, of_weight, _ = given["output_mask"]
        return {name for name, used in (("weight", of_input), ("input", of_weight)) if not used}
    return set()


def _tensors(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of an argument: itself, or those of a list. Sparse ones are left out."""
    if isinstance(tree, Tensor):
        if tree.layout is torch.strided:
            yield tree
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _tensors(each)


def _nbytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's different elements: an expanded one has fewer than its shape says."""
    if not tensor.numel():
        return 0
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return min(prod(size for size, stride in sizes if stride) * tensor.element_size(), _extent(tensor))


def _extent(tensor: Tensor) -> int:
    """Return the bytes from a tensor's first element to its last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()


def _distinct(trees: list[Any]) -> int:
    """Return the bytes of tensors, counting once what several of them share."""
    storages: dict[int, dict[Any, Tensor]] = {}
    for each in _tensors(trees):
        region = each.storage_offset(), each.shape, each.stride(), each.dtype
        storages.setdefault(each.untyped_storage()._cdata, {})[region] = each
    return sum(_union(list(regions.values())) for regions in storages.values())


def _union(tensors: list[Tensor]) -> int:
    """Return the bytes of views of one storage: their sum, but not more than they lie in."""
    total = sum(map(_nbytes, tensors))
    if len(tensors) == 1 or not total:
        return total
    starts = [int(each.storage_offset()) * each.element_size() for each in tensors]
    ends = [start + _extent(each) for start, each in zip(starts, tensors, strict=True)]
    return min(total, max(ends) - min(starts))


def _stepped_over(given: Mapping[str, Any]) -> int:
    """Return the bytes of a convolution's input that its kernel steps over: 3 in 4 for 1×1 with stride 2."""
    if given["transposed"]:
        return 0
    image, kernels = given["input"], given["weight"].shape[2:]
    share = 1.0
    for size, kernel, stride, padding in zip(
        image.shape[2:], kernels, given["stride"], given["padding"], strict=False
    ):
        results = (size + 2 * padding - kernel) // stride + 1
        seen = (results - 1) * min(stride, kernel) + kernel - padding
        share *= min(1.0, max(0, seen) / size)
    return round(_nbytes(image) * (1 - share))


def _launches(name: str, given: Mapping[str, Any]) -> int:
    """Return the kernels at least: one for a list of tensors, one for each gradient of a convolution."""
    return sum(given["output_mask"]) if name == "convolution_backward" else 1


def _dtype(name: str, tensors: list[Tensor], flop: int) -> str:
    """Return the type that the arithmetic runs in: that of the first floating-point tensor."""
    if not tensors:
        return ""
    dtype = next((each.dtype for each in tensors if each.is_floating_point()), tensors[0].dtype)
    if dtype == torch.float32 and flop and _rounds(name):
        return "tfloat32"
    return str(dtype).removeprefix("torch.")


def _rounds(name: str) -> bool:
    """Return whether CUDA may compute products of float32 numbers on tensor cores, as TensorFloat-32."""
    if "attention" in name:  # its kernels make float32 of three TensorFloat-32 products, whatever is set
        return True
    cudnn: Any = torch.backends.cudnn
    backend = cudnn.conv if name in _CONVOLUTIONS else torch.backends.cuda.matmul
    return bool(backend.fp32_precision == "tf32")  # allow_tf32 and set_float32_matmul_precision set it, too


def _least_flop(name: str, given: Mapping[str, Any], flop: int) -> int:
    """Return the operations that the quickest algorithms need."""
    if name in _CONVOLUTIONS and {*given["stride"], *given["dilation"]} == {1}:
        return flop // prod(_winograd(size) for size in given["weight"].shape[2:])
    return flop // 2 if given.get("is_causal") else flop


def _winograd(size: int) -> int:
    """Return how many times fewer products a convolution needs along one dimension of its kernel.

    F(4, 3) makes 4 results from 3 weights with 6 products instead of 12 (Lavin and Gray 2015,
    https://arxiv.org/abs/1509.09308). What cuDNN takes for larger kernels is not documented; no algorithm of
    this kind needs less than one product a result.
    """
    return 2 if size == 3 else size
