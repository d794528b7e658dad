"""A step with several GPUs, one process (rank) for each: its memory, and the least time that it can take.

Each rank computes its own batch, and the gradients are averaged. Copies of the model (DDP) do that with
an all-reduce, bucket by bucket, while the backward pass still runs (Li et al. 2020,
https://arxiv.org/abs/2006.15704). Fully sharded, as FSDP and ZeRO-3 are, each rank keeps one part of all
parameters, gradients and optimizer state, and gathers a block's parameters when it needs them (Rajbhandari et
al. 2019, https://arxiv.org/abs/1910.02054).

An all-reduce of S bytes over N ranks moves at least 2 (N - 1) / N x S bytes out of each rank, a gather or a
reduce-scatter half as many (Patarasuk and Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002; see
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpulesson_tools.planning.hardware.gpus import Gpu
from gpulesson_tools.planning.hardware.links import Link
from gpulesson_tools.planning.memory import fitting
from gpulesson_tools.planning.memory.fitting import Replay, Verdict
from gpulesson_tools.planning.recording.kinds import GRADIENT, OTHER, PARAMETER, STATE
from gpulesson_tools.planning.recording.record import BACKWARD, FORWARD, OPTIMIZER, Allocation, Place, Record
from gpulesson_tools.planning.speed.floor import Floor

COMPUTE, COMMUNICATION, LATENCY = "compute", "communication", "latency"
DDP, SHARDED = "DDP", "fully sharded"
"""How the model is spread over the ranks."""

PER_NODE = 8
"""GPUs in one node, as in NVIDIA's DGX and HGX machines."""
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20
"""Bytes at which DDP closes its first bucket and each further one: its defaults."""
_RING, _TREE = 3.6e-6, 4.4e-6
"""Seconds that a collective takes before its first hop, in NCCL's tuner (as the hops of ``links.csv``)."""

CONDITIONS = (
    "Several GPUs: all ranks are equally quick and never wait for data. Each link carries what its "
    "document says, and no switch adds up the gradients on their way.",
    "The gradients travel in the type in which the program holds them, DDP's while the backward pass runs, "
    "as far as that is long enough; those of the last bucket travel after it.",
    "Fully sharded, each block's parameters travel once for the forward pass and once for the backward pass, "
    "and computing hides all but the smallest block's. Blocks are what lists of modules hold; what is in no "
    "list counts as one block.",
)
"""What has to hold for the times with several ranks, a sentence each."""


@dataclass(frozen=True, slots=True)
class Collective:
    """What one collective operation takes, in seconds."""

    latency: float  # for its hops, however few bytes there are
    transfer: float  # for its bytes

    @property
    def seconds(self) -> float:
        return self.latency + self.transfer


@dataclass(frozen=True, slots=True)
class Compute:
    """What one rank computes in a step, in seconds."""

    before: float  # until the first gradient can travel: the forward pass
    beside: float  # what communication can hide behind: the backward pass
    after: float  # what needs all gradients: the optimizer's step

    @property
    def seconds(self) -> float:
        return self.before + self.beside + self.after


@dataclass(frozen=True, slots=True)
class Step:
    """The least time of one step with several ranks.

    Attributes
    ----------
    seconds : float
    efficiency : float
        Time of the step on one rank, divided by this: 1 if the others cost nothing. It can be more where the
        ranks share the optimizer's work.
    bound : str
        What takes most of it: ``"compute"``, ``"communication"`` (bytes) or ``"latency"`` (hops).
    """

    seconds: float
    efficiency: float
    bound: str


@dataclass(frozen=True, slots=True)
class OnRanks:
    """A plan for several GPUs of one kind.

    Attributes
    ----------
    ranks : int
        How many, with one process each.
    strategy : str
        ``"DDP"`` or ``"fully sharded"``.
    verdict : Verdict
        Whether the part of one rank fits on its GPU.
    replay : Replay
        What PyTorch's allocator makes of it on a GPU with memory enough.
    step : Step or None
        Its least time; None if the step's or the link's is not known.
    """

    ranks: int
    strategy: str
    verdict: Verdict
    replay: Replay
    step: Step | None


def on_ranks(
    record: Record, gpu: Gpu, alone: Floor | None, counts: Iterable[int], node: Link | None, network: Link
) -> tuple[OnRanks, ...]:
    """Plan one rank's recorded step for several numbers of ranks, with DDP and fully sharded.

    `alone` is its least time on one GPU; `node` and `network` join the GPUs of a node, and nodes.
    """
    capability = gpu.capability or (8, 0)
    found = []
    for ranks in counts:
        for strategy in (DDP, SHARDED):
            spread = spread_out(record, ranks, strategy)
            verdict = fitting.verdict(spread, gpu.memory, capability)
            step = None
            if alone is not None and node is not None:
                step = least_step(record, alone, ranks, strategy, node, network)
            replay = fitting.replay(spread, workspace=fitting.cublas_workspace(capability))
            found.append(OnRanks(ranks, strategy, verdict, replay, step))
    return tuple(found)


def least_step(record: Record, alone: Floor, ranks: int, strategy: str, node: Link, network: Link) -> Step:
    """Return the least time of a step with several ranks, in nodes of 8: a bound, never a promise."""
    compute = parts(alone)
    if strategy == DDP:
        sent = [all_reduce(size, ranks, node, network) for size in buckets(gradients(record))]
        return overlapped(compute, sent, sent[-1:], alone.seconds, alone.launching)
    gathers = [half(all_reduce(size, ranks, node, network)) for size in blocks(record).values()]
    exposed = [min(gathers, key=lambda each: each.seconds)] * 2 if gathers else []
    everything = Compute(0.0, compute.before + compute.beside, compute.after / ranks)
    return overlapped(everything, gathers * 3, exposed, alone.seconds, alone.launching)


def overlapped(
    compute: Compute,
    sent: Sequence[Collective],
    exposed: Sequence[Collective],
    alone: float | None = None,
    least: float = 0.0,
) -> Step:
    """Return the least time of a step that computes and communicates at once.

    The collectives run one after the other, from the end of ``compute.before`` on; those that are exposed
    can only run when nothing is computed beside them.

    Parameters
    ----------
    compute : Compute
    sent, exposed : sequence of Collective
        All collectives of the step; those of them behind which nothing is left to compute.
    alone : float, optional
        Seconds that the step takes on one rank; by default all that is computed.
    least : float
        Seconds that it takes in any case: the host launches its kernels.

    Examples
    --------
    >>> bucket = Collective(latency=0.0, transfer=0.02)
    >>> round(overlapped(Compute(0.1, 0.2, 0.1), [bucket] * 5, [bucket]).seconds, 2)  # hidden but for one
    0.42
    >>> overlapped(Compute(0.1, 0.2, 0.1), [bucket] * 15, [bucket]).bound
    'communication'
    """
    chain = math.fsum(each.seconds for each in sent)
    hidden = compute.beside + math.fsum(each.seconds for each in exposed)
    if chain > hidden:
        computing, path = compute.before + compute.after, sent
    else:
        computing, path = compute.seconds, exposed
    shares = {
        COMPUTE: computing,
        COMMUNICATION: math.fsum(each.transfer for each in path),
        LATENCY: math.fsum(each.latency for each in path),
    }
    seconds = max(math.fsum((compute.before, max(chain, hidden), compute.after)), least)
    bound = COMPUTE if seconds == least else max(shares, key=lambda name: shares[name])
    alone = compute.seconds if alone is None else alone
    return Step(seconds, alone / seconds if seconds else 1.0, bound)


def all_reduce(nbytes: int, ranks: int, node: Link, network: Link, per_node: int = PER_NODE) -> Collective:
    """Return what an all-reduce takes at least.

    Its bytes have to leave each GPU of a node, and each node; the slower of both counts. Its hops are
    those of a ring or of a tree, whichever is quicker, as NCCL counts them.

    Examples
    --------
    >>> from gpulesson_tools.planning.hardware import links
    >>> nvlink, infiniband = links.of_gpu("A100"), links.network("InfiniBand NDR")
    >>> round(all_reduce(300_000_000, 8, nvlink, infiniband).transfer * 1e3, 3)  # ms: 2 x 7/8 x 0.3 / 300
    1.75
    """
    if ranks == 1:
        return Collective(0.0, 0.0)
    inside, nodes = min(ranks, per_node), math.ceil(ranks / per_node)
    transfer = max(
        2 * (inside - 1) / inside * nbytes / node.bandwidth,
        2 * (nodes - 1) / nodes * nbytes / network.out_of_node(inside),
    )
    between = 2 * (nodes - 1)
    ring = _RING + (2 * (ranks - 1) - between) * node.ring + between * network.ring
    tree = _TREE + 2 * ((inside - 1) * node.tree + math.floor(math.log2(nodes)) * network.tree)
    return Collective(min(ring, tree), transfer)


def half(collective: Collective) -> Collective:
    """Return what a gather or a reduce-scatter takes, of which an all-reduce is made of two."""
    return Collective(collective.latency / 2, collective.transfer / 2)


def parts(alone: Floor) -> Compute:
    """Return the kernels' time of a step before its backward pass, in it, and after it."""
    phases = [each.operation.phase for each in alone.operators]
    backward = [at for at, phase in enumerate(phases) if phase == BACKWARD]
    first, last = (backward[0], backward[-1] + 1) if backward else (0, len(phases))
    seconds = [each.seconds for each in alone.operators]
    return Compute(*(math.fsum(part) for part in (seconds[:first], seconds[first:last], seconds[last:])))


def gradients(record: Record) -> list[int]:
    """Return the bytes of each gradient, in the order in which the last step's were made."""
    return [each.nbytes for each in _gradients(record)]


def _gradients(record: Record) -> list[Allocation]:
    """Return the gradients that are there when the last step ends."""
    end = record.ends[-1] if record.ends else len(record.events)
    gone = {~event for event in record.events[:end] if event < 0}
    made = [event for event in record.events[:end] if event >= 0 and event not in gone]
    return [each for each in map(record.allocations.__getitem__, made) if each.kind == GRADIENT]


def buckets(sizes: Iterable[int]) -> list[int]:
    """Return the bytes of DDP's buckets: each is closed when it is full, the first one early.

    Examples
    --------
    >>> [size // 2**20 for size in buckets([2**20, 20 * 2**20, 10 * 2**20, 3 * 2**20])]
    [1, 30, 3]
    """
    found, now, limit = [], 0, FIRST_BUCKET
    for size in sizes:
        now += size
        if now >= limit:
            found.append(now)
            now, limit = 0, BUCKET
    return [*found, now] if now else found


def blocks(record: Record) -> dict[str, int]:
    """Return the bytes of the parameters of each block, by name; "" is what no list of modules holds."""
    sizes: Counter[str] = Counter()
    for each in _gradients(record):
        sizes[_block(each.place.module)] += each.nbytes
    return dict(sizes)


def _block(module: str) -> str:
    """Return the name up to its first number: layer1.0.conv2 is in layer1.0."""
    words = module.split(".")
    return next((".".join(words[: at + 1]) for at, word in enumerate(words) if word.isdigit()), "")


def spread_out(record: Record, ranks: int, strategy: str) -> Record:
    """Return the record of one of several ranks, with the same batch.

    DDP adds its buckets, which are as large as all gradients together, unless it is asked
    ``gradient_as_bucket_view=True``. Fully sharded, parameters, gradients and the optimizer's state are
    divided by the number of ranks. The largest block's gradients are whole in any case, and so are the
    parameters of two blocks of its size: one in use, one on its way.

    Examples
    --------
    >>> weight = Allocation(8000, 0, FORWARD, "empty", Place(), kind=PARAMETER)
    >>> moment = Allocation(8000, 0, OPTIMIZER, "zeros_like", Place(), kind=STATE)
    >>> record = Record([weight, moment], [0, 1])
    >>> [[each.nbytes for each in spread_out(record, 4, name).allocations] for name in (DDP, SHARDED)]
    [[8000, 8000], [2000, 2000]]
    """
    if ranks == 1:
        return record
    if strategy == DDP:
        return _with(record, buckets(gradients(record)))
    sizes = [
        math.ceil(each.nbytes / ranks) if _is_divided(each) else each.nbytes for each in record.allocations
    ]
    largest = max(blocks(record).values(), default=0)
    return _with(record.with_sizes(sizes), [largest] * 3 if largest else [])


def _is_divided(allocation: Allocation) -> bool:
    """Return whether each rank has a part of it; what the optimizer computes is as its state."""
    return allocation.kind in (PARAMETER, GRADIENT, STATE) or allocation.phase == OPTIMIZER


def _with(record: Record, sizes: list[int]) -> Record:
    """Return the record with allocations that are there from its beginning to its end."""
    first, shift = len(record.allocations), len(sizes)
    more = [Allocation(size, 0, FORWARD, "", Place(), kind=OTHER, born=at) for at, size in enumerate(sizes)]
    moved = [
        replace(each, born=each.born + shift, died=each.died + shift if each.died >= 0 else -1)
        for each in record.allocations
    ]
    events = [*range(first, first + shift), *record.events]
    return replace(
        record, allocations=[*moved, *more], events=events, ends=[end + shift for end in record.ends]
    )
