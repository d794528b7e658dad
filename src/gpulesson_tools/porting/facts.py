"""What a run notes of a script, in a form that another process can read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

CHOICE = '"cuda" if torch.cuda.is_available() else "cpu"'
DEVICE_LINE = f"device = torch.device({CHOICE})"
NO_INPUT = "nobody is there to answer input()"
NO_NETWORK = "the script is tried without a network"
NO_WRITING = "the script is tried in a copy of its folder, and must not write outside of it"
OVER = "it was ended, for it had trained long enough"
DIED = "its process ended with status"
IN_FULL = 300
"""So many training steps a run takes at most; the next one ends it."""
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
}
"""Titles of the lessons."""


@dataclass(frozen=True)
class Spot:
    """
    An expression or a statement that was running.

    Attributes
    ----------
    file : str
        Its file, seen from the script's folder.
    function : str
        Name of the function that it is in, ``"<module>"`` outside of all.
    line, column, end_line, end_column : int
        As in :meth:`code.co_positions`: lines from 1, columns in bytes of UTF-8.
    """

    file: str
    function: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True)
class Name:
    """
    A name by which a frame knows a thing.

    Attributes
    ----------
    frame : int
        Number of the frame in :attr:`Failure.frames`.
    name : str
        ``x``, or ``self.x``.
    held : str
        ``""``: the thing itself has the name. Otherwise what is called so holds it: ``"list"``, ``"tuple"``,
        ``"dict"``, or ``"other"`` for an object with a method ``to``; with ``"mixed "`` in front if it holds
        other things than tensors, too; ``"nested"`` if it is further inside.
    path : str
        Where in that it is: ``"['x']"``, ``"[0]['y']"``.
    module : bool
        It is an attribute of an ``nn.Module``.
    shared : bool
        It is a global name, seen from a function.
    """

    frame: int
    name: str
    held: str = ""
    path: str = ""
    module: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Thing:
    """
    A tensor or a module, and what is known of it.

    Attributes
    ----------
    device : str
    names : tuple of Name
        Outermost frame first.
    made : tuple of Spot
        The calls of the script's files that were running when it was made, outermost first.
    by : str
        What made it: ``"zeros"``, ``"Linear"``, …
    is_module, factory, random : bool
        It is a module; one of ``FACTORIES`` made it; by random numbers.
    drawn : bool
        A DataLoader or a dataset made it.
    fed : bool
        A dataset takes its samples from it.
    leaf : bool
        It asks for a gradient, and no DataLoader made it: it may be trained itself.
    asks : bool
        It asked for a gradient already when it was made.
    owner : Thing or None
        The module that registers it.
    root : bool
        It was made of no other tensor.
    ancestors : tuple of Thing
        The tensors that it was made of, and those that these were made of, nearest first.
    """

    device: str
    names: tuple[Name, ...] = ()
    made: tuple[Spot, ...] = ()
    by: str = ""
    is_module: bool = False
    factory: bool = False
    random: bool = False
    drawn: bool = False
    fed: bool = False
    leaf: bool = False
    asks: bool = False
    owner: Thing | None = None
    root: bool = True
    ancestors: tuple[Thing, ...] = ()

    def line(self) -> tuple[Thing, ...]:
        """Return it, and what it was made of, nearest first."""
        return self, *self.ancestors


@dataclass(frozen=True)
class Failure:
    """
    The error that ended the script.

    Attributes
    ----------
    kind, message : str
        Name of its type; its text.
    frames : tuple of Spot
        Those of the script's files, outermost first.
    things : tuple of Thing
        The tensors of the call that failed.
    inside : tuple of bool
        For each frame, whether it is a method of a module.
    where : tuple of str
        For each frame an expression for the device there: ``x.device`` of a tensor on the GPU, else "".
    text : str
        The last lines of the traceback.
    """

    kind: str
    message: str
    frames: tuple[Spot, ...] = ()
    things: tuple[Thing, ...] = ()
    inside: tuple[bool, ...] = ()
    where: tuple[str, ...] = ()
    text: str = ""


@dataclass
class Record:
    """
    What came of a run.

    Attributes
    ----------
    losses : list of float
        Of each backward pass.
    used : list of (Thing, tuple of Spot)
        The modules that are called, and what the backward passes train, once each, and the frames of that
        moment.
    on_cpu : list of Failure
        Where the CPU alone computes again and again what the GPU does not get.
    filled : list of Failure
        Assignments of the GPU's results into a tensor of the CPU's, which fail nowhere, but copy each time.
    loads : list of Spot
        Calls of ``torch.load`` that brought tensors to the GPU because they were saved from there.
    idle : list of Spot
        Calls of ``to`` that never had anything to do.
    draws : int
        How often random numbers were drawn on the GPU.
    lines : dict
        For each file, the lines that ran.
    failure : Failure or None
    stopped : str
        Why the script was ended before its end; "" if it was not.
    output, errors : str
        What it printed, also as errors.
    calls : int
        How many calls of PyTorch's functions there were, without moves and properties.
    shortened : bool
        Loops ended early.
    made_text : bool
        The training is in text that was run by ``exec``.
    evidence : Evidence or str or None
        What a review asked for.
    """

    losses: list[float] = field(default_factory=list)
    used: list[tuple[Thing, tuple[Spot, ...]]] = field(default_factory=list)
    on_cpu: list[Failure] = field(default_factory=list)
    filled: list[Failure] = field(default_factory=list)
    loads: list[Spot] = field(default_factory=list)
    idle: list[Spot] = field(default_factory=list)
    draws: int = 0
    lines: dict[str, set[int]] = field(default_factory=dict)
    failure: Failure | None = None
    stopped: str = ""
    output: str = ""
    errors: str = ""
    calls: int = 0
    shortened: bool = False
    made_text: bool = False
    evidence: Any = None


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
