"""What a program did on the practice GPU, written down: every allocation, every operator, every wait.

Nothing is decided here. What an allocation was for is worked out afterwards, in
:mod:`gpulesson_tools.planning.recording.kinds`; what CUDA's allocator makes of the list, in
:mod:`gpulesson_tools.planning.memory.caching`; how long it takes at least, in
:mod:`gpulesson_tools.planning.speed.floor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
"""The phases of a step. What is neither backward nor the optimizer counts as forward."""


@dataclass(slots=True)
class Place:
    """
    Where in the program something happened.

    Attributes
    ----------
    module : str
        Name of the innermost module of the model, as ``named_modules`` has it; "" outside of all. In
        backward it is that of the forward operator whose derivative is computed.
    filename : str
        File of the innermost line that is not a library's; "" if there is none.
    line : int
        Its number, from 1.
    """

    module: str = ""
    filename: str = ""
    line: int = 0


@dataclass(slots=True)
class Allocation:
    """
    One storage on the device, from its birth to its death.

    Attributes
    ----------
    nbytes : int
        Bytes that were asked for. CUDA's allocator rounds them up to a multiple of 512.
    step : int
        Number of the step in which it was made, from 0.
    phase : str
        ``"forward"``, ``"backward"`` or ``"optimizer"``.
    operator : str
        Name of the ATen operator that made it, without its overload: ``"addmm"``.
    place : Place
        Where.
    kind : str
        What it is for, one of :data:`gpulesson_tools.planning.recording.kinds.KINDS`; "" as long as nobody
        has said.
    differentiable : bool
        An input of the operator required gradients, and autograd was recording.
    from_outside : bool
        It was made of no tensor on the device: copied from the host, or filled with numbers there.
    born, died : int
        Position of its birth and death in :attr:`Record.events`; `died` is -1 if it outlives the record.
    """

    nbytes: int
    step: int
    phase: str
    operator: str
    place: Place
    kind: str = ""
    differentiable: bool = False
    from_outside: bool = False
    born: int = -1
    died: int = -1


@dataclass(frozen=True, slots=True)
class Cost:
    """
    What one ATen operator costs at least.

    Attributes
    ----------
    operator : str
        Its name, without the overload: ``"addmm"``.
    dtype : str
        Type of the numbers that it computes with: ``"float32"``, ``"bfloat16"``, …; ``"tfloat32"`` where
        PyTorch's settings let tensor cores round float32.
    flop : int
        Floating-point operations, by the formulas of :mod:`torch.utils.flop_counter`; 0 if it has none.
    least_flop : int
        What is left of them with the quickest algorithms that are known: Winograd's for convolutions,
        attention that skips what a causal mask hides.
    nbytes : int
        Bytes that have to be read once and written once.
    launches : int
        Kernels that are launched at least.
    """

    operator: str
    dtype: str
    flop: int
    least_flop: int
    nbytes: int
    launches: int


@dataclass(frozen=True, slots=True)
class Operation(Cost):
    """
    One ATen operator that ran on the device: what it cost, and `step`, `phase` and `place` as in
    :class:`Allocation`.
    """

    step: int
    phase: str
    place: Place


@dataclass(slots=True)
class Waits:
    """
    How often the host waited for the device at one line, in one step.

    Attributes
    ----------
    step : int
        Number of the step, from 0.
    call : str
        What was called: ``.item()``, ``.to()``, …
    filename, line
        The line.
    count : int
        How often.
    """

    step: int
    call: str
    filename: str
    line: int
    count: int


@dataclass(slots=True)
class Record:
    """
    What a program did on the device until it had taken some steps.

    Attributes
    ----------
    allocations : list of Allocation
        In the order of their births.
    events : list of int
        Births and deaths in their order: ``n`` is the birth of ``allocations[n]``, ``~n`` its death.
    operations : list of Operation
        In the order in which they ran.
    waits : list of Waits
        By step and line.
    ends : list of int
        Position in `events` at which each step ended: step 0 is ``events[:ends[0]]``. Empty if no optimizer
        took a step.
    batch_size : int or None
        Samples in a batch of the loader that feeds the steps; None if there is none that is known.
    handed : int or None
        Samples in the batch that it handed out for the first step: fewer, if it had no more.
    recurrent : bool
        An RNN, LSTM or GRU ran. On a GPU they are cuDNN's: few kernels, with their own buffers, where the
        CPU has many operators.
    notes : list of str
        What a reader should know of the record, a sentence each.
    """

    allocations: list[Allocation] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    waits: list[Waits] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    batch_size: int | None = None
    handed: int | None = None
    recurrent: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Steps that the optimizer has taken."""
        return len(self.ends)

    def with_sizes(self, sizes: Sequence[int]) -> Record:
        """Return the same events with other numbers of bytes, one for each allocation."""
        pairs = zip(self.allocations, sizes, strict=True)
        return replace(self, allocations=[replace(each, nbytes=nbytes) for each, nbytes in pairs])
