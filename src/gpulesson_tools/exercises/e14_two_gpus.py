"""Exercise 14: the rows that each process takes, and what each of two processes does to train one model."""

import copy
import os
import re
import tempfile
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch._dynamo  # here, or the optimizers import it in each process
import torch.distributed as dist
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gpulesson_tools.exercises.contract import Task, exception, kind_of, number_of, same
from gpulesson_tools.exercises.runner import MEMORY, bounded, in_processes
from gpulesson_tools.exercises.training import train_step
from gpulesson_tools.exercises.words import COMMON, ELSE
from practice_gpu import practice_gpu

ROWS, EPOCHS = 64, 2
WAITS = "closed by peer|reset by peer|Broken pipe|same collectives|[Tt]imed? ?out"
GRADIENTS = ("of all rows", 1), ("divided once more", 0.5), ("added up", 2)
RIGHT = {"gloo": False, "devices": ["cuda:0", "cuda:1"], "epochs": EPOCHS, "rows": "to one", "order": "new"}
RIGHT |= {"sizes": "16", "gradients": "of all rows", "fresh": True, "returns": ["", ""]}
RIGHT |= {"losses": ["of all rows"] * 2, "batches": "all", "saved by": 1, "file": "the weights"}


def my_batches(rows, batch_size, epoch, rank, world_size, *, share="one", order="new", size="part"):
    draw = torch.Generator().manual_seed(epoch if order == "new" else 0)
    numbers = torch.randperm(rows, generator=None if order == "its own" else draw)
    mine = numbers if share == "all" else numbers[0 if share == "first" else rank :: world_size]
    return mine.split(batch_size if size == "whole" else batch_size // world_size)


def of_the_rows(parts):
    """Return facts of the rows, given the batches of each process in each epoch."""
    taken = [[[row for batch in epoch for row in batch] for epoch in part] for part in parts]
    epochs = [Counter(row for rows in each for row in rows) for each in zip(*taken, strict=True)]
    times = {epoch[row] for epoch in epochs for row in range(ROWS)}
    names = {(1,): "to one", (len(parts),): "to each process", (0, len(parts)): "to each process, or to none"}
    facts = {"rows": names.get(tuple(sorted(times)), "to several processes, or to none")}
    facts["order"] = "the same" if taken[0][0] == taken[0][1] else "new"
    if facts["rows"] != "to each process":
        sizes = {len(batch) for part in parts for epoch in part for batch in epoch}
        facts["sizes"] = " or ".join(map(str, sorted(sizes)))
    return facts


def observe_my_batches(function, facts):
    def batches(rank, epoch):
        torch.manual_seed(10 * rank + epoch)
        return [torch.as_tensor(each).flatten().tolist() for each in function(ROWS, 32, epoch, rank, 4)]

    facts |= of_the_rows([[batches(rank, epoch) for epoch in range(EPOCHS)] for rank in range(4)])


def run(
    model, inputs, targets, epochs, file,
    *, device="its own", group="yes", gradients="mean", zero="before", loss="mean",
    batches="all", saves="one", names="plain",
):  # fmt: skip
    place = torch.device("cuda", 0 if device == "first" else int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(place)
    model.to(place)
    if group == "yes":
        dist.init_process_group("nccl")
    rank, world_size, means = dist.get_rank(), dist.get_world_size(), []
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer, times = torch.optim.SGD(model.parameters(), lr=0.1), world_size if gradients == "sum" else 1

    def loss_fn(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets) * times

    for epoch in range(epochs):
        total = torch.zeros((), device=place)
        for rows in my_batches(len(inputs), 32, epoch, rank, world_size):
            part = (model if gradients == "own" else parallel), inputs[rows], targets[rows]
            mean = train_step(*part, loss_fn, optimizer, place, zero=zero, returns="tensor") / times
            total = mean * len(rows) + (total if batches == "all" else 0)
        if loss in ("mean", "sum") or (loss == "rank 0" and rank == 0):
            dist.all_reduce(total)
        mean = total.item() / (len(inputs) if batches == "all" else 32)
        means.append(mean * (1 if loss == "mean" else world_size))
    if saves == "all" or rank == 0:
        state = (parallel if names == "module" else model).state_dict()
        torch.save({"model": state} if names == "around" else state, file)
    return means


def in_a_process(function, folder, port, rank):
    """Be one of two processes, as torchrun starts them; return what was seen in it."""
    os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    os.environ |= {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2") | {"MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    dist.distributed_c10d._get_default_timeout = lambda backend: timedelta(seconds=5)
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(ROWS, 4)
    nn.init.zeros_(model[2].bias)  # so that its changes are exact
    inputs[:, 0], targets = torch.arange(ROWS) / ROWS, torch.arange(ROWS) % 7 % 3
    copies = copy.deepcopy((model, inputs, targets))
    passes, forwards, file = [], [], Path(folder, f"{rank}.pt")

    def now():
        """Return the last bias, and the loss of each row with the weights as they are."""
        with torch.no_grad():
            copies[0].load_state_dict(model.state_dict())
            each = nn.functional.cross_entropy(copies[0](copies[1]), copies[2], reduction="none")
        return {"bias": copies[0][2].bias.tolist(), "each": each.tolist()}

    def note(module, given, outputs):
        if module is not model:
            return
        found.setdefault("device", str(model[0].weight.device))
        backend = "" if passes else dist.get_backend()  # an error, unless there is a group
        if outputs.requires_grad:
            rows = (given[0][:, 0].detach().cpu() * ROWS).round().long().clamp(0, ROWS - 1)
            own = outputs.detach().cpu().softmax(1) - nn.functional.one_hot(targets[rows], 3)
            one = now() | {"rows": rows.tolist(), "gradient": own.mean(0).tolist(), "backend": backend}
            forwards.append(one)
            outputs.register_hook(lambda grad: passes.append(one))

    def note_step(*_):
        if passes and model[2].bias.grad is not None:
            passes[-1]["used"] = model[2].bias.grad.tolist()

    register_module_forward_hook(note)  # not in the model, which may be saved as a whole
    register_optimizer_step_pre_hook(note_step)
    torch.manual_seed(rank)
    found = {}
    try:
        with bounded(3, MEMORY):
            value = function(model, inputs, targets, EPOCHS, str(file))
        values = value if isinstance(value, (list, tuple)) else [None]
        wrong = [f"a list with {kind_of(v)}" for v in values if kind_of(v) != "a number"]
        found["kind"] = "" if not wrong else wrong[0] if values is value else kind_of(value)
        found["losses"] = [number_of(v) for v in values]
    except BaseException as error:
        found |= exception(error, getattr(getattr(function, "__code__", None), "co_filename", ""))
    found.setdefault("device", str(model[0].weight.device))
    found["passes"] = passes or forwards
    return found | {"file": in_the_file(file, model.state_dict()), "end": now()}


def in_the_file(file, state):
    try:
        saved = torch.load(file, "cpu", weights_only=True)
        dicts = [each for each in saved.values() if isinstance(each, dict)]
        if any({str(name).removeprefix("module.") for name in each} >= state.keys() for each in dicts):
            return "a dictionary around the weights"
        wrapped = any(name.startswith("module.") for name in saved)
        right = saved.keys() == state.keys() and all(saved[name].equal(state[name].cpu()) for name in saved)
    except Exception as error:  # what is not a state_dict is refused in many ways
        return "" if isinstance(error, FileNotFoundError) else "something else"
    return "module." if wrapped else "the weights" if right else "other weights"


def named(found, known):
    """Return the name of what was found, given pairs of names and values."""
    return next((name for name, value in known if same(found, value)), "something else")


def of_the_gradients(both):
    """Return facts of the gradients at each step; without an optimizer, of what they did to the bias."""
    steps, ends = min(len(each["passes"]) for each in both), [each["end"]["bias"] for each in both]
    own = torch.tensor([[one["gradient"] for one in each["passes"][:steps]] for each in both])
    used = [[one.get("used") for one in each["passes"][:steps]] for each in both]
    if not any(map(any, used)):
        changed = "of all rows" if same(*ends) else "of its own rows"
        return {"gradients": changed if steps and any(map(any, ends)) else "never used"}
    for fresh in (True, False):
        sums = own if fresh else own.cumsum(1)
        known = [[(name, (n * mean).tolist()) for name, n in GRADIENTS] for mean in sums.mean(0)]
        names = {
            named(used[rank][step], [*known[step], ("of its own rows", sums[rank, step].tolist())])
            for rank in range(2)
            for step in range(own.shape[1])
        }
        if len(names) == 1 and names != {"something else"}:
            return {"gradients": names.pop(), "fresh": fresh}
    return {"gradients": "others"}


def observe_run(function, facts):
    facts |= copy.deepcopy(RIGHT)  # what an error hides is not wrong, so no other mistakes are tried

    with practice_gpu(count=2, force=True), tempfile.TemporaryDirectory() as folder:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        each_rank = (partial(in_a_process, function, folder, store.port, rank) for rank in range(2))
        both = in_processes(*each_rank)
        if None in both:
            facts["error"] = "the process ended by itself"
            return
        devices = [each["device"] for each in both]
        if devices == ["cuda:0", "cuda:0"]:
            facts["devices"] = devices  # where NCCL refuses that does not matter
            return
        errors = [{key: each[key] for key in ("error", "line")} for each in both if "error" in each]
        errors.sort(key=lambda each: re.search(WAITS, each["error"]) is not None)
        if errors:
            facts |= errors[0]
            if re.search(WAITS, errors[0]["error"]):
                facts["error"] = "RuntimeError: one process waits for the other"
            return
        facts["gloo"] = any(one["backend"] == "gloo" for each in both for one in each["passes"])
        facts["devices"], step = devices, max(1, len(both[0]["passes"]) // EPOCHS)
        epochs = [[each["passes"][first : first + step] for first in (0, step)] for each in both]
        times = Counter(row for each in both for one in each["passes"] for row in one["rows"])
        if times == dict.fromkeys(range(ROWS), 1):
            facts["epochs"] = 1
        elif times:
            facts |= of_the_rows([[[one["rows"] for one in epoch] for epoch in each] for each in epochs])
        facts |= of_the_gradients(both)
    facts["returns"] = [each["kind"] for each in both]
    known = known_losses(both, epochs, step)
    judged = (facts["rows"], facts["gradients"]) == ("to one", "of all rows")
    for rank, each in enumerate(both):
        name = named(each["losses"], known)
        if not each["kind"] and (name != "something else" or judged):
            facts["losses"][rank], _, last = name.partition(", ")
            facts["batches"] = last or facts["batches"]
    facts["saved by"] = sum(each["file"] != "" for each in both)
    facts["file"] = max(each["file"] for each in both)


def known_losses(both, epochs, step):
    """Return names and values of what may be returned: of the epoch's batches, or after it."""
    every, last, after, known = [], [], [], []
    for rank, each in enumerate(both):
        sums = [[sum(one["each"][row] for row in one["rows"]) for one in epoch] for epoch in epochs[rank]]
        every.append([sum(epoch) / ROWS for epoch in sums])
        last.append([epoch[-1] / 32 if epoch else 0.0 for epoch in sums])
        ends = [[*each["passes"], *[each["end"]] * (step + 1)][step]["each"], each["end"]["each"]]
        rows = [[row for one in epoch for row in one["rows"]] for epoch in epochs[rank]]
        after.append([sum(end[row] for row in part) / ROWS for end, part in zip(ends, rows, strict=True)])
        known.append(("of all rows", [sum(end) / ROWS for end in ends]))
    for parts, which in (every, ""), (after, ""), (last, ", last"):
        mean = [a + b for a, b in zip(*parts, strict=True)]
        known.append((f"of all rows{which}", mean))
        known += [(f"too large{which}", [k * x for x in mean]) for k in (2, 4, 32, 64, 128)]
        known += [(f"of its own rows{which}", [k * x for x in part]) for part in parts for k in (1, 2)]
    return known


LOSSES = {"of all rows": "the mean losses of all rows", "of its own rows": "losses of its own rows alone"}
LOSSES |= {"too large": "losses that are too large", "something else": "other numbers than the mean losses"}


def losses_in_words(found, _):
    one, other = (LOSSES[each] for each in found)
    return f"each process returns {one}." if one == other else f"rank 0 returns {one}, and rank 1 {other}."


WORDS = {
    "gloo": "the process group was started with gloo, which is for CPUs, and not with nccl.",
    "devices": "the models are on {found[0]} and {found[1]}.",
    "rows": "in one epoch, a row comes {found}.",
    "order": "the rows have the same order in each epoch (DistributedSampler: set_epoch).",
    "sizes": "a batch of one process has {found} rows, and not {expected}.",
    "gradients": {
        "never used": "no step changed the weights by the gradients.",
        ELSE: "the gradients of the steps are {found}, and not those of the mean loss of the 32 rows.",
    },
    "epochs": "the number of epochs",
    "returns": lambda found, _: (
        f"{' and '.join(f'rank {r} returns {kind}' for r, kind in enumerate(found) if kind)}, "
        "and not a list of numbers."
    ),
    "losses": losses_in_words,
    "batches": "the loss of an epoch is that of its last batch alone.",
    "saved by": "the number of processes that write the file",
    "file": {
        "": "there is no file.",
        "module.": "the names in it are module.0.weight and so on, and not 0.weight.",
        "a dictionary around the weights": "the state_dict is one entry of what is in the file.",
        "other weights": "the file has other weights than the model at the end.",
        ELSE: "what is in the file is not a state_dict of the model.",
    },
}

OF_MY_BATCHES = {
    "share=all": """Each process takes all rows. Then two GPUs take as long as one.
        Fix: Take the part of the rows that belongs to rank.""",
    "share=first": """All processes take the same part of the rows. The others are never trained on.
        Fix: Let rank choose the part.""",
    "order=its own": """Some rows come to several processes, and others to none: so it is if each process
        shuffles in its own way, or if rows are drawn more than once.
        Fix: Shuffle with a seed that all processes have: the epoch.""",
    "order=the same": """The rows have the same order in every epoch.
        Fix: Shuffle them, with the epoch as the seed; a DistributedSampler gets the epoch from
        set_epoch.""",
    "size=whole": """Each process takes batch_size rows at a step, so all together take world_size times as
        many.
        Fix: Divide batch_size by the number of processes.""",
}

OF_RUN = COMMON | {
    "device=first": """Both processes take GPU 0, and NCCL refuses that. “cuda” is GPU 0 until a process
        chooses another one.
        Fix: First of all, choose the GPU of LOCAL_RANK. Then “cuda” is that one.""",
    "group=no": """There is no process group, so the processes know nothing of one another.
        Fix: Join it before the model is wrapped.""",
    "gradients=own": """Each process steps with the gradients of its own rows, so the two models drift apart.
        Fix: Wrap the model in DistributedDataParallel, and call the wrapped one in the loop.""",
    "gradients=sum": """The gradients of the processes were added up, not averaged. That is a learning rate
        twice as high.
        Fix: Divide the sum by the number of processes. DistributedDataParallel averages by itself.""",
    "batches=last": """The loss of an epoch is that of its last batch alone.
        Fix: Add up the losses of all batches, and begin with 0 in each epoch.""",
    "loss=own": """That is the loss of the process's own rows: DistributedDataParallel averages gradients, and
        nothing else.
        Fix: Add up the losses over all processes, then divide by the number of all rows.""",
    "loss=sum": """all_reduce adds up what all processes have, and the sum was not divided by the number of
        all rows.
        Fix: Divide a sum of losses by the rows of all processes, or a sum of means by their number.""",
    "loss=rank 0": """One process comes to all_reduce, or to backward(), and waits for the other one, which
        does not.
        Fix: Let all processes call it, outside of the if about the rank.""",
    "saves=all": """Both processes save. They write to one file at the same time, and that can spoil it.
        Fix: Save in one process.""",
    "names=module, around": """A plain model cannot load the file: its names begin with “module.”, as in the
        wrapped model, or there is a dictionary around the weights.
        Fix: Save the state_dict() of the model that is inside the wrapped one, and nothing around it.""",
}

TASKS = (
    Task(
        does="returns the batches of one process, as numbers of rows",
        reference=my_batches,
        observe=observe_my_batches,
        gpu=False,
        begin="Shuffle the numbers of all rows, in each process in the same way. Take this process's part of "
        "them, and cut it into batches.",
        words=WORDS,
        table=OF_MY_BATCHES,
    ),
    Task(
        does="trains one model in all processes, and saves it once",
        reference=run,
        observe=observe_run,
        gpu=False,
        apart=True,
        begin="Begin with the lines of the lesson that choose the GPU and join the process group. Then write "
        "the loop as for one GPU, with the batches of my_batches, and wrap the model.",
        words=WORDS,
        table=OF_RUN,
        only="device; group; gradients; zero=never; batches; loss; saves; names",
    ),
)
