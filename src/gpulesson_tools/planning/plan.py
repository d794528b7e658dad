"""Plan a training run before there is a GPU: run a few of its steps, and work out memory and least time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from os import PathLike, fspath
from pathlib import Path

from gpulesson_tools.planning.answer import OnGpu, Plan
from gpulesson_tools.planning.hardware import gpus, links
from gpulesson_tools.planning.hardware.gpus import Gpu
from gpulesson_tools.planning.hardware.links import NETWORK, Link
from gpulesson_tools.planning.memory import any_batch, fitting
from gpulesson_tools.planning.memory.peak import peak
from gpulesson_tools.planning.recording.record import Record
from gpulesson_tools.planning.recording.recorded import (
    Outcome,
    ProgramFailed,
    record_function,
    record_program,
)
from gpulesson_tools.planning.speed.floor import floor
from gpulesson_tools.planning.speed.several_gpus import on_ranks
from gpulesson_tools.programs.arguments import Program

GPUS = ("T4", "RTX 3060", "A100", "H100")
"""Names of the GPUs that a plan is for unless others are named."""
SMALL = (2, 3)
"""The batch sizes from which all others are worked out."""

_USUAL = (8, 0)  # compute capability of a GPU whose row names none


def plan(
    program: str | PathLike[str] | Sequence[str] | Callable[..., object],
    *,
    gpu: str | Sequence[str] = GPUS,
    steps: int = 3,
    batch_size: int | None = None,
    dry: bool = False,
    tables: Sequence[str | PathLike[str]] = (),
    ranks: Sequence[int] = (),
    network: str = NETWORK,
) -> Plan:
    """Say whether a training program will fit on a GPU, and how fast it can be at most.

    A few steps of the program run on the practice GPU, unchanged, in a fresh process. It writes its files
    and takes its time as usual. Then it runs twice more with batches of 2 and 3 samples, from which all other
    batch sizes follow.

    Parameters
    ----------
    program : str, path, sequence of str or callable
        A script; a script with its arguments, ``["train.py", "--lr", "0.1"]``; a module, ``["-m",
        "package"]``; or a function that trains on ``"cuda"`` for at least `steps` steps. A function with one
        parameter is called with the batch size; it runs in this process.
    gpu : str or sequence of str
        Names from the table of GPUs.
    steps : int, default 3
        How many steps of the optimizer to record. The first alone would not do: the optimizer's state is made
        at its end.
    batch_size : int, optional
        Plan for this batch, and not for the program's own.
    dry : bool, default False
        Take shapes only: nothing is computed where values do not matter, so that a model may be too large for
        this machine. What the program prints has no meaning then.
    tables : sequence of path
        CSV files with more GPUs, of the form of the package's own.
    ranks : sequence of int
        Numbers of GPUs to plan for besides, each with its own process and batch.
    network : str, default "InfiniBand NDR"
        What joins nodes of eight GPUs, by its name in the table of links.

    Returns
    -------
    Plan

    Raises
    ------
    ValueError
        If a GPU or the network is not known, `steps`, `batch_size` or one of `ranks` is less than 1, or the
        batch size of the program is not known although another is asked for.
    FileNotFoundError
        If there is no such script.
    ProgramFailed
        If the program fails before its steps are done, or puts nothing on the device.

    Notes
    -----
    Not known: the CUDA context, which is given as a range, and cuDNN's workspaces, for which
    there is no figure. Not planned for: ``torch.compile``, custom kernels, programs that use several GPUs
    by themselves. A program that asks how much memory the GPU has gets 4 TiB as an answer. A function
    trains what it is given, and its changes stay. LSTM and GRU run as cuDNN's on a GPU, which keeps other
    memory than the CPU's operators do.

    Examples
    --------
    >>> import torch
    >>> def train(batch_size):
    ...     model = torch.nn.Linear(1000, 10, device="cuda")
    ...     optimizer = torch.optim.Adam(model.parameters())
    ...     for _ in range(3):
    ...         model(torch.ones(batch_size, 1000, device="cuda")).sum().backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    >>> found = plan(train, gpu="T4", batch_size=64)
    >>> found.peak.by_kind["parameters"], found.gpus[0].verdict.answer
    (40960, 'fits')
    """
    for name, number in (("steps", steps), ("batch_size", batch_size), *(("ranks", each) for each in ranks)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"{name}={number!r}: give a whole number, 1 or more")
    between_nodes = links.network(network)
    table = gpus.read(*map(Path, tables))
    chosen = [gpus.find(name, table) for name in ([gpu] if isinstance(gpu, str) else gpu)]
    runs = _Function(program, steps, dry) if callable(program) else _Script(program, steps, dry)
    notes: list[str] = []
    own = runs.own(notes, batch_size)
    small = _small(runs, own, notes)
    record = own
    if batch_size is None and record and record.handed and record.handed < (record.batch_size or 0):
        notes.append(
            f"Its loader is for batches of {record.batch_size:,}, and had {record.handed:,} samples to hand "
            "out: this is a plan for that many."
        )
        record = replace(record, batch_size=record.handed)
    if batch_size is not None and (own is None or own.batch_size != batch_size):
        if small is None:
            raise ValueError(
                f"batch_size={batch_size}: {notes[-1]} Change the batch size in the program instead"
            )
        record = any_batch.at_batch(*small, batch_size)
    assert record is not None
    notes += record.notes
    if record.recurrent:
        notes.append(
            "It has an RNN, LSTM or GRU. On a GPU they are cuDNN's, with other memory and fewer kernels than "
            "the CPU's: there is no least time, and the memory of their activations is an estimate."
        )
    if dry:
        notes.append("Dry: shapes only, nothing was computed; what the program printed has no meaning.")
    workspace = fitting.cublas_workspace(chosen[0].capability or _USUAL) if chosen else 0
    return Plan(
        runs.name,
        record,
        peak(record),
        fitting.replay(record, workspace=workspace),
        fitting.replay(record, expandable_segments=True, workspace=workspace),
        tuple(_on(each, record, small, ranks, between_nodes) for each in chosen),
        tuple(notes),
    )


def _on(
    gpu: Gpu,
    record: Record,
    small: tuple[Record, Record] | None,
    ranks: Sequence[int],
    network: Link,
) -> OnGpu:
    capability = gpu.capability or _USUAL
    verdict = fitting.verdict(record, gpu.memory, capability)
    largest = None
    if small is not None:
        room = int(fitting.MARGIN * verdict.least_left)
        largest = any_batch.largest_batch(*small, room, workspace=fitting.cublas_workspace(capability))
    least = floor(record, gpu) if record.steps and not record.recurrent else None
    node = links.of_gpu(gpu.name)
    several = on_ranks(record, gpu, least, ranks, node, network)
    return OnGpu(gpu, verdict, least, largest, several, node, network)


def _small(runs: _Script | _Function, own: Record | None, notes: list[str]) -> tuple[Record, Record] | None:
    """Record the two small batches; if that cannot be, say why in a note."""
    try:
        first, second = (runs.small(size, own) for size in SMALL)
        any_batch.at_batch(first, second, SMALL[0])  # refuses what does not match
        any_batch.largest_batch(first, second, 1)
    except (ValueError, ProgramFailed) as error:
        notes.append(f"For other batches there is no plan: {error}.")
        return None
    return first, second


class _Script:
    """A program that runs in fresh processes."""

    def __init__(self, program: str | PathLike[str] | Sequence[str], steps: int, dry: bool) -> None:
        words = [program] if isinstance(program, str | PathLike) else program
        self._program = Program.of([fspath(word) for word in words])
        self.name = " ".join(self._program.words)
        self._steps, self._dry = steps, dry
        if not (self._program.is_module or Path(self._program.name).is_file()):
            raise FileNotFoundError(f"there is no script {self._program.name!r} to plan for")

    def own(self, notes: list[str], batch_size: int | None) -> Record:
        """Record the program as it is."""
        outcome = record_program(self._program, self._steps, dry=self._dry)
        _check(outcome, self.name, self._steps)
        if not outcome.record.steps:
            notes.append(
                "No optimizer took a step: this is what the program held in all, and a step has no time."
            )
        elif outcome.record.steps < self._steps:
            notes.append(f"The program ended after {outcome.record.steps} of {self._steps} steps.")
        return outcome.record

    def small(self, size: int, own: Record | None) -> Record:
        """Record it with another batch."""
        if own is None or own.batch_size is None:
            raise ValueError("no DataLoader feeds its steps, so that its batch size is not known")
        sizes = own.batch_size, size
        outcome = record_program(self._program, self._steps, batch_size=sizes, dry=self._dry, show=False)
        if outcome.error:
            raise ProgramFailed(f"with a batch of {size} the program fails: {outcome.error}")
        outcome.record.batch_size = size
        return outcome.record


class _Function:
    """A function that runs in this process."""

    def __init__(self, function: Callable[..., object], steps: int, dry: bool) -> None:
        self.function = function
        self.name = getattr(function, "__name__", repr(function))
        self._sized = bool(signature(function).parameters)
        self._steps, self._dry = steps, dry

    def own(self, notes: list[str], batch_size: int | None) -> Record | None:
        """Record it, unless it takes the batch size: then the small batches do."""
        if self._sized:
            if batch_size is None:
                raise ValueError(f"{self.name} takes a batch size: give batch_size=…")
            return None
        record = record_function(self.function, self._steps, dry=self._dry)
        _check(Outcome(record), self.name, self._steps)
        return record

    def small(self, size: int, own: Record | None) -> Record:
        """Record it with another batch."""
        if not self._sized:
            raise ValueError(f"{self.name} has no parameter for the batch size")
        record = record_function(lambda: self.function(size), self._steps, dry=self._dry)
        _check(Outcome(record), self.name, self._steps)
        record.batch_size = size
        return record


def _check(outcome: Outcome, name: str, steps: int) -> None:
    """Raise if there is nothing to plan with."""
    if outcome.record.steps < steps and (outcome.error or outcome.status):
        why = outcome.error or f"it ended with exit status {outcome.status}"
        if "invalid device ordinal" in why:
            why += ". It asks for a second GPU, and a plan is for one: run it with one process and one GPU"
        raise ProgramFailed(f"{name} took {outcome.record.steps} of {steps} steps, then: {why}")
    if not outcome.record.allocations:
        raise ProgramFailed(
            f"{name} put nothing on the GPU: it has to use the device cuda, as it would where there is one, "
            "in the process that is started (processes that it starts itself are not watched)"
        )
