"""A whole training step as one CUDA graph: recorded once, and then launched with a single call.

A step of a small network consists of dozens of kernels, and launching each takes the CPU longer than the GPU
takes to run it. A graph launches all of them at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gpulesson import preflight
from gpulesson._arguments import refuse
from gpulesson.step import Amp, Step, autocast

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
        How many steps ran operator by operator, and how many by launching the graph.

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
        loss_fn: preflight.LossFunction,
        optimizer: torch.optim.Optimizer,
        inputs: Tensor,
        targets: Tensor,
        *,
        amp: Amp = None,
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self._step = Step(optimizer, amp=amp)
        self._compute: Callable[[Tensor, Tensor], Tensor] = self._forward
        if self._step.dtype is not None:  # a graph must cast the weights again in each step
            self._compute = autocast(self._forward, inputs.device.type, self._step.dtype, cache=False)
        self.inputs, self.targets = inputs.clone(), targets.clone()
        self.why_plain = _why_plain(inputs.device)
        self.plain = self.replayed = 0
        self._warm_ups_left = WARMUP
        self._generators = generators
        self._side: Any = None  # the stream for warm-up and capture
        self._graph: Any = None
        self._built_in: _BuiltIn | None = None  # what the graph has fixed
        self._loss = torch.zeros(())

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Train on one batch and return its loss, detached and on the device.

        Parameters
        ----------
        inputs, targets : Tensor
            A batch. If its shape or dtype is not that of the buffers, as for the short last batch of an
            epoch, it is trained on without the graph. From pinned memory the copy does not wait: do not
            change the tensors until the device is done, or make new ones for each batch, as a ``DataLoader``
            does.

        Returns
        -------
        Tensor
            Scalar; a copy, which later steps do not change.
        """
        if self.why_plain or not (_alike(inputs, self.inputs) and _alike(targets, self.targets)):
            self.plain += 1
            _check_batch(inputs, targets)
            device = self.inputs.device
            return self._train(inputs.to(device), targets.to(device))
        self.inputs.copy_(inputs, non_blocking=True)
        self.targets.copy_(targets, non_blocking=True)
        if self._built_in is not None and self._built_in.changed():
            self.recapture()
        if self._graph is None:
            if self._warm_ups_left:
                self._warm_ups_left -= 1
                self.plain += 1
                return self._warm_up()
            self._capture()
        self.replayed += 1
        self._graph.replay()
        return self._loss.clone()

    def recapture(self) -> None:
        """Forget the graph: the next step runs as usual, and the one after it is captured.

        This happens automatically if the optimizer's state is loaded, or if a hyperparameter, a mode,
        ``requires_grad`` or the address of a weight or buffer changes. Call it after any other change that
        the step must pick up, for instance of a number that ``forward`` computes with.
        """
        self._graph = self._built_in = None
        self._warm_ups_left = max(self._warm_ups_left, 1)  # creates what is missing, such as optimizer state

    def _train(self, inputs: Tensor, targets: Tensor) -> Tensor:
        loss = self._compute(inputs, targets)
        self._step(loss)
        return loss.detach()

    def _forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss_fn(self.model(inputs), targets)

    def _warm_up(self) -> Tensor:
        """Train one step on a side stream, as captures require: libraries initialise there."""
        current = torch.cuda.current_stream(self.inputs.device)
        if self._side is None:
            self._side = torch.cuda.Stream(self.inputs.device)  # type: ignore[no-untyped-call]
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):  # also makes its device the current one
            loss = self._train(self.inputs, self.targets)
        current.wait_stream(self._side)
        return loss.clone()  # on the current stream, so that its memory belongs there

    def _capture(self) -> None:
        """Record a step without running it."""
        # backward() must allocate the gradients in the graph's memory
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        # by default all captures of a process share one stream, on the device of the first; and calls of
        # other threads, such as a loader's that pins memory, would break the capture
        recording = torch.cuda.graph(graph, stream=self._side, capture_error_mode="thread_local")
        with torch.cuda.device(self.inputs.device), recording:
            self._loss = self._train(self.inputs, self.targets)
        self._graph, self._built_in = graph, _BuiltIn(self.model, self.loss_fn, self.optimizer)


class _BuiltIn:
    """What a graph has fixed at capture: Python's numbers, and the addresses of tensors.

    Weights are looked up in their modules, where ``load_state_dict(…, assign=True)`` replaces them. An
    optimizer's ``load_state_dict`` makes a new dictionary of state. What the graph uses is kept until the
    next capture, so that nothing else can get the same address meanwhile.
    """

    def __init__(
        self, model: nn.Module, loss_fn: preflight.LossFunction, optimizer: torch.optim.Optimizer
    ) -> None:
        self._modules = [*model.modules(), *(loss_fn.modules() if isinstance(loss_fn, nn.Module) else ())]
        tables = [table for part in self._modules for table in (part._parameters, part._buffers)]
        self._tables = [table for table in tables if table]
        self._optimizer, self._state = optimizer, optimizer.state
        self._kept = [
            *self._tensors(),
            *(value for group in optimizer.param_groups for value in group.values()),
        ]
        self._found = self._look()

    def changed(self) -> bool:
        """Return whether an ordinary step would now compute something else, or elsewhere."""
        return self._optimizer.state is not self._state or self._look() != self._found

    def _tensors(self) -> list[Tensor]:
        return [tensor for table in self._tables for tensor in table.values() if tensor is not None]

    def _look(self) -> list[Any]:
        tensors = self._tensors()
        return [
            [part.training for part in self._modules],
            [tensor.requires_grad for tensor in tensors],
            [tensor.data_ptr() for tensor in tensors],
            *(
                [_place(value) for key, value in group.items() if key != "params"]
                for group in self._optimizer.param_groups
            ),
        ]


def _place(value: Any) -> Any:
    """Return the address of a tensor on the device, which the graph reads; else the value, which is fixed.

    The value of a tensor on the CPU, such as ``lr=torch.tensor(0.01)``, is fixed, too.
    """
    if not isinstance(value, Tensor):
        return value
    return value.tolist() if value.device.type == "cpu" else ("tensor at", value.data_ptr())


def captured_step(
    model: nn.Module,
    loss_fn: preflight.LossFunction,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
    *,
    amp: Amp = None,
    generators: Sequence[torch.Generator] = (),
) -> CapturedStep:
    """Return a training step that runs as one CUDA graph: call it with a batch, and it returns the loss.

    The first three steps with full batches run as usual, on a side stream; then the step is captured, and
    replayed from there on. All of them train on the batches that they are given: the weights are those of
    ordinary steps. If a hyperparameter, a mode or ``requires_grad`` changes, for example by a schedule, or if
    a state is loaded, the step is captured again, which costs more than many steps: a schedule that changes
    the learning rate in *every* step needs ``lr=torch.tensor(0.01, device=…)``, changed in place, which the
    graph reads. `CapturedStep.recapture` lists the changes that are noticed. Where there are no CUDA graphs,
    every call is a plain step; a warning and `why_plain` say so.

    Parameters
    ----------
    model : torch.nn.Module
        On the device, in training mode. Its forward must not read values back or branch on them.
    loss_fn : callable
        Takes outputs and targets, returns one number. Labels are *not* checked here: on CUDA a label out of
        range ends the process's use of the GPU.
    optimizer : torch.optim.Optimizer
        For CUDA: SGD, or one built with ``capturable=True``; others count or decide on the CPU. SGD whose
        learning rate is a tensor, and every optimizer in float16, also needs ``fused=True``.
    inputs, targets : Tensor
        A batch like the later ones, ``[N, …]`` each, on the device. It is not trained on.
    amp : torch.dtype or str, optional
        ``torch.bfloat16`` or ``"bf16"``: compute under autocast. With ``torch.float16`` or ``"fp16"`` the
        graph scales the loss, too, and leaves out a step in which a gradient overflowed, on the device.
    generators : sequence of torch.Generator
        Generators on the device, other than the default one, from which the model draws random numbers. A
        graph has to know them in advance; it knows the default one, from which dropout draws.

    Returns
    -------
    CapturedStep

    Raises
    ------
    DeviceError
        Model, loss function or optimizer are not on the device of `inputs`.
    ValueError
        The optimizer cannot be captured, `targets` are on another device, or `amp` is not a precision.

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
    ...     warnings.simplefilter("ignore")  # a CPU has no CUDA graphs
    ...     step = captured_step(model, nn.CrossEntropyLoss(), optimizer, inputs, targets)
    >>> bool(step(inputs, targets) > step(inputs, targets))
    True
    """
    preflight.check_arguments(model=model, loss_fn=loss_fn, optimizer=optimizer)
    _check_batch(inputs, targets)
    single = isinstance(generators, list | tuple)
    if not single or not all(isinstance(each, torch.Generator) for each in generators):
        remedy = "give [torch.Generator(device)], and the default one needs no naming"
        refuse("generators", generators, "a list of torch.Generator objects", remedy)
    device = preflight.check_placement(model, inputs.device, loss_fn=loss_fn, optimizer=optimizer)
    if targets.device != device:
        raise ValueError(
            f"the targets are on {targets.device}, the inputs on {device}: move them there first"
        )
    step = CapturedStep(model, loss_fn, optimizer, inputs, targets, amp=amp, generators=generators)
    if step.why_plain:
        warnings.warn(f"{step.why_plain}: every call is a plain step, and no faster", stacklevel=2)
    else:
        _check_capturable(optimizer, scaled=step._step.scaler is not None)
    return step


def _check_capturable(optimizer: torch.optim.Optimizer, *, scaled: bool) -> None:
    """Refuse an optimizer that counts on the CPU or reads values back: its step would be frozen."""
    name, groups = type(optimizer).__name__, optimizer.param_groups
    sgd = isinstance(optimizer, torch.optim.SGD)
    options = "fused=True" if sgd else "fused=True, capturable=True"
    fused = all(group.get("fused") for group in groups)
    if not sgd and not all("capturable" in group for group in groups):
        raise ValueError(
            f"{name} has no option 'capturable', and a CUDA graph cannot hold its step: take SGD, or "
            "Adam(model.parameters(), …, capturable=True)"
        )
    if not sgd and not all(group["capturable"] for group in groups):
        raise ValueError(
            f"{name} was built with capturable=False, and a CUDA graph cannot hold its step: build it as "
            f"{name}(model.parameters(), …, capturable=True)"
        )
    if scaled and not (fused and getattr(optimizer, "_step_supports_amp_scaling", False)):
        usable = name if "fused" in groups[0] else "Adam"
        raise ValueError(
            f"float16 leaves out a step in which a gradient overflowed, and on the device only a fused "
            f"optimizer can: build {usable}(model.parameters(), …, {options}), or give amp='bf16'"
        )
    if sgd and not fused and any(isinstance(group["lr"], Tensor) for group in groups):
        raise ValueError(
            "SGD reads a learning rate that is a tensor back to the CPU, and a CUDA graph cannot hold that: "
            "build it as SGD(model.parameters(), lr=…, fused=True), or give the learning rate as a number"
        )


def _why_plain(device: torch.device) -> str:
    return "" if device.type == "cuda" else f"there are no CUDA graphs on {device.type}"


def _check_batch(inputs: Any, targets: Any) -> None:
    if not isinstance(inputs, Tensor):
        refuse("inputs", inputs, "one tensor [N, …]", "give torch.as_tensor(inputs), or torch.stack(inputs)")
    preflight.check_pair((inputs, targets), "inputs and targets")


def _alike(batch: Any, buffer: Tensor) -> bool:
    return isinstance(batch, Tensor) and batch.shape == buffer.shape and batch.dtype == buffer.dtype
