"""What a run notes of a script, in a form that can be sent to another process."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

CHOICE = '"cuda" if torch.cuda.is_available() else "cpu"'
DEVICE_LINE = f"device = torch.device({CHOICE})"
ACCELERATOR = 'torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")'
NO_INPUT = "nobody is there to answer input()"
NO_NETWORK = "the script is tried without a network"
NO_WRITING = "the script is tried in a copy of its folder, and must not write outside of it"
OVER = "it had trained long enough, and was ended"
DIED = "its process ended with status"
IN_FULL = 300
"""Training steps that a run takes at most; the next one ends it."""
OPTION = re.compile(r"(?m)^[^#\n]*add_argument\([^()#]*['\"](--(?:use[-_])?(?:device|cuda|gpus?))['\"]")
LESSONS = {
    1: "Is there a GPU?",
    2: "Tensors and devices",
    3: "A first model on the GPU",
    4: "The training loop on a device",
    5: "Fashion-MNIST end to end",
    6: "Save, load, resume",
    7: "The common mistakes",
    8: "Was it faster?",
    9: "Feeding the GPU",
    10: "Where did my memory go?",
    11: "Profile before you optimise",
    12: "The speed ladder",
    13: "When it does not fit",
    14: "Many GPUs",
    15: "What an operator costs",
}
"""Titles of the lessons."""


@dataclass(frozen=True)
class Spot:
    """An expression or a statement that was running; lines from 1, columns in bytes of UTF-8."""

    file: str  # seen from the script's folder
    function: str  # that it is in; "<module>" outside of all
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True)
class Name:
    """A name by which a frame knows a thing.

    What is called so may hold the thing: `held` is then ``"list"``, ``"tuple"``, ``"dict"``, or ``"other"``
    for an object with a method ``to``; with ``"mixed "`` in front if it holds other things than tensors, too;
    ``"nested"`` if the thing is further inside.
    """

    frame: int  # its number in Scene.frames
    name: str  # "x", or "self.x"
    held: str = ""  # "": the thing itself has the name
    path: str = ""  # where in its holder it is: "['x']", "[0]['y']"
    module: bool = False  # an attribute of an nn.Module
    shared: bool = False  # a global name, seen from a function


@dataclass(frozen=True)
class Thing:
    """A tensor or a module, and what is known of it."""

    device: str
    names: tuple[Name, ...] = ()  # outermost frame first
    made: tuple[Spot, ...] = ()  # the calls in the script's files when it was made, outermost first
    by: str = ""  # what made it: "zeros", "Linear", …
    is_module: bool = False
    factory: bool = False  # one of FACTORIES made it
    random: bool = False  # random numbers made it
    drawn: bool = False  # a DataLoader or a dataset made it
    fed: bool = False  # a dataset takes its samples from it
    leaf: bool = False  # it asks for a gradient, and no DataLoader made it: it may be trained itself
    asks: bool = False  # it asked for a gradient already when it was made
    owner: Thing | None = None  # the module that registers it
    root: bool = True  # it was made of no other tensor
    ancestors: tuple[Thing, ...] = ()  # the tensors that it was made of, and theirs, nearest first

    def line(self) -> tuple[Thing, ...]:
        """Return it, and what it was made of, nearest first."""
        return self, *self.ancestors


@dataclass(frozen=True)
class Scene:
    """Tensors at one place of the script, as the frames of its files see them, outermost first."""

    frames: tuple[Spot, ...] = ()
    things: tuple[Thing, ...] = ()
    inside: tuple[bool, ...] = ()  # of each frame: it is a method of a module
    where: tuple[str, ...] = ()  # of each frame: "x.device", of a tensor on the GPU that it has; else ""


@dataclass(frozen=True)
class Failure(Scene):
    """The error that ended the script, with the tensors of the call that failed."""

    kind: str = ""  # the name of its type
    message: str = ""
    text: str = ""  # its traceback


@dataclass
class Run:
    """What came of a run."""

    losses: list[float] = field(default_factory=list)  # of each backward pass
    used: list[tuple[Thing, tuple[Spot, ...]]] = field(default_factory=list)
    """The modules that are called, and what is trained, once each, with the frames of that moment."""
    on_cpu: list[Scene] = field(default_factory=list)
    """Where the CPU alone computes again and again what the GPU does not get."""
    filled: list[Scene] = field(default_factory=list)
    """Assignments of the GPU's results into a tensor of the CPU's, which fail nowhere, but copy each time."""
    loads: list[Spot] = field(default_factory=list)
    """Calls of ``torch.load`` that brought tensors to the GPU because they were saved from there."""
    idle: list[Spot] = field(default_factory=list)  # calls of ``to`` that never had anything to do
    draws: int = 0  # how often random numbers were drawn on the GPU
    lines: dict[str, set[int]] = field(default_factory=dict)  # for each file, those that ran
    failure: Failure | None = None
    stopped: str = ""  # why the script was ended before its end
    output: str = ""
    errors: str = ""
    calls: int = 0  # of PyTorch's functions, without moves and properties
    shortened: bool = False  # loops ended early
    made_text: bool = False  # the training is in text that was run by ``exec``
    evidence: Any = None  # what a review asked for


def where(failure: Failure) -> str:
    """Return file and line of a failure."""
    return f"{failure.frames[-1]}," if failure.frames else "it"


def explained(failure: Failure, device: str) -> str:
    """Say why a run failed, and what to do; `device` says where it ran."""
    if failure.kind == "NoInput":
        return (
            f"{where(failure)} waits for input(). It is tried by itself: give the value as "
            "an argument of the script, or write it there"
        )
    if NO_NETWORK in failure.text:
        return (
            f"{where(failure)} wants to download something, and it is tried without a network. Run it once "
            "as usual, so that its data are in its folder"
        )
    if NO_WRITING in failure.text:
        return (
            f"{where(failure)} writes to another place: {failure.message}. Let it write into its own folder"
        )
    said = "\n".join(failure.text.splitlines()[-8:])
    if failure.kind in ("FileNotFoundError", "NotADirectoryError"):
        return (
            f"{where(failure)} finds no file. It is tried in a copy of the folder that you are in. If the "
            f"file lies above that, name the folder that has both: --root FOLDER\n{said}"
        )
    return f"{where(failure)} fails {device}, in a copy of its folder (without .git). Fix that first:\n{said}"
