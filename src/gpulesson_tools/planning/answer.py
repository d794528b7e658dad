"""The answer to a plan: in words, as numbers for other programs, as a picture."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpulesson_tools.planning.hardware.gpus import Gpu
from gpulesson_tools.planning.hardware.links import Link
from gpulesson_tools.planning.memory.fitting import CONTEXT, MARGIN, Replay, Verdict
from gpulesson_tools.planning.memory.peak import Peak
from gpulesson_tools.planning.recording.record import OPTIMIZER, Record, Waits
from gpulesson_tools.planning.speed.floor import LAUNCHES, Floor, rounded_down
from gpulesson_tools.planning.speed.several_gpus import CONDITIONS, PER_NODE, OnRanks
from practice_gpu.device.allocator import rounded
from practice_gpu.sizes import format_size

WIDTH = 86
_LINES = 5


@dataclass(frozen=True)
class OnGpu:
    """A plan for one GPU.

    Attributes
    ----------
    gpu : Gpu
    verdict : Verdict
        Whether it fits.
    floor : Floor or None
        The least time of the last step; None if no step was recorded.
    largest_batch : int or None
        None if it is not known; `Plan.notes` says why.
    several : tuple of OnRanks
        One for each number of ranks that was asked for, and each way to spread the model over them.
    node, network : Link or None
        What joins the GPUs of a node, and what joins nodes.
    """

    gpu: Gpu
    verdict: Verdict
    floor: Floor | None
    largest_batch: int | None
    several: tuple[OnRanks, ...] = ()
    node: Link | None = None
    network: Link | None = None


@dataclass(frozen=True)
class Plan:
    """What a program needs, and what it can reach. As text it is a report.

    Attributes
    ----------
    program : str
        The program, as it was given.
    record : Record
        What was recorded, or worked out from the records of two small batches.
    peak : Peak
        The moment at which it holds most memory, and what it holds then.
    replay, expandable : Replay
        What PyTorch's allocator makes of it on a GPU with memory enough: with its default settings, and with
        ``expandable_segments:True``.
    gpus : tuple of OnGpu
        One for each GPU that was asked for.
    notes : tuple of str
        What a reader should know besides, a sentence each.
    """

    program: str
    record: Record
    peak: Peak
    replay: Replay
    expandable: Replay
    gpus: tuple[OnGpu, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        batch = f", batch {self.record.batch_size:,}" if self.record.batch_size else ""
        head = f"Plan of {self.program}: {_count(self.record.steps, 'step')} on the practice GPU{batch}"
        parts = [head, *_gpus(self), *_ranks(self), *_memory(self), *_waits(self.record), *_remarks(self)]
        return "\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as numbers and texts, for other programs; sizes in bytes, times in seconds."""
        peak = self.peak
        return {
            "program": self.program,
            "steps": self.record.steps,
            "batch_size": self.record.batch_size,
            "peak": {
                "allocated": self.replay.peak_allocated,
                "reserved": self.replay.peak_reserved,
                "reserved_expandable_segments": self.expandable.peak_reserved,
                "moment": _moment(self),
                "by_kind": peak.by_kind,
                "by_module": peak.by_module,
                "by_line": peak.by_line,
            },
            "gpus": [_gpu_as_json(each) for each in self.gpus],
            "waits": [
                {"call": each.call, "line": f"{each.filename}:{each.line}", "count": each.count}
                for each in _last_waits(self.record)
            ],
            "notes": list(self.notes),
        }

    def plot(self, ax: Any = None) -> Any:
        """Draw the memory over the last step, by kind.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        matplotlib.axes.Axes
        """
        from gpulesson_tools.planning.memory.picture import draw

        return draw(self.record, ax)


def _memory(plan: Plan) -> Iterator[str]:
    unit = _unit(plan.peak.nbytes)
    workspaces = f", with cuBLAS's workspaces on {plan.gpus[0].gpu.name}" if plan.gpus else ""
    yield f"\nMost memory is held {_moment(plan)}:"
    rows = [(kind, nbytes) for kind, nbytes in plan.peak.by_kind.items() if nbytes]
    rows += [
        (f"allocated{workspaces}", plan.replay.peak_allocated),
        ("reserved by PyTorch's allocator", plan.replay.peak_reserved),
        ("reserved with expandable_segments:True", plan.expandable.peak_reserved),
    ]
    yield from _table([(name, _size(nbytes, unit)) for name, nbytes in rows])
    yield "Most of it was made at:"
    yield from _table([(place, _size(nbytes, unit)) for place, nbytes in _places(plan.peak)])


def _moment(plan: Plan) -> str:
    if plan.peak.position < 0:
        return "at no time"
    last = plan.record.allocations[plan.record.events[plan.peak.position]]
    phase = {OPTIMIZER: "in the optimizer's step"}.get(last.phase, f"in {last.phase}")
    place = _at(last.place.filename, last.place.line)
    return f"in step {last.step + 1}, {phase}, by the operator {last.operator}{place}"


def _places(peak: Peak) -> list[tuple[str, int]]:
    sums: Counter[str] = Counter()
    for each in peak.alive:
        line = f"{Path(each.place.filename).name}:{each.place.line}" if each.place.filename else "(no line)"
        module = f', module "{each.place.module}"' if each.place.module else ""
        sums[f"{line}, {each.kind}{module}"] += rounded(each.nbytes)
    return sums.most_common(_LINES)


def _unit(largest: int) -> tuple[str, int]:
    if largest < 2**20:
        return "KiB", 2**10
    return ("GiB", 2**30) if largest >= 10 * 2**30 else ("MiB", 2**20)


def _size(nbytes: int, unit: tuple[str, int]) -> str:
    return f"{nbytes / unit[1]:,.2f} {unit[0]}" if nbytes >= unit[1] / 100 else format_size(nbytes)


def _gpus(plan: Plan) -> Iterator[str]:
    if not plan.gpus:
        return
    batch = f"batch of {plan.record.batch_size:,}" if plan.record.batch_size else "this program"
    yield ""
    rows: list[tuple[str, ...]] = [
        ("GPU", "memory", batch, "largest batch", "a step takes at least", "bound by")
    ]
    rows += [_row(each) for each in plan.gpus]
    yield from _columns(rows)
    context = CONTEXT.name, format_size(CONTEXT.least), format_size(CONTEXT.most)
    yield from _wrapped(
        f"Beside the tensors a GPU holds the {context[0]}, of {context[1]} to {context[2]} in published "
        f"reports. fits: in {MARGIN:.0%} of what the largest context leaves; close: in all "
        "that the smallest leaves. "
        "The largest batch is the largest that fits. What cuDNN takes for a convolution while it runs is not "
        "known."
    )
    if any(each.floor and each.floor.bound == LAUNCHES for each in plan.gpus):
        yield from _wrapped(
            "Bound by launches: the CPU will be the limit, and not the GPU. PyTorch takes many times as long "
            "for an operator as its launch alone does, so expect a step of many times this bound."
        )


def _row(on: OnGpu) -> tuple[str, ...]:
    largest = "not known" if on.largest_batch is None else f"{on.largest_batch:,}"
    floor = on.floor
    time = ("", "") if floor is None else (rounded_down(floor.seconds), floor.bound)
    return on.gpu.name, f"{on.gpu.memory / 2**30:.1f} GiB", on.verdict.answer, largest, *time


def _ranks(plan: Plan) -> Iterator[str]:
    for on in plan.gpus:
        if not on.several:
            continue
        batch = f", each with a batch of {plan.record.batch_size:,}" if plan.record.batch_size else ""
        inside = on.node.name if on.node else "a link that is not known"
        between = on.network.name if on.network else "a network that is not known"
        yield ""
        yield from _wrapped(
            f"Several {on.gpu.name}{batch}: {inside} in nodes of {PER_NODE}, {between} between nodes."
        )
        unit = _unit(max(each.replay.peak_reserved for each in on.several))
        heads = ("GPUs", "model", "memory of each", "", "least time", "efficiency at most", "bound by")
        yield from _columns([heads, *(_on_ranks(each, unit) for each in on.several)])


def _on_ranks(each: OnRanks, unit: tuple[str, int]) -> tuple[str, ...]:
    memory = _size(each.replay.peak_reserved, unit), each.verdict.answer
    if each.step is None:
        return f"{each.ranks:,}", each.strategy, *memory, "not known", "", ""
    time, efficiency = rounded_down(each.step.seconds), f"{math.ceil(100 * each.step.efficiency - 1e-6)} %"
    return f"{each.ranks:,}", each.strategy, *memory, time, efficiency, each.step.bound


def _columns(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


def _waits(record: Record) -> Iterator[str]:
    waits = _last_waits(record)
    if waits:
        total = sum(each.count for each in waits)
        yield f"\nIn the last step the host waits for the GPU {_count(total, 'time')}:"
        yield from _table([(each.call + _at(each.filename, each.line), f"{each.count:,}") for each in waits])


def _remarks(plan: Plan) -> Iterator[str]:
    conditions = dict.fromkeys(each for on in plan.gpus if on.floor for each in on.floor.conditions)
    if any(each.step for on in plan.gpus for each in on.several):
        conditions |= dict.fromkeys(CONDITIONS)
    if conditions:
        yield "\nThe times are bounds, not promises: a step takes longer. They hold if:"
    for condition in conditions:
        yield from _wrapped(condition, "- ")
    if plan.notes:
        yield ""
    for note in plan.notes:
        yield from _wrapped(note)


def _at(filename: str, line: int) -> str:
    return f", {Path(filename).name}:{line}" if filename else ""


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _table(rows: list[tuple[str, str]]) -> Iterator[str]:
    width = max((len(name) for name, _ in rows), default=0)
    figures = max((len(figure) for _, figure in rows), default=0)
    for name, figure in rows:
        yield f"  {name:<{width}}  {figure:>{figures}}"


def _wrapped(text: str, mark: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark))


def _gpu_as_json(on: OnGpu) -> dict[str, Any]:
    floor, verdict = on.floor, on.verdict
    answer: dict[str, Any] = {
        "name": on.gpu.name,
        "memory": on.gpu.memory,
        "answer": verdict.answer,
        "largest_batch": on.largest_batch,
        "left_for_tensors": [verdict.least_left, verdict.most_left],
        "unknown": [asdict(each) for each in verdict.unknown],
        "source": on.gpu.source,
    }
    if floor is not None:
        answer["least_time"] = {
            "seconds": floor.seconds,
            "bound": floor.bound,
            "arithmetic": floor.arithmetic,
            "memory_traffic": floor.traffic,
            "launches": floor.launches,
            "conditions": list(floor.conditions),
        }
    if on.several:
        answer["links"] = [link.name if link else None for link in (on.node, on.network)]
        answer["ranks"] = [_ranks_as_json(each) for each in on.several]
    return answer


def _ranks_as_json(each: OnRanks) -> dict[str, Any]:
    return {
        "ranks": each.ranks,
        "model": each.strategy,
        "answer": each.verdict.answer,
        "allocated": each.replay.peak_allocated,
        "reserved": each.replay.peak_reserved,
        "least_time": asdict(each.step) if each.step else None,
    }


def _last_waits(record: Record) -> list[Waits]:
    return [each for each in record.waits if each.step == record.steps - 1]
