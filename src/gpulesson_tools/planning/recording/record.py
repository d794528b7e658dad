"""What a program did on the device, written down: every allocation, every operator, every wait.

Nothing is decided here. :mod:`.kinds` works out what an allocation was for, the package ``memory`` what
CUDA's allocator makes of them, the package ``speed`` how long it takes at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
"""The phases of a step. What is neither backward nor the optimizer counts as forward."""


@dataclass(slots=True)
class Place:
    """Where in the program something happened: the innermost line that is not a library's."""

    module: str = ""
    """The innermost module, as ``named_modules`` has it; in backward, that of the forward operator."""
    filename: str = ""
    line: int = 0  # from 1


@dataclass(slots=True)
class Allocation:
    """One storage on the device, from its birth to its death."""

    nbytes: int  # that were asked for; CUDA's allocator rounds them up to a multiple of 512
    step: int  # in which it was made, from 0
    phase: str
    operator: str  # the ATen operator that made it, without its overload: "addmm"
    place: Place
    kind: str = ""  # what it is for, one of kinds.KINDS; "" as long as that is not known
    differentiable: bool = False  # an input of the operator required gradients, and autograd was recording
    from_outside: bool = False  # made of no tensor on the device: copied from the host, or filled there
    born: int = -1  # position in Record.events
    died: int = -1  # the same; -1 if it outlives the record


@dataclass(frozen=True, slots=True)
class Cost:
    """What one ATen operator costs at least."""

    operator: str  # without its overload: "addmm"
    dtype: str
    """Of the numbers that it computes with; ``"tfloat32"`` where tensor cores may round float32."""
    flop: int  # floating-point operations, as torch.utils.flop_counter counts them
    least_flop: int
    """With the quickest algorithms: Winograd's convolution, attention that skips what is masked."""
    nbytes: int  # that have to be read once and written once
    launches: int  # kernels, at least


@dataclass(frozen=True, slots=True)
class Operation(Cost):
    """One ATen operator that ran on the device; `step`, `phase` and `place` are as in :class:`Allocation`."""

    step: int
    phase: str
    place: Place


@dataclass(slots=True)
class Waits:
    """How often the host waited for the device at one line, in one step."""

    step: int  # from 0
    call: str  # ".item()", ".to()", …
    filename: str
    line: int
    count: int


@dataclass(slots=True)
class Record:
    """What a program did on the device until it had taken some steps."""

    allocations: list[Allocation] = field(default_factory=list)  # in the order of their births
    events: list[int] = field(default_factory=list)
    """Births and deaths in their order: ``n`` is the birth of ``allocations[n]``, ``~n`` its death."""
    operations: list[Operation] = field(default_factory=list)  # in the order in which they ran
    waits: list[Waits] = field(default_factory=list)  # by step and line
    ends: list[int] = field(default_factory=list)
    """Position in `events` at which each step of the optimizer ended: step 0 is ``events[:ends[0]]``."""
    batch_size: int | None = None  # of the loader that feeds the steps; None if none is known
    handed: int | None = None  # samples in its batch for the first step: fewer, if it had no more
    recurrent: bool = False
    """An RNN, LSTM or GRU ran: on a GPU few kernels of cuDNN, with other buffers than the CPU's operators."""
    notes: list[str] = field(default_factory=list)  # what a reader should know of it, a sentence each

    @property
    def steps(self) -> int:
        """Steps that the optimizer has taken."""
        return len(self.ends)

    def with_sizes(self, sizes: Sequence[int]) -> Record:
        """Return the same events with other numbers of bytes, one for each allocation."""
        pairs = zip(self.allocations, sizes, strict=True)
        return replace(self, allocations=[replace(each, nbytes=nbytes) for each, nbytes in pairs])
