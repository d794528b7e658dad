"""Mixed precision: what `amp=` means, and which of PyTorch's two tools it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Precision:
    """Autocast to `dtype`, and a gradient scaler where its range is too small for gradients: float16."""

    device_type: str
    dtype: torch.dtype
    scaler: torch.amp.GradScaler | None

    def autocast(self, fn: Callable[..., Any], *, cache: bool = True) -> Callable[..., Any]:
        """Return `fn` computing under autocast; `cache` casts a weight once, and not at each use."""
        return torch.autocast(self.device_type, self.dtype, cache_enabled=cache)(fn)  # type: ignore[no-any-return]


Amp = torch.dtype | str | None


def precision_of(amp: Amp | Precision, device: torch.device) -> Precision | None:
    """Return what `amp` asks for, or None for full precision."""
    if amp is None or isinstance(amp, Precision):
        return amp
    dtype = DTYPES.get(amp) if isinstance(amp, str) else amp
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"amp={amp!r} is no precision for autocast: give torch.bfloat16 or 'bf16' (on a GPU without "
            "bfloat16, torch.float16 or 'fp16'), or None for full precision"
        )
    scaler = torch.amp.GradScaler(device.type) if dtype == torch.float16 else None
    return Precision(device.type, dtype, scaler)
