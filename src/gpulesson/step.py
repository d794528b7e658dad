"""What can be added to a training step: mixed precision, accumulation, clipped gradients, a schedule."""
# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from gpulesson._arguments import refuse, whole_number
from gpulesson.preflight import check_arguments, check_schedule

Amp = torch.dtype | str | None
_DTYPES = {
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
}


class Step:
    """The last three calls of a training step, and what can be added to them.

    In a loop, ``step(loss, len(targets))`` replaces ``zero_grad``, ``backward`` and ``step``.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Built over the model's parameters, after the model was moved.
    amp : torch.dtype or str, optional
        Mixed precision: model and loss compute under ``torch.autocast`` in ``torch.bfloat16`` (or
        ``"bf16"``), while weights and optimizer stay as they are. ``torch.float16`` (or ``"fp16"``) is for
        GPUs that are slow in bfloat16. It scales the loss, so that small gradients do not become zero, and
        then every step reads whether a gradient overflowed, unless the optimizer was built with
        ``fused=True``. The scale lasts as long as this object.
    accumulate : int
        How many batches each step of the optimizer learns from: with 4, a step is as with one batch of four
        times the size, in the memory of one. Batch normalisation still sees single batches, and so does a
        loss that weighs samples unequally (class weights, ignored labels).
    clip_norm : float, optional
        Scale the gradients of a step down where their norm, over all parameters, is larger.
    scheduler : torch.optim.lr_scheduler.LRScheduler, optional
        Stepped after every step of the optimizer, also one that float16 leaves out.

    Raises
    ------
    TypeError, ValueError
        An option makes no sense, such as ``accumulate=0``, or the scheduler changes another optimizer; the
        message says which and what to give.

    References
    ----------
    PyTorch, "Automatic Mixed Precision examples", https://docs.pytorch.org/docs/stable/notes/amp_examples.html

    Examples
    --------
    >>> model = nn.Linear(4, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> step = Step(optimizer, accumulate=2, clip_norm=1.0)
    >>> for size in (8, 8, 5):
    ...     loss = nn.functional.cross_entropy(model(torch.randn(size, 4)), torch.zeros(size).long())
    ...     step(loss, size)
    >>> step.waiting  # batches since the last step: finish() takes it
    1
    >>> step.finish()
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        amp: Amp = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        scheduler: LRScheduler | None = None,
    ) -> None:
        check_arguments(optimizer=optimizer, **({} if scheduler is None else {"scheduler": scheduler}))
        check_schedule(scheduler, optimizer)
        single = hasattr(clip_norm, "__float__") and not getattr(clip_norm, "ndim", 0)
        if clip_norm is not None and (isinstance(clip_norm, bool) or not single):
            refuse("clip_norm", clip_norm, "a number above 0", "give the largest norm of the gradients")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm={clip_norm}: give the largest norm of the gradients, more than 0")
        if isinstance(scheduler, ReduceLROnPlateau):
            raise ValueError(
                "scheduler is a ReduceLROnPlateau, which needs the loss of a whole epoch: give it to fit, "
                "not to Step"
            )
        self.optimizer, self.scheduler, self.clip_norm = optimizer, scheduler, clip_norm
        self.accumulate = whole_number(
            "accumulate", accumulate, 1, "give the number of batches for each step, 1 or more"
        )
        self.dtype = autocast_dtype(amp)
        self._device_type = self._parameters()[0].device.type
        self.scaler = torch.amp.GradScaler(self._device_type) if self.dtype == torch.float16 else None
        self._sizes: list[int] = []  # of the batches since the last step

    @property
    def waiting(self) -> int:
        """How many batches were learned from since the last step of the optimizer."""
        return len(self._sizes)

    def autocast(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function, such as a model or a loss, that computes in this step's precision."""
        return function if self.dtype is None else autocast(function, self._device_type, self.dtype)

    def begin(self) -> None:
        """Forget the batches of an interrupted pass; `train_epoch` calls this first."""
        self._sizes.clear()

    def __call__(self, loss: Tensor, size: int = 1) -> None:
        """Learn from one batch of `size` samples; the optimizer steps after `accumulate` batches."""
        if not (isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1):
            expected = "a tensor of one number that has a gradient"
            remedy = "give what the loss function returned, without item(), detach() or reduction='none'"
            refuse("loss", loss, expected, remedy)
        if not self._sizes:
            self.optimizer.zero_grad()
        if self.accumulate > 1:
            size = whole_number("size", size, 1, "give how many samples the batch has, len(targets)")
            loss = loss * (size / self._expected([*self._sizes, size]))
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        loss.backward()
        self._sizes.append(size)
        if len(self._sizes) == self.accumulate:
            self.finish()

    def finish(self) -> None:
        """Step with the accumulated gradients, if any, for instance at the end of an epoch."""
        if not self._sizes:
            return
        parameters = self._parameters()
        found, expected = sum(self._sizes), self._expected(self._sizes)
        self._sizes = []  # also if the step is interrupted
        if found != expected:  # the gradient is that of the mean over all samples since the last step
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(expected / found)
        if self.clip_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(parameters, self.clip_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)  # unscales the gradients; leaves out a step where one overflowed
            self.scaler.update()
        if self.scheduler is not None:
            self.scheduler.step()

    def _expected(self, sizes: list[int]) -> int:
        return sizes[0] * self.accumulate

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def autocast_dtype(amp: Amp) -> torch.dtype | None:
    """Return the precision that `amp` names, or None for full precision; ValueError for anything else.

    >>> autocast_dtype("bf16")
    torch.bfloat16
    """
    dtype = _DTYPES.get(amp) if isinstance(amp, str) else amp
    if amp is not None and dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"amp={amp!r} is not a precision of autocast: give torch.bfloat16 or 'bf16' (on a GPU without "
            "bfloat16, torch.float16 or 'fp16'), or None for full precision"
        )
    return dtype


def autocast(
    function: Callable[..., Any], device_type: str, dtype: torch.dtype, *, cache: bool = True
) -> Callable[..., Any]:
    """Return a function computing under autocast; `cache` casts a weight once, and not at each use.

    >>> autocast(nn.Linear(4, 3), "cpu", torch.bfloat16)(torch.zeros(2, 4)).dtype
    torch.bfloat16
    """
    return torch.autocast(device_type, dtype, cache_enabled=cache)(function)  # type: ignore[no-any-return]
