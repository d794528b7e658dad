"""Where PyTorch's CPU operators keep other memory than its CUDA operators do, and what is done about it.

Sources, in PyTorch's ``aten/src/ATen/native``: ``Dropout.cpp`` (on CUDA one fused operator, which keeps a
mask of bytes; the CPU multiplies with a mask in the type of the input) and ``transformers/attention.cpp`` (on
CUDA fused also with dropout; on the CPU dropout makes it keep all attention weights).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import _VF
from torch.nn import functional


@contextmanager
def memory_as_on_cuda() -> Iterator[None]:
    """While it is open, dropout and attention keep for backward what they keep on CUDA.

    Attention drops nothing out meanwhile: a plan needs the shapes of a training run, not its numbers.
    """
    dropout, attention = _VF.dropout, functional.scaled_dot_product_attention

    def fused_dropout(inputs: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if not train or not 0 < p < 1 or not inputs.numel():
            return dropout(inputs, p, train)
        return torch.native_dropout(inputs, p, True)[0]

    def fused_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        return attention(query, key, value, attn_mask, 0.0, *args, **kwargs)

    with (
        mock.patch.object(_VF, "dropout", fused_dropout),
        mock.patch.object(functional, "scaled_dot_product_attention", fused_attention),
    ):
        yield
