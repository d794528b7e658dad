"""Write down what a program does on the practice GPU, as it does it.

The recorder watches three things: the practice GPU's ledger, which has every storage that is made and given
back; PyTorch's operators, which make it; and modules and optimizers, from which it knows where in the model
and in which phase of a step the program is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpulesson_tools.planning.recording.cost import cost
from gpulesson_tools.planning.recording.dry import shapes_only, tensors_in
from gpulesson_tools.planning.recording.kinds import BUFFER, GRADIENT, PARAMETER, STATE, assign
from gpulesson_tools.planning.recording.record import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    Allocation,
    Operation,
    Place,
    Record,
    Waits,
)
from gpulesson_tools.programs.execution import Finished
from gpulesson_tools.programs.hooks import Call, Hooks
from practice_gpu.device.events import where
from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.device.ledger import Block, address_of, dense_parts

PATIENCE = 20
"""Steps to go on for an optimizer that has taken none yet: one of several may step more rarely."""
_UNUSED = "{} optimizer(s) took no step within {} steps: the memory of their state is not counted."


class Recorder(TorchDispatchMode):
    """Records the program that runs while it is open, and ends it with :class:`Finished`.

    Parameters
    ----------
    gpu : PracticeGPU
        Open, with nothing on it.
    steps : int
        How many steps of the optimizer to record.
    ignored : callable, optional
        Called with the record when the program catches :class:`Finished` and goes on for three steps.
    dry : bool
        Take the shapes only, and compute nothing where values do not matter.

    Attributes
    ----------
    record : Record
        What has been written down; complete when the recorder is closed.
    """

    def __init__(
        self,
        gpu: PracticeGPU,
        steps: int,
        ignored: Callable[[Record], object] | None = None,
        *,
        dry: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = Record()
        self._gpu, self._wanted, self._ignored, self._dry = gpu, steps, ignored, dry
        self._phase = FORWARD
        self._operator, self._from_outside, self._differentiable = "", False, False
        self._inside: list[str] = []  # names of the modules that are running
        self._names: dict[nn.Module, str] = {}
        self._places: dict[tuple[str, str, int], Place] = {}
        self._forward: dict[int, Place] = {}  # by the number that autograd gives a forward operator
        self._living: dict[int, int] = {}  # address of a storage -> number of its allocation
        self._raised = 0
        self._waits: dict[tuple[str, str, int], int] = {}
        self._stepping: Any = None  # the optimizer whose steps are counted
        self._optimizers: dict[int, tuple[weakref.ref[Any], int]] = {}  # all there are, and their steps
        self._batch: tuple[int | None, int | None] = None, None

    # -- open and close

    def __enter__(self) -> Recorder:
        with ExitStack() as undo:
            observers = self._gpu.ledger.observers
            observers.append(self)
            undo.callback(observers.remove, self)
            undo.callback(self._complete)
            undo.enter_context(Hooks(self))
            for block in list(self._gpu.ledger.blocks.values()):
                if block.index >= 0 and block.size:
                    self.born(block)
            super().__enter__()  # type: ignore[no-untyped-call]
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._undo.close()

    def _complete(self) -> None:
        """Fill in what is known at the end: a storage can die at any moment, also while another is noted."""
        for position, event in enumerate(self.record.events):
            if event >= 0:
                self.record.allocations[event].born = position
            else:
                self.record.allocations[~event].died = position
        assign(self.record)

    # -- storages

    def born(self, block: Block) -> None:
        storage, (phase, place) = block(), self._now()
        assert storage is not None
        number = self._living[block.address] = len(self.record.allocations)
        self.record.allocations.append(
            Allocation(
                storage.nbytes(),
                self.record.steps,
                phase,
                self._operator,
                place,
                differentiable=self._differentiable,
                from_outside=self._from_outside,
            )
        )
        self.record.events.append(number)

    def died(self, block: Block) -> None:
        number = self._living.pop(block.address, None)
        if number is not None:
            self.record.events.append(~number)

    def _tag(self, value: Any, kind: str) -> None:
        """Note what the storage of a tensor is for."""
        if isinstance(value, torch.Tensor):
            for part in dense_parts(value):
                number = self._living.get(address_of(part))
                if number is not None:
                    self.record.allocations[number].kind = kind

    # -- where the program is

    def _now(self) -> tuple[str, Place]:
        """Return the phase and the place of what is happening."""
        node: Any = torch._C._current_autograd_node()
        module = self._inside[-1] if self._inside else ""
        if node is None:
            phase = FORWARD if self._inside else self._phase
            return phase, self._place(module, *where())
        known = None if self._inside else self._forward.get(node._sequence_nr())
        return BACKWARD, known or self._place(module, *where())

    def _place(self, module: str, filename: str, line: int) -> Place:
        key = module, filename, line
        return self._places.get(key) or self._places.setdefault(key, Place(*key))

    def before_module(self, call: Call) -> None:
        module: nn.Module = call.first
        if not self._inside and module not in self._names:
            self._names.update((each, name) for name, each in module.named_modules())
        self.record.recurrent |= isinstance(module, nn.RNNBase)
        self._inside.append(self._names.get(module) or type(module).__name__)
        for parameter in module._parameters.values():
            self._tag(parameter, PARAMETER)
            if parameter is not None:
                self._tag(parameter.grad, GRADIENT)
        for buffer in module._buffers.values():
            self._tag(buffer, BUFFER)

    def end_module(self, call: Call) -> None:
        if self._inside:
            self._inside.pop()

    def after_new_optimizer(self, call: Call) -> None:
        """Note an optimizer, which may step more rarely than another one."""
        self._optimizers[id(call.first)] = weakref.ref(call.first), 0

    def before_step(self, call: Call) -> None:
        self._phase = OPTIMIZER
        self._tag_parameters(call.first)

    def _tag_parameters(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._tag(parameter, PARAMETER)
                self._tag(parameter.grad, GRADIENT)

    def after_step(self, call: Call) -> None:
        """See what an optimizer keeps; end the program if that was the last step that was asked for."""
        optimizer = call.first
        self._phase = FORWARD
        self._tag_parameters(optimizer)  # once more: LBFGS computes gradients in its step
        self._optimizers[id(optimizer)] = weakref.ref(optimizer), 1
        for value in tree_leaves([list(state.values()) for state in optimizer.state.values()]):
            self._tag(value, STATE)
        if self._stepping is None:
            self._stepping = optimizer
            self.record.batch_size, self.record.handed = self._batch
        if optimizer is self._stepping:
            self._note_waits()
            self.record.ends.append(len(self.record.events))
            waiting = [each for each, steps in self._optimizers.values() if not steps and each() is not None]
            if self.record.steps < self._wanted or (waiting and self.record.steps < self._wanted + PATIENCE):
                return
            if waiting:
                self.record.notes = [_UNUSED.format(len(waiting), self.record.steps)]
            self._raised += 1
            if self._raised > 3 and self._ignored is not None:
                self._complete()
                self._ignored(self.record)
            raise Finished

    def _note_waits(self) -> None:
        """Add the waits since the end of the step before."""
        for event in self._gpu.events:
            key = event.call, event.filename, event.line
            count = event.waits - self._waits.get(key, 0)
            if count:
                self.record.waits.append(Waits(self.record.steps, *key, count))
                self._waits[key] = event.waits

    def after_batch(self, call: Call) -> None:
        """Note the batch size of a loader that has drawn a batch, and the batch's."""
        self._batch = getattr(call.first._index_sampler, "batch_size", None), _samples(call.result)

    def after_cut(self, call: Call) -> None:
        self._batch = call.first.batch_size, _samples(call.result)

    # -- operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        on_device = any(map(self._is_on_device, given))
        self._operator = func._overloadpacket.__name__
        self._from_outside = not on_device
        self._differentiable = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        if torch.is_grad_enabled() and torch._C._current_autograd_node() is None:
            number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
            self._forward.setdefault(number, self._now()[1])
        result = shapes_only(self._gpu, func, args, kwargs) if self._dry else NotImplemented
        if result is NotImplemented:
            result = func(*args, **kwargs)
        if on_device or any(map(self._is_on_device, tensors_in(result))):
            self._note_operation(func, args, kwargs, result)
        return result

    def _is_on_device(self, tensor: torch.Tensor) -> bool:
        return self._gpu.ledger.index(tensor) >= 0

    def _note_operation(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        spent = cost(func, args, kwargs, result)
        if spent.launches:
            phase, place = self._now()
            operation = Operation(**asdict(spent), step=self.record.steps, phase=phase, place=place)
            self.record.operations.append(operation)


def _samples(batch: Any) -> int | None:
    """Return the length of a batch's first tensor."""
    return next((len(each) for each in tensors_in(batch) if each.dim()), None)
