"""Exercise 14: a training that two GPUs share.

The program runs in two processes. What is judged is what the check has seen in both: the rows of each step,
the weights before the first step and at the end, what was printed where, what was saved. The same steps are
then taken in one process, with the rows of both: that gives the weights and the losses to compare with.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from gpulesson.exercises.exercise import Exercise
from gpulesson.exercises.findings import Diagnosis, Finding, Source, plural
from gpulesson.exercises.rules import causes, definitions, source_text
from gpulesson.exercises.trace import ErrorSeen, Printed, SaveSeen, Site, Trace

if TYPE_CHECKING:
    from gpulesson.exercises.watch.observer import Observer

NOT_TRAINED = Diagnosis(
    "not-trained",
    "The check looks at the steps that each of the two processes takes. Without any there is nothing to see.",
    "Begin with the starter: python -m gpulesson start 14.",
)
NO_GROUP = Diagnosis(
    "no-process-group",
    "Two processes know nothing of one another until they join a process group. Until then each trains a "
    "model of its own.",
    'Before the model is made: dist.init_process_group("nccl"), with import torch.distributed as dist.',
)
SAME_GPU = Diagnosis(
    "same-gpu",
    "“cuda” is GPU 0 in every process, until the process chooses another one. NCCL refuses two processes on "
    "one GPU, and together they would be no faster than one.",
    'First of all: torch.cuda.set_device(int(os.environ["LOCAL_RANK"])). Then “cuda” is this process\'s GPU.',
)
LEFT_THE_GPU = Diagnosis(
    "left-the-gpu",
    "The task is to train on two GPUs.",
    'Call torch.cuda.set_device(local_rank). Then move model and batches to that GPU: .to("cuda").',
)
ON_THE_CPU = Diagnosis(
    "sent-from-the-cpu",
    "NCCL sends what is on the GPUs, and nothing else.",
    'Make the tensor on this process\'s GPU: torch.zeros((), device="cuda").',
)
NOT_ALL_CALL = Diagnosis(
    "not-all-ranks-call",
    "A collective such as all_reduce or barrier needs every process of the group. If one does not call it, "
    "the others wait for ever; NCCL ends them after its timeout.",
    "Let every process call it, outside of the if. Only what follows, such as print, belongs to one process.",
)
NOT_SPLIT = Diagnosis(
    "rows-not-split",
    "Two GPUs that do the same work are no faster than one. Each process has to take the rows that the other "
    "one does not take.",
    "Give the DataLoader a DistributedSampler: DataLoader(data, batch_size=16, "
    "sampler=DistributedSampler(data)).",
)
PARTS_OVERLAP = Diagnosis(
    "parts-overlap",
    "The processes have to draw one and the same order, and to take different parts of it. If each draws its "
    "own order, some rows come twice in an epoch and others never.",
    "Draw the order with the same seed in every process, as DistributedSampler does.",
)
OTHER_ROWS = Diagnosis(
    "other-rows",
    "The weights can be compared only if both processes learn from the starter's 320 rows, in 5 epochs.",
    "Put data, ROWS and EPOCHS back as they are in the starter. Only who takes which rows may change.",
)
NOT_AVERAGED = Diagnosis(
    "gradients-not-averaged",
    "Each process steps with the gradient of its own rows, and the two models drift apart. "
    "DistributedDataParallel averages the gradients during backward(), of what went through the wrapped "
    "model.",
    "Wrap the model, and call the wrapped one: model = DistributedDataParallel(model, "
    "device_ids=[local_rank]).",
)
BATCH_NOT_DIVIDED = Diagnosis(
    "batch-not-divided",
    "batch_size counts the rows of one process. With two processes each update comes from twice as many "
    "rows, so there are half as many updates, and the model learns something else.",
    "Divide it: batch_size=BATCH // dist.get_world_size().",
)
SAME_ORDER = Diagnosis(
    "same-order",
    "DistributedSampler draws its order from seed and epoch, and knows the epoch only if it is told. "
    "Otherwise the same rows share a batch in every epoch.",
    "At the beginning of each epoch: sampler.set_epoch(epoch).",
)
RATE_CHANGED = Diagnosis(
    "rate-changed",
    "Each update comes from 32 rows, as before. So the learning rate stays as it was.",
    "Put it back: lr=0.5.",
)
OTHER_WEIGHTS = Diagnosis(
    "other-weights",
    "From the same first weights and the same batches, two processes have to learn what one learns, but for "
    "rounding.",
    "Compare model, loss function and optimizer with the starter's. If you average gradients yourself: add "
    "them up, and divide by the number of processes.",
)
NO_LOSS = Diagnosis(
    "no-loss-printed",
    "The check looks for the loss of each epoch, with four decimals, as the starter prints it.",
    'In one process: print(f"epoch {epoch + 1}: loss {total.item() / ROWS:.4f}").',
)
EVERY_RANK_PRINTS = Diagnosis(
    "every-rank-prints",
    "With 64 processes each line would stand there 64 times.",
    "Print in one process: if dist.get_rank() == 0, before the print.",
)
LOSS_OF_ONE_PART = Diagnosis(
    "loss-of-one-part",
    "Each process knows the losses of its own rows only.",
    "Add them up over all processes, in all of them, before one prints: dist.all_reduce(total).",
)
OTHER_LOSS = Diagnosis(
    "other-loss",
    "The loss of an epoch is the sum of the losses of all rows, divided by their number.",
    "Add up loss.detach() * len(features) in each process, then dist.all_reduce(total), then divide by ROWS.",
)
NOT_SAVED = Diagnosis(
    "not-saved",
    "Weights that are in no file are lost when the processes end.",
    'In one process: torch.save(model.module.state_dict(), "weights.pt").',
)
EVERY_RANK_SAVES = Diagnosis(
    "every-rank-saves",
    "Processes that write to one file at the same time can spoil it. And they all have the same weights.",
    "Save in one process: if dist.get_rank() == 0, before torch.save.",
)
MODULE_NAMES = Diagnosis(
    "names-of-the-wrapper",
    "DistributedDataParallel keeps your model in its attribute module. So the names of its weights begin "
    "with “module.”, and the plain model does not know them.",
    "Save the model inside: model.module.state_dict().",
)
SAVED_OTHERWISE = Diagnosis(
    "saved-otherwise",
    "What is saved has to be what the plain model loads: the state_dict() of the trained model.",
    'After the last epoch: torch.save(model.module.state_dict(), "weights.pt").',
)

_EPOCHS, _ROWS, _BATCH, _RATE = 5, 320, 32, 0.5
_FILE = "weights.pt"
_NEAR = 1e-5
"""Of weights that should be equal: rounding makes about a hundredth of it."""
_LOADER = r"\bDataLoader\(|Sampler\(|randperm|\.chunk\(|\[.*::.*\]"
_ON_A_GPU = r"""set_device\(0|["']cuda(:0)?["']|\.cuda\(\)"""
_COLLECTIVES = (
    r"(all_)?(reduce|gather)(_\w+)?|reduce_scatter\w*|broadcast\w*|barrier|scatter\w*|all_to_all\w*"
)


def shared(trace: Trace, source: Source) -> Iterator[Finding]:
    """Say how the two processes of exercise 14 do not do one process's work."""
    if trace.error is not None:
        yield from _of_the_group(trace.error, source)
        return
    ranks = [each.facts for each in trace.ranks]
    if not ranks or not all("steps" in facts for facts in ranks):
        what = "At least one of the two processes took no step of an optimizer."
        yield source.failure(NOT_TRAINED, 0, what)
        return
    if not any(facts["grouped"] for facts in ranks):
        what = "The check ran the file in two processes, and neither joined a process group."
        yield source.failure(NO_GROUP, 0, what)
        return
    fault = _fault(ranks)
    alone = None if fault else _alone(ranks)
    if alone is not None and alone.difference > _NEAR:
        what = f"The largest difference of a weight from those of one process is {alone.difference:.1e}."
        fault = OTHER_WEIGHTS, r"\.backward\(", what
    if fault is not None:
        diagnosis, pattern, what = fault
        site = _not_wrapped(trace, source) if diagnosis is NOT_AVERAGED else None
        yield source.failure(diagnosis, site or definitions.first_match(source.lines, pattern), what)
    yield from _printed(trace.ranks, None if fault else alone, source)
    yield from _saved(trace.ranks, source)


# -- errors


def _of_the_group(seen: ErrorSeen, source: Source) -> Iterator[Finding]:
    """Say what an error means that comes of there being two processes."""
    said = seen.message
    if re.search("using the same GPU|Duplicate GPU", said):
        what = "Both processes are on GPU 0. NCCL says: " + said.strip().splitlines()[-1]
        yield source.failure(SAME_GPU, definitions.first_match(source.lines, _ON_A_GPU) or seen.site, what)
    elif re.search("All ranks have to call the same collectives", said):
        what = "The practice GPU says: " + said.partition(". ")[0] + "."
        yield source.failure(NOT_ALL_CALL, _of_one_rank(source) or seen.site, what)
    elif re.search("Connection (closed|reset) by peer|Broken pipe", said):
        what = "One process waited here for the other one, which had come to its end."
        yield source.failure(NOT_ALL_CALL, _of_one_rank(source) or seen.site, what)
    elif re.search("process group has not been initialized", said):
        what = "This line needs a process group, and there is none yet."
        yield source.failure(NO_GROUP, seen.site, what)
    elif re.search("No backend type associated with device type cpu|must be CUDA and dense", said):
        what = "This line sends a tensor that is on the CPU."
        yield source.failure(ON_THE_CPU, seen.site, what)


def _of_one_rank(source: Source) -> int:
    """Return the line of a collective that stands in an ``if`` about the rank; 0 if none does."""
    for node in source_text.all_nodes(source.lines):
        if isinstance(node, ast.If) and re.search(r"(?i)rank|is_main|master", ast.unparse(node.test)):
            for inner in (part for line in node.body for part in ast.walk(line)):
                if isinstance(inner, ast.Call) and re.fullmatch(_COLLECTIVES, source_text.called(inner)):
                    return inner.lineno
    return 0


# -- training


def _fault(ranks: Sequence[dict[str, Any]]) -> tuple[Diagnosis, str, str] | None:
    """Return what is wrong with the training, a pattern of its line, and what was seen; or None."""
    devices = [facts["device"] for facts in ranks]
    if any(not device.startswith("cuda") for device in devices):
        return LEFT_THE_GPU, r"""["']cpu["']|\.to\(""", f"The two models are on {' and '.join(devices)}."
    if len(set(devices)) < len(devices):
        return SAME_GPU, _ON_A_GPU, f"Both models are on {devices[0]}."
    if fault := _of_the_rows([[row for step in facts["steps"] for row in step] for facts in ranks]):
        return fault
    first, last = (_distance(*(facts[name] for facts in ranks)) for name in ("first", "weights"))
    if max(first, last) > _NEAR:
        when = "before the first step" if first > _NEAR else "at the end"
        what = f"The largest difference between a weight of the two models is {max(first, last):.1e} {when}."
        return NOT_AVERAGED, "", what
    steps = [facts["steps"] for facts in ranks]
    sizes = Counter(sum(map(len, parts)) for parts in zip_longest(*steps, fillvalue=()))
    if set(sizes) != {_BATCH}:
        ((size, _),) = sizes.most_common(1)
        what = f"{plural(max(map(len, steps)), 'update')}, most from {plural(size, 'row')}; "
        what += f"expected {_EPOCHS * _ROWS // _BATCH}, each from {_BATCH}."
        return BATCH_NOT_DIVIDED, r"\bbatch_size\b|\bDataLoader\(", what
    rate = ranks[0]["rate"]
    if abs(rate - _RATE) > 1e-9:
        return RATE_CHANGED, r"\blr\b|optim\.", f"The learning rate is {rate:g}; expected {_RATE:g}."
    return None


def _not_wrapped(trace: Trace, source: Source) -> Site | None:
    """Return the line that makes the model; or that calls it, where another model is the wrapped one."""
    wraps = definitions.first_match(source.lines, r"\b(DDP|DistributedDataParallel)\(")
    made = next((model.made for model in trace.models if model.stepped), None)
    called = next((call.site for call in trace.calls if call.trained), None)
    return called if wraps else made


def _of_the_rows(orders: Sequence[list[int]]) -> tuple[Diagnosis, str, str] | None:
    """Say what is wrong with the rows that the processes took, in their order."""
    strange = sum(row < 0 for order in orders for row in order)
    if strange:
        what = f"Rows of the batches that are not in the starter's data: {strange:,}."
        return OTHER_ROWS, _LOADER, what
    share = _ROWS // len(orders)
    if all(len(order) == _EPOCHS * _ROWS for order in orders):
        return NOT_SPLIT, _LOADER, f"Each of the two processes took all {_ROWS} rows in every epoch."
    if any(len(order) != _EPOCHS * share for order in orders):
        taken = " and ".join(f"{len(order):,}" for order in orders)
        what = f"The processes took {taken} rows; expected {_EPOCHS * share:,} each, {share} in an epoch."
        return OTHER_ROWS, _LOADER, what
    epochs = [_in_epochs(order) for order in orders]
    together = [{row for part in parts for row in part} for parts in zip(*epochs, strict=True)]
    if any(len(rows) < _ROWS for rows in together):
        missed = _ROWS - min(map(len, together))
        what = f"In one epoch {plural(missed, 'row')} came to no process, and others came twice."
        return PARTS_OVERLAP, _LOADER, what
    if all(parts[0] == parts[1] for parts in epochs):
        what = "In every epoch the rows came in the same order."
        return SAME_ORDER, r"^\s*for +epoch\b|^\s*for\b", what
    return None


def _in_epochs(order: list[int]) -> list[list[int]]:
    length = len(order) // _EPOCHS
    return [order[start : start + length] for start in range(0, length * _EPOCHS, length)]


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    if len(one) != len(other):
        return float("inf")
    apart = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return max(apart, default=0.0) if all(map(math.isfinite, apart)) else float("inf")


class _Alone(NamedTuple):
    """What one process makes of the same steps."""

    difference: float
    """The largest between one of its weights and rank 0's."""
    losses: list[float]
    """Of each epoch: the mean over all rows."""
    parts: list[list[float]]
    """Of each rank: the means over its own rows."""


def _alone(ranks: Sequence[dict[str, Any]]) -> _Alone:
    """Take the steps of all ranks in one process."""
    import torch

    inputs, labels = data()
    model = model_of(ranks[0]["first"])
    if model is None:
        return _Alone(float("inf"), [], [])
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    told: list[list[list[float]]] = []
    for parts in zip(*(facts["steps"] for facts in ranks), strict=True):
        rows = [row for part in parts for row in part]
        each = torch.nn.functional.cross_entropy(model(inputs[rows]), labels[rows], reduction="none")
        optimizer.zero_grad()
        each.mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        left = iter(each.tolist())
        told.append([list(islice(left, len(part))) for part in parts])
    found = torch.nn.utils.parameters_to_vector(model.parameters()).tolist()
    length = len(told) // _EPOCHS
    epochs = [told[start : start + length] for start in range(0, len(told), length)]
    losses = [_mean([part for step in epoch for part in step]) for epoch in epochs]
    own = [[_mean([step[rank] for step in epoch]) for epoch in epochs] for rank in range(len(ranks))]
    return _Alone(_distance(found, ranks[0]["weights"]), losses, own)


def _mean(parts: Sequence[Sequence[float]]) -> float:
    return sum(map(sum, parts)) / sum(map(len, parts))


def data() -> tuple[Any, Any]:
    """Return the starter's rows, ``[320, 8]`` float32, and their labels, ``[320]`` int64."""
    import torch

    draw = torch.Generator().manual_seed(14)
    inputs = torch.randn(_ROWS, 8, generator=draw)
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()


def model_of(weights: Sequence[float]) -> Any:
    """Return the starter's model with these weights; None if they are not so many."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    if sum(parameter.numel() for parameter in model.parameters()) != len(weights):
        return None
    nn.utils.vector_to_parameters(torch.tensor(weights), model.parameters())
    return model


# -- output


def _printed(ranks: Sequence[Trace], alone: _Alone | None, source: Source) -> Iterator[Finding]:
    """Say who printed which losses: `alone` says what they should be, where the training is right."""
    told = [[line for line in trace.prints if _numbers(line)] for trace in ranks]
    if not any(told):
        yield source.failure(NO_LOSS, 0, "Neither process printed a number with at least three decimals.")
        return
    both = {line.site for line in told[0]} & {line.site for line in told[1]}
    if both:
        count = sum(line.site in both for lines in told for line in lines)
        what = f"Both processes printed: {plural(count, 'line')} in all."
        yield source.failure(EVERY_RANK_PRINTS, min(both), what)
    if alone is None:
        return
    if not any(_tells(lines, alone.losses) for lines in told):
        yield _other_loss(told, alone, source)


def _numbers(line: Printed) -> list[str]:
    return re.findall(r"\d+\.\d{3,}", line.text)


def _tells(lines: Sequence[Printed], losses: Sequence[float]) -> bool:
    """Tell whether all these losses are among the numbers that were printed, one after another."""
    left = iter(lines)
    return all(any(_has(line, loss) for line in left) for loss in losses)


def _has(line: Printed, loss: float) -> bool:
    return any(
        abs(float(text) - loss) <= 0.51 * 10.0 ** -len(text.partition(".")[2]) + 1e-5
        for text in _numbers(line)
    )


def _other_loss(told: Sequence[Sequence[Printed]], alone: _Alone, source: Source) -> Finding:
    rank = next(rank for rank, lines in enumerate(told) if lines)
    for share in (1.0, 1 / len(told)):  # divided by the number of its own rows, or of all
        some = [share * loss for loss in alone.parts[rank]]
        if _tells(told[rank], some):
            line = next(line for line in told[rank] if _has(line, some[0]))
            what = (
                f"Rank {rank} printed {some[0]:.4f}, from its own rows. The mean over all rows is "
                f"{alone.losses[0]:.4f} in the first epoch."
            )
            return source.failure(LOSS_OF_ONE_PART, line.site, what)
    line = told[rank][0]
    mean = f"{alone.losses[0]:.4f} in the first epoch"
    what = f"Rank {rank} printed {_numbers(line)[-1]}. The mean over all rows is {mean}."
    return source.failure(OTHER_LOSS, line.site, what)


def _saved(ranks: Sequence[Trace], source: Source) -> Iterator[Finding]:
    """Say who saved the weights, and whether the plain model can load them."""
    saves: list[list[SaveSeen]] = [[save for save in trace.saves if save.has_model] for trace in ranks]
    if not any(saves):
        yield source.failure(NOT_SAVED, 0, "Neither process saved weights with torch.save.")
        return
    if all(saves):
        yield source.failure(EVERY_RANK_SAVES, saves[0][-1].site, "Both processes saved the weights.")
    rank = next(rank for rank, some in enumerate(saves) if some)
    site, found = saves[rank][-1].site, ranks[rank].facts.get("saved")
    if not found:
        yield source.failure(SAVED_OTHERWISE, site, f"In {_FILE} the check found no weights of the model.")
    elif found["wrapped"]:
        yield source.failure(MODULE_NAMES, site, f"The file has {found['wrapped']}.")
    elif not found["fits"]:
        yield source.failure(
            SAVED_OTHERWISE, site, f"The plain model cannot load {_FILE}: {found['message']}"
        )
    elif found["difference"] > _NEAR:
        what = f"The weights in {_FILE} are not those at the end: {found['difference']:.1e} apart."
        yield source.failure(SAVED_OTHERWISE, site, what)


# -- in each process


def probe(trace: Trace, observer: Observer, space: dict[str, Any]) -> None:
    """Note what this process has trained, on which rows, and what it has saved."""
    from gpulesson.exercises.watch.rows import Part
    from gpulesson.exercises.watch.training import parameters_of

    training = observer.training
    taken = [(optimizer, seen) for optimizer, seen in training.groups if seen.steps]
    if not taken:
        return
    optimizer, seen = max(taken, key=lambda pair: pair[1].steps)
    parameters = parameters_of(optimizer)
    with observer.reader.unnoticed():
        part = Part.of(*data())
        steps: dict[int, list[int]] = {}
        for call in training.models.calls:
            if call.seen.trained and call.marks is not None:
                steps.setdefault(call.step, []).extend(part.find(call.marks).tolist())
        weights = _flat([observer.reader.on_host(tensor) for tensor in parameters])
        first = _flat(training.first_weights(seen))
    trace.facts |= {
        "device": str(parameters[0].device),
        "grouped": observer.groups.joined_at is not None,
        "steps": [rows for _, rows in sorted(steps.items())],
        "first": first,
        "weights": weights,
        "rate": seen.rate,
        "saved": _in_the_file(weights) if any(save.has_model for save in trace.saves) else None,
    }


def _flat(tensors: Sequence[Any]) -> list[float]:
    return [number for tensor in tensors for number in tensor.flatten().tolist()]


def _in_the_file(weights: list[float]) -> dict[str, Any] | None:
    """Say what the file has that the program has written; None if that is no dictionary of tensors."""
    import torch

    try:
        state = torch.load(_FILE, map_location="cpu", weights_only=True)
    except Exception:
        return None
    if not isinstance(state, dict) or not state:
        return None
    wrapped = next((name for name in state if str(name).startswith("module.")), "")
    found = {"wrapped": wrapped, "fits": True, "message": "", "difference": float("inf")}
    model = model_of(weights)
    try:
        model.load_state_dict(state)
    except (AttributeError, RuntimeError, TypeError) as error:
        return found | {"fits": False, "message": " ".join(str(error).split())[:200]}
    return found | {"difference": _distance(_flat([each.detach() for each in model.parameters()]), weights)}


EXERCISE = Exercise(
    name="14_two_gpus",
    lesson="Many GPUs",
    title="One training, two GPUs",
    demand="two processes learn, print and save what one does",
    difficulty="hard",
    hint_for={
        "rows-not-split": 2,
        "batch-not-divided": 2,
        "same-order": 2,
        "parts-overlap": 2,
        "loss-of-one-part": 3,
        "not-all-ranks-call": 3,
        "every-rank-prints": 3,
        "every-rank-saves": 3,
        "names-of-the-wrapper": 3,
    },
    hints=(
        'torch.cuda.set_device(local_rank), then dist.init_process_group("nccl"), then '
        "DistributedDataParallel(model, device_ids=[local_rank]).",
        "DistributedSampler(data) shuffles and shares the rows; DataLoader takes it as sampler, with half of "
        "the batch, and it wants to know the epoch.",
        "Every process calls dist.all_reduce(total). Rank 0 alone prints, and saves "
        "model.module.state_dict().",
    ),
    rules=(causes.own_work, shared),
    probe=probe,
    processes=2,
    starts_empty=True,
)
