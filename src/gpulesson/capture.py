"""A whole training step as one CUDA graph: recorded once, and then launched with a single call.

A step of a small network is some dozens of kernels, and launching each takes the CPU longer than the GPU
computes. A graph launches all of them at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gpulesson import _checks
from gpulesson._precision import Amp, precision_of

WARMUP = 3  # steps before the capture, as in PyTorch's note


class CapturedStep:
    """One training step on a batch; made by `captured_step`.

    Attributes
    ----------
    inputs, targets : Tensor
        The buffers that the graph reads: every batch is copied into them.
    why_plain : str
        Why no graph is used, for example ``"there are no CUDA graphs on cpu"``; empty where one is.
    plain, replayed : int
        How many steps were run one operator at a time, and how many by launching the graph.

    Examples
    --------
    >>> model = nn.Linear(4, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> inputs, targets = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    >>> CapturedStep(model, nn.CrossEntropyLoss(), optimizer, inputs, targets).why_plain
    'there are no CUDA graphs on cpu'
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: _checks.LossFunction,
        optimizer: torch.optim.Optimizer,
        inputs: Tensor,
        targets: Tensor,
        *,
        amp: Amp = None,
    ) -> None:
        precision = precision_of(amp, inputs.device)
        if precision is not None and precision.scaler is not None:
            raise ValueError(
                f"amp={amp!r}: float16 needs a scaler, which no graph can hold; give 'bf16' or None"
            )
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self._compute: Callable[[Tensor, Tensor], Tensor] = self._forward
        if precision is not None:  # a graph must cast the weights anew in each step
            self._compute = precision.autocast(self._forward, cache=False)
        self.inputs, self.targets = inputs.clone(), targets.clone()
        self.why_plain = _why_plain(inputs.device)
        self.plain = self.replayed = self._warm = 0
        self._graph: Any = None
        self._settings: Any = None  # what a captured step has built in
        self._loss = torch.zeros(())

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Train on one batch and return its loss, detached and on the device.

        Parameters
        ----------
        inputs, targets : Tensor
            A batch. One of another shape or dtype than the buffers' is trained on without the graph: the
            short last batch of an epoch.

        Returns
        -------
        Tensor
            Scalar; a copy, which later steps leave alone.
        """
        if self.why_plain or not (_alike(inputs, self.inputs) and _alike(targets, self.targets)):
            self.plain += 1
            device = self.inputs.device
            return self._step(inputs.to(device), targets.to(device)).detach()
        self.inputs.copy_(inputs)
        self.targets.copy_(targets)
        if self._warm < WARMUP:
            self._warm += 1
            self.plain += 1
            return self._warm_up()
        if self._graph is None or self._settings != self._current_settings():
            self._capture()
        self.replayed += 1
        self._graph.replay()
        return self._loss.clone()

    def _step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._compute(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss

    def _forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss_fn(self.model(inputs), targets)

    def _warm_up(self) -> Tensor:
        """Train one step on a side stream, as captures have to be prepared: libraries initialise there."""
        current = torch.cuda.current_stream(self.inputs.device)
        side = torch.cuda.Stream(self.inputs.device)  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):  # also makes its device the current one
            loss = self._step(self.inputs, self.targets).detach()
        current.wait_stream(side)
        return loss.clone()  # on the current stream, so that its memory belongs there

    def _capture(self) -> None:
        """Record a step without running it."""
        device = self.inputs.device
        self._graph = None  # what was recorded before is worth nothing, should this fail
        self.optimizer.zero_grad(
            set_to_none=True
        )  # backward() shall make the gradients in the graph's memory
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # by default all captures of a process share one stream, on the device of the first; and calls of
        # other threads, such as a loader's that pins memory, would break the capture
        recording = torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local")
        with torch.cuda.device(device), recording:
            self._loss = self._step(self.inputs, self.targets).detach()
        self._graph, self._settings = graph, self._current_settings()

    def _current_settings(self) -> list[Any]:
        groups = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]
        modes = [module.training for module in self.model.modules()]
        frozen = [parameter.requires_grad for parameter in self.model.parameters()]
        return [modes, frozen, *groups]  # a schedule changes "lr", for instance


def captured_step(
    model: nn.Module,
    loss_fn: _checks.LossFunction,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
    *,
    amp: Amp = None,
) -> CapturedStep:
    """Return a training step that runs as one CUDA graph; call it with a batch, and it returns the loss.

    The first three steps with full batches run as usual, on a side stream; then the step is captured, and
    replayed from there on. All of them train on the batches that they were given: the weights are those of
    the same steps by hand. If a hyperparameter, a mode or ``requires_grad`` changes, for example by
    a schedule, the step is captured anew, which costs more than many steps: a schedule that changes the rate
    in *every* step wants ``lr=torch.tensor(0.01, device=…)``, which the graph reads, and changes in place.
    Where there are no CUDA graphs, every call is a plain step; a warning and `why_plain` say so.

    Parameters
    ----------
    model : torch.nn.Module
        On the device, in training mode. Its forward must not read values back, nor choose by them.
    loss_fn : callable
        Takes outputs and targets, returns one number. Labels are *not* checked here: on CUDA a label out of
        range ends the process's use of the GPU.
    optimizer : torch.optim.Optimizer
        For CUDA: SGD, or one built with ``capturable=True``. Others count or decide on the CPU.
    inputs, targets : Tensor
        A batch as later ones will be, ``[N, …]`` each, on the device. It is not trained on.
    amp : torch.dtype or str, optional
        ``torch.bfloat16`` or ``"bf16"``: compute under autocast.

    Returns
    -------
    CapturedStep

    Raises
    ------
    DeviceError
        Model, loss function or optimizer are not on the device of `inputs`.
    ValueError
        The optimizer is not capturable, `targets` are elsewhere, or `amp` is float16 or no precision.

    References
    ----------
    PyTorch, "CUDA semantics", section "CUDA Graphs", whole-network capture,
    https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture

    Examples
    --------
    >>> model = nn.Linear(4, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> inputs, targets = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")  # that there are no CUDA graphs on a CPU
    ...     step = captured_step(model, nn.CrossEntropyLoss(), optimizer, inputs, targets)
    >>> bool(step(inputs, targets) > step(inputs, targets))
    True
    """
    device = _checks.check_placement(model, inputs.device, loss_fn=loss_fn, optimizer=optimizer)
    if targets.device != device:
        raise ValueError(
            f"the targets are on {targets.device}, the inputs on {device}: move them there first"
        )
    step = CapturedStep(model, loss_fn, optimizer, inputs, targets, amp=amp)
    if step.why_plain:
        warnings.warn(f"{step.why_plain}: every call is a plain step, and no faster", stacklevel=2)
    else:
        _check_capturable(optimizer)
    return step


def _check_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that counts on the CPU or reads values back: its step would be frozen as it is."""
    name, options = type(optimizer).__name__, optimizer.param_groups
    if isinstance(optimizer, torch.optim.SGD) or all(group.get("capturable") for group in options):
        return
    if all("capturable" in group for group in options):
        raise ValueError(
            f"{name} was built with capturable=False, and a CUDA graph cannot hold its step: build it as "
            f"{name}(model.parameters(), …, capturable=True)"
        )
    raise ValueError(
        f"{name} has no option 'capturable', and a CUDA graph cannot hold its step: take SGD, or "
        "Adam(model.parameters(), …, capturable=True)"
    )


def _why_plain(device: torch.device) -> str:
    if device.type != "cuda":
        return f"there are no CUDA graphs on {device.type}"
    graph: Any = torch.cuda.CUDAGraph
    if not isinstance(graph, type):  # a practice GPU replaces it by a function that refuses
        return "the practice GPU has no CUDA graphs"
    return ""


def _alike(batch: Tensor, buffer: Tensor) -> bool:
    return batch.shape == buffer.shape and batch.dtype == buffer.dtype
