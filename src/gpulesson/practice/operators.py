"""The operator mode: sees every ATen operator, also in backward and in the optimizer.

It finds where the tensors are, lets the CPU compute, and enters the results in the ledger. This runs for
every operator of a training loop, hence the care for speed; whatever is not everyday goes to
:mod:`gpulesson.practice.unusual`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpulesson.practice import unusual
from gpulesson.practice.facts import Facts
from gpulesson.practice.gpu import PracticeGPU
from gpulesson.practice.ledger import CPU_BIT, GPU_BIT, address_of
from gpulesson.practice.unusual import Call

_NONE: dict[str, Any] = {}
_FACTS: dict[int, Facts] = {}
"""By identity: hashing an operator costs more than looking it up."""


class Operators(TorchDispatchMode):
    """
    The mode of one thread.

    Parameters
    ----------
    gpu : PracticeGPU

    Attributes
    ----------
    asleep : bool
        Let everything pass.
    placement : int or None
        Where a factory function in progress makes its tensors; None outside such a function.
    """

    def __init__(self, gpu: PracticeGPU) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gpu = gpu
        self.asleep = False
        self.placement: int | None = None
        self._blocks = gpu.ledger.blocks
        self._enter = gpu.ledger.enter
        self._everyday = {GPU_BIT << index: index for index in range(gpu.count)}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or PyTorch wraps __torch_dispatch__ in a slow layer of its compiler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.asleep:
            return func(*args, **(kwargs or {}))
        facts = _FACTS.get(id(func)) or _facts_of(func)
        blocks = self._blocks
        try:
            if facts.unary:
                block = blocks.get(address_of(args[0]))
                seen = CPU_BIT if block is None else block.bit
            else:
                seen = self._places(facts, args)
        except (RuntimeError, NotImplementedError, TypeError):  # a tensor without a storage of its own
            return unusual.run(self, Call(func, facts, args, kwargs or {}))
        kwargs = kwargs or _NONE
        if kwargs and not facts.indifferent and not (seen == CPU_BIT and _only_shapes(facts, kwargs)):
            return unusual.run(self, Call(func, facts, args, kwargs))
        if seen == CPU_BIT or not (seen or facts.fresh):
            return facts.call(*args, **kwargs)
        home = self._everyday.get(seen)
        if home is None or not facts.plain:
            return unusual.run(self, Call(func, facts, args, kwargs))
        try:
            result = facts.call(*args, **kwargs)
        except (RuntimeError, IndexError) as error:
            if (on_device := unusual.as_on_device(self.gpu, error, home)) is None:
                raise
            raise on_device from None
        if facts.fresh:
            try:
                for tensor in result if facts.several else (result,):
                    address = address_of(tensor)
                    if address not in blocks:
                        self._enter(tensor.untyped_storage(), address, home)
            except (NotImplementedError, TypeError):  # sparse, a list among the results, or None
                self.gpu.ledger.place_new(result, home)
        return result

    def _places(self, facts: Facts, args: Sequence[Any]) -> int:
        """Return where the positional tensors are, as a sum of bits."""
        blocks, given, seen = self._blocks, len(args), 0
        for position in facts.tensors:
            if position >= given:
                break
            tensor = args[position]
            if isinstance(tensor, torch.Tensor):  # it may be a number
                block = blocks.get(address_of(tensor))
                seen |= CPU_BIT if block is None else block.bit
        for position in facts.lists:
            if position < given:
                for tensor in args[position] or ():
                    if tensor is not None:
                        block = blocks.get(address_of(tensor))
                        seen |= CPU_BIT if block is None else block.bit
        return seen


def _only_shapes(facts: Facts, kwargs: dict[str, Any]) -> bool:
    """Tell whether keywords say nothing about where a result is to be, or where random numbers come from."""
    device = kwargs.get("device")
    return not (facts.keywords or facts.generator) and (device is None or device.type == "cpu")


def _facts_of(func: Any) -> Facts:
    facts = _FACTS[id(func)] = Facts(func)
    return facts
