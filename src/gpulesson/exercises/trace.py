"""What a learner's program did, as plain data: written in the program's process, read by the rules."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple


class Site(NamedTuple):
    """A line of the learner's code: the file's path and the number from 1; ``("", 0)`` if there is none."""

    file: str = ""
    line: int = 0


NOWHERE = Site()


@dataclass
class ModelSeen:
    """A model: a module with parameters that was called by itself, not by another module."""

    name: str
    made: Site
    moody: bool
    """Has layers that behave differently in training and evaluation: dropout, batch normalization."""
    devices: list[str]
    """Where its parameters and buffers were at the last call."""
    stepped: bool = False
    """An optimizer with its parameters took a step."""
    seeded: bool = False
    """``torch.manual_seed`` had been called before it was made."""


@dataclass
class CallSeen:
    """All calls of a model from one line that went alike."""

    site: Site
    model: int
    training: bool
    trained: bool
    """A gradient came back."""
    grad: bool
    """The output kept the history that a gradient would need."""
    input_on: str
    model_on: list[str]
    finished: bool
    count: int = 0
    last_step: int = 0


@dataclass
class OptimizerSeen:
    """An optimizer, from its construction to its last step."""

    name: str
    made: Site
    made_on: list[str]
    made_for: Site = NOWHERE
    """Where the function was called that made it; where it was made, if that was in no function."""
    steps: int = 0
    first_step: int = 0
    """Steps of all optimizers before its first."""
    zeroed_late: int = 0
    """Steps that had no gradient because it was zeroed after ``backward``."""
    zeroed_at: Site = NOWHERE
    accumulated: int = 0
    """Steps whose gradients still held those of the step before."""
    accumulated_at: Site = NOWHERE
    step_at: Site = NOWHERE
    """Where it took its last step."""
    ran_in: str = ""
    """The file whose lines outside functions were running then; empty in a thread."""
    blind: bool = False
    """At its first step none of its parameters had a gradient, nor had had one."""
    moved: bool = True
    """Its parameters are not what they were before its first step."""
    params_on: list[str] = field(default_factory=list)
    strange: bool = False
    """Holds no parameter of any model that was called."""
    anew: bool = False
    """One of the same line had stepped the same parameters, with a state that this one lacks."""
    state_loaded: bool = False
    rate: float = 0.0
    """Its learning rate at its first step; 0 if nobody can tell."""
    seed: int = -1
    """Of torch's generator, when it was made."""


@dataclass
class LossSeen:
    """All calls of a loss function from one line."""

    name: str
    site: Site
    made: Site
    input_on: str
    target_on: str
    weight_on: str
    finished: bool
    count: int = 0
    softmaxed: int = 0
    """Calls of a cross-entropy whose input was probabilities already."""
    softmax_at: Site = NOWHERE
    kept: int = 0
    """How many losses of earlier steps were alive at once, with their history."""
    weighs: bool = False
    """It has weights that are not all alike."""
    unlogged: int = 0
    """Calls of a negative log-likelihood whose input was not the logarithms of probabilities."""


@dataclass
class ReadSeen:
    """A line that fetched values from the device."""

    call: str
    site: Site
    count: int
    steps: int
    """In how many different training steps."""
    in_last_step: int = 0
    """How often since the last of them."""


@dataclass
class ArgmaxSeen:
    """A search for the largest logit along the wrong dimension."""

    site: Site
    dim: int | None
    shape: list[int]
    count: int = 1


@dataclass
class SaveSeen:
    """A call of ``torch.save``, or of this package's ``save_checkpoint``."""

    site: Site
    has_model: bool
    has_optimizer: bool
    step: int = 0
    """Steps of all optimizers until then."""
    own_steps: int = 0
    """Steps until then of the optimizer that had stepped last."""
    old_random_state: bool = False
    """It holds a state of torch's generator that the generator had left already."""
    random_state: bool = False
    """It holds a state of torch's generator, as a tensor, an array or a list."""


@dataclass
class LoadSeen:
    """A call of ``torch.load``, or of this package's ``load_checkpoint`` or ``resume``."""

    site: Site
    step: int
    safe: bool
    """Without ``weights_only=False``."""
    saved_here: bool = False
    """Its tensors are those that this run had saved."""


class Printed(NamedTuple):
    """A line of output, and how many optimizer steps there were before."""

    site: Site
    text: str
    step: int


@dataclass
class Evaluated:
    """One call of a model without training: how many known samples it saw, and how many were right."""

    test: int
    right: int
    train: int
    step: int
    untrained: int = 0
    """Samples of the training part among them that no model has trained on."""
    model: int = -1
    site: Site = NOWHERE
    in_order: int = 0
    """Answers that are right if the call saw the test samples in their order, whatever was done to them."""
    samples: int = 0


@dataclass
class TrainedOn:
    """The samples that gradients were computed of, where they are known."""

    known: int = 0
    """Different samples of the training part."""
    of: int = 0
    """How many it has."""
    test: int = 0
    """Different samples of the test part."""
    unknown: int = 0
    """Samples of neither."""
    labelled: int = 0
    """Samples whose label was seen by a loss function, and how many of the labels were another's."""
    mislabelled: int = 0
    same_order: bool = False
    """Every pass took the batches in the same order."""
    site: Site = NOWHERE
    test_at: Site = NOWHERE
    mislabelled_at: Site = NOWHERE


@dataclass
class ErrorSeen:
    """The exception that ended the program."""

    type: str
    message: str
    site: Site
    lines: list[Site]
    tensors: dict[str, list[Any]]
    """The tensors named on the failing line: device, dtype and shape."""


@dataclass
class Trace:
    """All that was seen of one run."""

    device: str = ""
    simulated: bool = True
    status: str = "finished"
    exit_code: int = 0
    exit_at: Site = NOWHERE
    error: ErrorSeen | None = None
    models: list[ModelSeen] = field(default_factory=list)
    calls: list[CallSeen] = field(default_factory=list)
    optimizers: list[OptimizerSeen] = field(default_factory=list)
    losses: list[LossSeen] = field(default_factory=list)
    reads: list[ReadSeen] = field(default_factory=list)
    argmaxes: list[ArgmaxSeen] = field(default_factory=list)
    saves: list[SaveSeen] = field(default_factory=list)
    loads: list[LoadSeen] = field(default_factory=list)
    """But for those with which ``save_checkpoint`` reads again what it has written."""
    evaluated: list[Evaluated] = field(default_factory=list)
    trained_on: TrainedOn | None = None
    """Where the exercise's probe knows the samples."""
    made_inside: list[Site] = field(default_factory=list)
    """Where tensors on the CPU were made inside the model's call that failed."""
    values: list[float] = field(default_factory=list)
    """The losses that gradients were computed of, in order."""
    products: list[tuple[int, str, Site]] = field(default_factory=list)
    """Products of matrices, each way once: how many numbers came out, on what kind of device, and where."""
    gpu_named: str = ""
    """A variable that held a GPU while matrices were multiplied on the CPU."""
    backwards: int = 0
    wasted: int = 0
    """Backward passes whose gradients were thrown away, and no step had used them."""
    in_steps: int = 0
    """Backward passes inside a step, in an optimizer's closure."""
    backward_at: Site = NOWHERE
    prints: list[Printed] = field(default_factory=list)
    device_memory: int = 0
    """Bytes: the most that was allocated on the device."""
    program: str = ""
    """The path of the file that ran."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the exercise's own probe found."""
    without_gpu: Trace | None = None
    """Of a second run, on a machine without a GPU, for an exercise that asks for one."""
    ranks: list[Trace] = field(default_factory=list)
    """Of all processes, this one included, where an exercise is run in several; none if one has no trace."""

    @property
    def steps(self) -> int:
        """Steps of all optimizers."""
        return sum(optimizer.steps for optimizer in self.optimizers)

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and dicts, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Trace:
        """Read what :meth:`to_dict` wrote."""
        sites = {name: Site(*content[name]) for name in ("exit_at", "backward_at")}
        trace = cls(**{**content, **sites})
        for name, kind in _KINDS.items():
            setattr(trace, name, [_read(kind, entry) for entry in content[name]])
        if content["error"]:
            trace.error = _read(ErrorSeen, content["error"])
            trace.error.lines = [Site(*site) for site in trace.error.lines]
        if content["trained_on"]:
            trace.trained_on = _read(TrainedOn, content["trained_on"])
        trace.made_inside = [Site(*site) for site in trace.made_inside]
        trace.products = [(size, device, Site(*site)) for size, device, site in trace.products]
        trace.prints = [Printed(Site(*site), text, step) for site, text, step in trace.prints]
        return trace


_KINDS: dict[str, type] = {
    "models": ModelSeen,
    "calls": CallSeen,
    "optimizers": OptimizerSeen,
    "losses": LossSeen,
    "reads": ReadSeen,
    "argmaxes": ArgmaxSeen,
    "saves": SaveSeen,
    "loads": LoadSeen,
    "evaluated": Evaluated,
}


def _read(kind: Any, entry: dict[str, Any]) -> Any:
    sites = {f.name for f in fields(kind) if f.type == "Site"}
    return kind(**{name: Site(*value) if name in sites else value for name, value in entry.items()})
