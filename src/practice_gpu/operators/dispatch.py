"""Intercepts every ATen operator, also in the backward pass and in the optimizer.

It finds where the tensors are, lets the CPU compute, and enters the results in the ledger. This runs for
every operator of a training loop, hence a fast path: :meth:`Operators.see` handles operators that only
compute, with all their tensors on one device. The slow path, :func:`_slow_path`, handles the others: mixed
devices, copies, waits, random numbers, results made from no tensor, …
"""

import functools
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from practice_gpu import errors
from practice_gpu.device import generators
from practice_gpu.device.events import TO_HOST, WAIT, is_ours, is_torch
from practice_gpu.device.gpu import PracticeGPU
from practice_gpu.device.ledger import (
    CPU,
    CPU_BIT,
    GPU_BIT,
    HOST,
    UNPLACED_BIT,
    Ledger,
    address_of,
    tensors_in,
    wraps_others,
)
from practice_gpu.operators import dtypes, rules
from practice_gpu.operators.facts import Facts
from practice_gpu.operators.rules import COMPOSITE, Operand
from practice_gpu.patching import keys
from practice_gpu.patching.patches import Handler, Patches
from practice_gpu.processes import process_groups
from practice_gpu.surface.tensors import move

_NO_KWARGS: dict[str, Any] = {}
_FACTS: dict[int, Facts] = {}
"""By the identity of an operator, which is never freed; hashing it costs more than looking it up."""
_META = torch.device("meta")
_CPU_ALONE = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_MASKS = (torch.bool, torch.uint8)
_ASSERTED = re.compile(
    r"(index_copy_\(\): )?index (-?\d+ is )?out of (range in self|bounds)"
    r"|INDICES element is out of DATA bounds|out of range: tried to access index"
    r"|Target -?\d+ is out of bounds|target out of range|Found an invalid max index"
    r"|Index \d+ of input takes value|embedding_bag: Expected idx >= 0|offsets\[-1\] can not be greater"
    r"|all elements of (input|target) should be between 0 and 1"
    r"|probability tensor contains|invalid multinomial distribution"
    r"|Expected p_in >= 0|invalid Poisson rate"
    r"|Number of elements of source < number of ones in mask"
    r"|Expected Tensor with single nonzero value|Class values must be (non-negative|smaller)"
)
"""What the CPU says about values that fail a ``CUDA_KERNEL_ASSERT`` in CUDA's kernels."""
_TWO_DTYPES = "expected m1 and m2 to"
"""How the CPU's error about matrices of two dtypes begins; CUDA calls them mat1 and mat2."""
_UNCHECKED = {
    "ZeroDivisionError": "integers are divided by zero, for which CUDA has no error and an arbitrary result",
    "argument #2 'target' is out of range": "a target is out of range, which CUDA does not check here",
    "offsets[0] has to be 0": "offsets[0] is not 0, which CUDA silently takes for 0",
}
"""How errors of the CPU begin that CUDA does not raise, and what is wrong then."""


class Operators(TorchDispatchMode):
    """The mode of one thread.

    ``asleep``, ``placement`` and ``alone`` are those of :class:`practice_gpu.device.gpu.OperatorMode`.

    As long as no other mode is open in the thread, a dispatch key intercepts the operators (see
    :mod:`practice_gpu.patching.keys`), at half the cost. While another is open, this one is on PyTorch's
    stack of modes, below the others: they see an operator first, and its result when it is in the ledger.
    """

    of_no_thread: "Operators | None" = None
    """For PyTorch's threads, in which autograd runs work of other threads."""

    def __init__(self, gpu: PracticeGPU) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gpu = gpu
        self.asleep = False
        self._ended = False
        self.placement: int | None = None
        self._opened_by_key = False
        self._others = 0  # modes opened later in this thread
        self._blocks = gpu.ledger.blocks
        self._enter_storage = gpu.ledger.enter
        # by the sum of bits for a single device: the number of that device
        self._one_device = {GPU_BIT << index: index for index in range(gpu.count)}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or PyTorch wraps __torch_dispatch__ in a slow layer of its compiler

    # -- how operators are intercepted

    def open(self) -> None:
        """Begin to intercept the operators of this thread."""
        _IN_THREAD.mode = self
        keys.install(_see)
        self._opened_by_key = keys.KEY is not None and not torch._C._len_torch_dispatch_stack()
        if self._opened_by_key:
            keys.include(True)
        else:
            self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Intercept nothing from now on."""
        self.asleep = self._ended = True

    def close(self) -> None:
        """Intercept nothing from now on, and leave if this is the mode's thread and no other mode is open."""
        self.end()
        if self._opened_by_key and not self._others:
            self._leave()
        else:
            stack = _get_current_dispatch_mode_stack()
            if stack and stack[-1] is self:
                self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _leave(self) -> None:
        if _IN_THREAD.mode is self:
            keys.include(False)
            _IN_THREAD.mode = None

    @property
    def alone(self) -> bool:
        """Whether no other mode intercepts this thread's operators."""
        return torch._C._len_torch_dispatch_stack() == (0 if self._opened_by_key else 1)

    def make_room(self) -> None:
        """Move onto the stack of modes, below another mode that is about to be opened in this thread."""
        if self._opened_by_key and not self._others:
            keys.include(False)
            self.__enter__()  # type: ignore[no-untyped-call]
        self._others += 1

    def come_back(self) -> None:
        """Use the dispatch key again when the last of the other modes has been closed."""
        self._others -= 1
        if self._opened_by_key and not self._others:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            keys.include(True)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if types and any(map(wraps_others, types)):
            return NotImplemented  # the operators on the tensors that they wrap will come here
        return self.see(func, args, kwargs)

    # -- what happens to them

    def see(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
        """Compute an operator as the device would."""
        if self.asleep:
            if self._ended and self._opened_by_key and not self._others:
                self._leave()
            return func(*args, **(kwargs or {}))
        facts = _FACTS.get(id(func)) or facts_of(func)
        if facts.collective and self.gpu.process_groups:
            return _collective(self, Call(func, facts, args, kwargs or {}))
        blocks = self._blocks
        try:
            if facts.unary:
                block = blocks.get(address_of(args[0]))
                places = CPU_BIT if block is None else block.bit
            else:
                places = self._places(facts, args)
        except (RuntimeError, NotImplementedError, TypeError):  # a tensor without a storage
            return _slow_path(self, Call(func, facts, args, kwargs or {}))
        kwargs = kwargs or _NO_KWARGS
        if kwargs and not facts.indifferent and not _leaves_place_alone(facts, kwargs, places):
            return _slow_path(self, Call(func, facts, args, kwargs))
        if places == CPU_BIT or not (places or facts.fresh):  # all on the CPU, or no tensors at all
            return facts.call(*args, **kwargs)
        home = self._one_device.get(places)  # None: not on exactly one
        if facts.reads and home is not None:
            _log_reading(self.gpu, args[0])
            return facts.call(*args, **kwargs)
        if home is None or not facts.plain:
            return _slow_path(self, Call(func, facts, args, kwargs))
        try:
            for check in facts.checks:
                check(args, kwargs)
            result = facts.call(*args, **kwargs)
        except (RuntimeError, IndexError) as error:
            result = _compute_or_reword(self.gpu, Call(func, facts, args, kwargs), error, home)
        if facts.fresh:
            try:
                for tensor in result if facts.several else (result,):
                    address = address_of(tensor)
                    if address not in blocks:
                        self._enter_storage(tensor.untyped_storage(), address, home)
            except (NotImplementedError, TypeError):  # sparse, a list among the results, or None
                self.gpu.ledger.place_new(result, home)
        return result

    def _places(self, facts: Facts, args: Sequence[Any]) -> int:
        """Return where the positional tensors are, as bits."""
        blocks, given, places = self._blocks, len(args), 0
        for position in facts.tensors:
            if position >= given:
                break
            tensor = args[position]
            if isinstance(tensor, torch.Tensor):  # it may be a number
                block = blocks.get(address_of(tensor))
                places |= CPU_BIT if block is None else block.bit
        for position in facts.lists:
            if position < given:
                for tensor in args[position] or ():
                    if tensor is not None:
                        block = blocks.get(address_of(tensor))
                        places |= CPU_BIT if block is None else block.bit
        return places


class _InThread(threading.local):
    """The mode of each thread."""

    mode: Operators | None = None


_IN_THREAD = _InThread()


def _see(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    mode = _IN_THREAD.mode or Operators.of_no_thread
    return mode.see(func, args, kwargs) if mode is not None else func(*args, **kwargs)


def add_patches(patches: Patches, gpu: PracticeGPU) -> None:
    """Register the patches that make room for other modes."""
    patches.handle(TorchDispatchMode, "__enter__", _enter)
    patches.handle(TorchDispatchMode, "__exit__", _exit)


def _enter(gpu: PracticeGPU, original: Handler, other: TorchDispatchMode) -> Any:
    mode = _IN_THREAD.mode
    if mode is not None and mode is not other and not keys.in_kernel():
        mode.make_room()
    return original(other)


def _exit(gpu: PracticeGPU, original: Handler, other: TorchDispatchMode, *exception: Any) -> Any:
    original(other, *exception)
    mode = _IN_THREAD.mode
    if mode is not None and mode is not other and not keys.in_kernel():
        mode.come_back()


def _leaves_place_alone(facts: Facts, kwargs: dict[str, Any], places: int) -> bool:
    """Return whether the keywords decide neither a result's device nor the source of random numbers."""
    device = kwargs.get("device")
    if facts.keywords or facts.generator:
        return False
    return device is None or (places == CPU_BIT and device.type == "cpu")


def facts_of(func: Any) -> Facts:
    """Return the facts of an operator, cached after the first time."""
    facts = _FACTS.get(id(func))
    if facts is None:
        facts = _FACTS[id(func)] = Facts(func)
    return facts


# -- the slow path


@dataclass(slots=True)
class Call:
    """An operator with its arguments."""

    func: Any
    facts: Facts
    args: Sequence[Any]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        """Compute it on the CPU."""
        return self.func(*self.args, **self.kwargs)

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield argument name and tensor, in the order of the schema."""
        for position, name in self.facts.named:
            value = self.args[position] if position < len(self.args) else self.kwargs.get(name)
            for tensor in tensors_in(value):
                yield name, tensor

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors among the arguments."""
        for _, tensor in self.named_tensors():
            yield tensor

    def operands(self, ledger: Ledger) -> list[Operand]:
        """Return the tensors on known devices, ``out=`` first."""
        known = [
            Operand(name, tensor, ledger.index(tensor))
            for name, tensor in self.named_tensors()
            if not ledger.is_unplaced(tensor)
        ]
        return sorted(known, key=lambda operand: operand.argument != "out")


def _collective(mode: Operators, call: Call) -> Any:
    """Run a collective operator; those that compilers call consist of c10d's."""
    if call.func.namespace != "c10d":
        with mode, process_groups.functional(mode.gpu, call.func, call.args) as args:
            return call.func.redispatch(_CPU_ALONE, *args, **call.kwargs)
    return process_groups.run(mode.gpu, call.func, call.args, call.kwargs)


def _slow_path(mode: Operators, call: Call) -> Any:
    """Treat one operator as CUDA would: refuse it, or compute it and enter the results in the ledger."""
    gpu, facts = mode.gpu, call.facts
    if keys.only_shapes():
        return call()
    places = 0
    for tensor in call.tensors():  # also those in keywords, and inside others
        places |= gpu.ledger.bit(tensor)
    if not places and not facts.fresh:
        return call()
    if facts.composite and places != CPU_BIT:
        return _in_parts(mode, call, torch._C.DispatchKey.CompositeImplicitAutograd)
    home = _home(mode, call, places)
    if home == COMPOSITE:
        return _in_parts(mode, call, rules.composite_key(call.func))
    if places & UNPLACED_BIT and places != UNPLACED_BIT:
        _place_unplaced(gpu, call, home)
    if places & (places - 1) and torch.is_grad_enabled():
        _take_gradients_back(gpu, call, home)
    _log(gpu, call, home)
    call = _on_host(gpu, call, home)
    if home >= 0 and not places:
        _require_memory(gpu, call, home)
    result = _compute(gpu, call, home)
    if home >= 0 and facts.fresh:
        gpu.ledger.place_new(result, home)
    elif places == UNPLACED_BIT or (not places and mode.placement is None and not _asked_for(call)):
        gpu.ledger.mark_unplaced(result)
    if home >= 0 and facts.resizes:
        for tensor in call.tensors():
            gpu.ledger.measure_again(tensor.untyped_storage())
    return result


def _home(mode: Operators, call: Call, places: int) -> int:
    """Return the device of the operator and its results, or raise CUDA's error."""
    device = call.kwargs.get("device")
    if device is not None and device.type != "cpu":
        return mode.gpu.index_of(device)
    if mode.placement is not None and (not places or "device" in call.kwargs):
        return mode.placement  # set by the factory function that calls this operator
    known = places & ~UNPLACED_BIT
    if known in (0, CPU_BIT):
        return CPU
    if known & (known - 1) or call.facts.host:  # more than one bit: more than one place
        if _sums_gradients(call):
            return mode.gpu.ledger.index(call.args[0])
        return rules.home(call.func, call.facts, call.operands(mode.gpu.ledger))
    return (known // GPU_BIT).bit_length() - 1


def _in_parts(mode: Operators, call: Call, key: Any) -> Any:
    """Run an operator as the others that it consists of, each of which the mode intercepts."""
    unresolved = torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative
    excluded = [torch._C._SetExcludeDispatchKeyGuard(unresolved_key, False) for unresolved_key in unresolved]
    # in an operator's kernel the dispatch key is off: the mode intercepts the parts
    with mode, excluded[0], excluded[1]:  # or nothing would resolve lazy conjugates inside a mode
        result = call.func._op_dk(key, *call.args, **call.kwargs)
    if call.facts.name == "_pack_padded_sequence":
        mode.gpu.ledger.place(result[1], CPU)  # the batch sizes stay on the host
    return result


def _compute(gpu: PracticeGPU, call: Call, home: int) -> Any:
    try:
        if home >= 0:
            for check in call.facts.checks:
                check(call.args, call.kwargs)
        if home >= 0 and call.facts.seeded:
            with generators.in_place_of_the_hosts(gpu.generators[home]):
                return call()
        return call()
    except (RuntimeError, IndexError) as error:
        if home < 0:
            raise
        return _compute_or_reword(gpu, call, error, home)


def _compute_or_reword(gpu: PracticeGPU, call: Call, error: Exception, home: int) -> Any:
    """Return what a device can compute and the CPU cannot, or raise CUDA's error."""
    on_device = as_on_device(gpu, error, home)
    first = next(call.tensors(), None)
    if on_device is None and first is not None and "not implemented for" in str(error):
        name, narrow = call.facts.name, first.dtype
        if (wide := dtypes.wider(name, narrow)) is not None:
            written = [tensor for argument, tensor in call.named_tensors() if argument in call.facts.written]
            return dtypes.compute_in(wide, narrow, call.func, call.args, call.kwargs, written)
        on_device = dtypes.reworded(name, narrow)
    if str(error).startswith(_TWO_DTYPES):
        on_device = RuntimeError(str(error).replace(_TWO_DTYPES, "expected mat1 and mat2 to"))
    if on_device is None and call.facts.overload in ("dtype", "dtype_out"):
        return dtypes.compute_with_out_dtype(call.func, call.args, call.kwargs)
    if on_device is None:
        raise error
    raise on_device from None


def as_on_device(gpu: PracticeGPU, error: Exception, home: int) -> RuntimeError | None:
    """Return CUDA's error where the CPU raises `error`, or None if it is the same."""
    text = str(error)
    if _ASSERTED.match(text):
        return errors.device_assert()
    for beginning, what in _UNCHECKED.items():
        if text.startswith(beginning):
            return errors.unchecked(what, text)
    return gpu.ledger.allocators[home].error_if_host_full(error) or errors.on_device(error)


def _asked_for(call: Call) -> bool:
    """Return whether the program itself makes a tensor on the CPU: ``torch.Tensor(4, 1)`` has no handler.

    Otherwise PyTorch makes it as a by-product, such as the threshold of a quantile: it joins the others.
    """
    if call.facts.name != "empty" or not call.args[0]:
        return False
    return _by_program() and torch.get_default_device().type == "cpu"


def _sums_gradients(call: Call) -> bool:
    """Return whether autograd adds gradients without dimensions, which it moves to their tensor's device."""
    if call.facts.name != "add_" or torch._C._current_graph_task_id() < 0 or torch.is_grad_enabled():
        return False
    return not any(tensor.dim() for tensor in call.tensors()) and not _by_program()


def _by_program() -> bool:
    """Return whether a line of the program calls the operator, not a line of PyTorch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, keys.__file__):
        frame = frame.f_back
    name = frame.f_code.co_filename if frame is not None else ""
    return frame is not None and not is_torch(name) and not is_ours(name)


def _place_unplaced(gpu: PracticeGPU, call: Call, home: int) -> None:
    """Put the tensors on no known device where the others are."""
    for tensor in call.tensors():
        if gpu.ledger.is_unplaced(tensor):
            gpu.ledger.place(tensor, home)


def _take_gradients_back(gpu: PracticeGPU, call: Call, home: int) -> None:
    """Have autograd move the gradients of tensors without dimensions that joined others to their tensors.

    ``validate_outputs`` in PyTorch's ``torch/csrc/autograd/engine.cpp`` does that by the true devices.
    """
    for tensor in call.tensors():
        if tensor.requires_grad and not tensor.dim() and gpu.ledger.index(tensor) != home:
            with keys.above():
                edge = get_gradient_edge(tensor)
            back = functools.partial(_taken_back, gpu, gpu.ledger.index(tensor), edge.output_nr)
            edge.node.register_prehook(back)


def _taken_back(gpu: PracticeGPU, home: int, number: int, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    gradient = gradients[number]
    if gradient is None or gpu.ledger.index(gradient) == home or gpu.ledger.is_unplaced(gradient):
        return gradients
    back = move(gpu, gradient, home, ".to() in backward")
    return (*gradients[:number], back, *gradients[number + 1 :])


def _log(gpu: PracticeGPU, call: Call, home: int) -> None:
    """Log copies between devices, and what makes the host wait."""
    facts, args = call.facts, call.args
    if facts.moves:
        targets, sources = (value if isinstance(value, list | tuple) else [value] for value in args[:2])
        for target, source in zip(targets, sources, strict=False):
            places = gpu.ledger.index(source), gpu.ledger.index(target)
            non_blocking = len(args) > 2 and args[2] is True
            gpu.record_copy(*places, ".copy_()", source, non_blocking, into=target)
    elif facts.reads and home >= 0:
        _log_reading(gpu, args[0])
    elif facts.waits and home >= 0 and (facts.name != "index" or _has_mask(args[1])):
        gpu.record(WAIT, facts.name.strip("_").rstrip("2"))


def _log_reading(gpu: PracticeGPU, tensor: torch.Tensor) -> None:
    gpu.record(TO_HOST, gpu.thread_state.call or ".item()", tensor.element_size())


def _has_mask(indices: Sequence[Any]) -> bool:
    return any(index is not None and index.dtype in _MASKS for index in indices)


def _on_host(gpu: PracticeGPU, call: Call, home: int) -> Call:
    """Return the call as the CPU can compute it: on the CPU, and with the device's generator."""
    kwargs = call.kwargs
    device = kwargs.get("device")
    if device is not None and device.type == "cuda":
        kwargs = {**kwargs, "device": HOST}
    if call.facts.generator:
        gpu.check_generator(kwargs.get("generator"), home)
        if home >= 0 and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": gpu.generators[home]}
    return call if kwargs is call.kwargs else replace(call, kwargs=kwargs)


def _require_memory(gpu: PracticeGPU, call: Call, home: int) -> None:
    """Raise CUDA's out-of-memory error before something too large fills the host's memory."""
    kwargs = {**call.kwargs, "device": _META}
    if "generator" in kwargs:
        kwargs["generator"] = None
    try:
        nbytes = replace(call, kwargs=kwargs)().nbytes
    except Exception:  # it is sparse, or its size is not known before it is computed
        return
    gpu.ledger.allocators[home].require(nbytes)
