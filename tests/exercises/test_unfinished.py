"""Functions that are half written, or wrong in ways that no exercise knows: no mistake is made up."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from gpulesson_tools.exercises import find
from gpulesson_tools.exercises.contract import Referee, seen

ROOT = Path(__file__).parents[2]
STEP = "train_step(model, inputs, targets, loss_fn, optimizer, device)"
LOOP = "losses(pixels, labels, steps)"
BEGUN = """
    torch.manual_seed(1)
    model = MLP(784, 64, 10).to(pixels.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for step in range(steps):
        images, targets = batch(pixels, labels, step)
        kept.append(torch.nn.functional.cross_entropy(model(images), targets).detach())
"""
PROGRAMS = {
    "two of five calls": ("04", STEP, "model.train(); loss_fn(model(inputs.to(device)), targets.to(device))"),
    "backward without brackets": (
        "13",
        "accumulate(model, loss_fn, inputs, labels, rows)",
        "model.zero_grad()\n    for x, y in zip(inputs.split(rows), labels.split(rows)):\n"
        "        (loss_fn(model(x), y) * len(x) / len(inputs)).backward",
    ),
    "a first line": (
        "13",
        "accumulate(model, loss_fn, inputs, labels, rows)",
        "model.zero_grad()",
    ),
    "a loop that computes nothing": (
        "04",
        "accuracy(model, batches, device)",
        "model.eval()\n    right = 0\n    for inputs, targets in batches:\n        pass\n    return right",
    ),
    "no backward": ("11", LOOP, f"{BEGUN}    return torch.stack(kept).tolist()"),
    "a return in the loop": ("11", LOOP, f"{BEGUN}        return torch.stack(kept).tolist()"),
    "only a warm-up": ("08", "stopwatch(machine, work)", "for _ in range(20):\n        machine.run(work)"),
    "an empty list": (
        "03",
        "train(model, X, y, loss_fn, optimizer, epochs)",
        "losses = []\n    for _ in range(epochs):\n        ...\n    return losses",
    ),
}
SEEN_FIRST = {
    "two of five calls": "backwards",
    "backward without brackets": "backward",
    "a first line": "seen",
    "a loop that computes nothing": "rows",
    "no backward": "backward",
    "a return in the loop": "backward",
    "only a warm-up": "measured",
    "an empty list": "trained",
}


@cache
def referee_of(number: str, name: str) -> Referee:
    return Referee(next(task for task in find(number).tasks() if task.name == name))


def written(number: str, head: str, body: str):
    """The solution's file with one function written anew."""
    space: dict = {"__name__": "solution"}
    exec((ROOT / f"examples/solutions/solution_{number}.py").read_text(encoding="utf-8"), space)
    exec(f"def {head}:\n    {body}\n", space)
    return space[head.partition("(")[0]]


@pytest.mark.slow
@pytest.mark.parametrize("what", PROGRAMS)
def test_of_half_a_function_the_next_step_is_said_and_no_mistake_named(what):
    number, head, body = PROGRAMS[what]
    referee = referee_of(number, head.partition("(")[0])
    found = referee.explain(seen(referee.task, written(number, head, body)))
    assert not found.mistakes and found.unexplained == (SEEN_FIRST[what],)


WARM_UP = "for _ in range(20): one_run(machine, work)\n    "
WRAPPED = """torch.cuda.set_device(rank := int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    parallel = nn.parallel.DistributedDataParallel(model.cuda())
"""
OUTPUTS = """    for epoch in {}:
        for rows in my_batches(len(inputs), 32, epoch, rank, 2):
            outputs = parallel(inputs[rows].cuda())
"""
BACKWARD = "            outputs.sum().backward()\n"
NOTHING = {"weights=missing", "adam=missing", "random=missing", "counted=missing"}
RUN = "run(model, inputs, targets, epochs, file)"
ASKING = """times = []
    for _ in range(20):
        start = machine.now
        machine.run(work)
        times.append(machine.now - start)
    machine.synchronize()
    return statistics.median(times)"""
SIXTY_FOUR = """for first in range(0, len(pictures), 64):
        pixels, labels = pictures[range(first, min(first + 64, len(pictures)))]
        yield floats(pixels, device), labels.to(device)"""
ONE_BATCH = """model.train()
    for inputs, labels in batches:
        loss = loss_fn(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()"""
SHARES = "confusion.diag() / confusion.sum(dim=1)"
WEIGHTS = "torch.randn(10, 784, device=device)"
PRODUCT = f"torch.rand(count, 784, device=device) @ {WEIGHTS}.T"
ON_CUDA = PRODUCT.replace("device=device", "device='cuda'")
TRAIN = "train(model, X, y, loss_fn, optimizer, epochs)"
LOSSES = """losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = loss_fn(model(X), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())"""
ITEMS = "return [loss_fn(model(x), y).item for x, y in batches]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "head", "body", "kinds", "left"),
    [
        ("05", "per_class(confusion)", "return confusion.diag().tolist()", {"over=none"}, ()),
        ("05", "per_class(confusion)", "return [60.0, 37.0, 53.0, 0.0]", set(), ("empty",)),
        ("05", "per_class(confusion)", "return confusion / 2", set(), ("kind",)),
        ("05", "per_class(confusion)", f"return ({SHARES}).tolist()[:3]", set(), ("count",)),
        (
            "05",
            "per_class(confusion)",
            f"s = {SHARES}\n    return s[~s.isnan()].tolist()",
            {"empty=left out"},
            (),
        ),
        ("01", "scores(count, device)", f"w = {WEIGHTS}", {"returns=nothing"}, ("on the GPU",)),
        ("01", "scores(count, device)", f"return ({PRODUCT}).double()", set(), ()),
        (
            "01",
            "scores(count, device)",
            f"return {ON_CUDA}",
            {"asked=cuda"},
            (),
        ),
        (
            "01",
            "scores(count, device)",
            f"return {PRODUCT} + torch.randn(10, device=device) * 9",
            set(),
            ("product",),
        ),
        (
            "01",
            "scores(count, device)",
            "return torch.zeros(count, 10, device=device)",
            set(),
            ("on the GPU",),
        ),
        ("09", "feed(pictures, batch_size, device)", "yield 5", set(), ("calls",)),
        (
            "09",
            "feed(pictures, batch_size, device)",
            "import torch; yield torch.tensor(5)",
            set(),
            ("calls",),
        ),
        ("01", "scores(count, device)", f"return ({PRODUCT}).relu()", set(), ("values",)),
        (
            "01",
            "scores(count, device)",
            f"return {PRODUCT.replace('.T', '.reshape(784, 10)')}",
            set(),
            ("product",),
        ),
        ("03", TRAIN, f"{LOSSES}\n    return sum(losses) / epochs", set(), ("kind",)),
        ("07", "batch_losses(model, loss_fn, batches)", ITEMS, set(), ("kind",)),
        ("06", "save(path, model, optimizer, epoch)", "torch.save({}, path)", NOTHING, ()),
        ("08", "stopwatch(machine, work)", f"{WARM_UP}times = []", {"returns=nothing"}, ()),
        (
            "08",
            "stopwatch(machine, work)",
            f"{WARM_UP}return sum(one_run(machine, work) for _ in range(30)) / 7",
            set(),
            ("summary",),
        ),
        (
            "08",
            "stopwatch(machine, work)",
            f"{WARM_UP}return min(one_run(machine, work) for _ in range(20))",
            {"summary=fastest"},
            (),
        ),
        ("08", "stopwatch(machine, work)", f"{WARM_UP}{ASKING}", {"after=no"}, ()),
        ("09", "feed(pictures, batch_size, device)", SIXTY_FOUR, set(), ("size",)),
        ("10", "train(model, optimizer, loss_fn, batches)", ONE_BATCH, {"batch=first"}, ()),
        ("14", RUN, WRAPPED, set(), ("gradients",)),
        ("14", RUN, WRAPPED + OUTPUTS.format("range(epochs)"), set(), ("gradients",)),
        ("14", RUN, WRAPPED + OUTPUTS.format("range(1)") + BACKWARD, set(), ("epochs",)),
    ],
)
def test_what_is_not_there_yet_makes_nothing_else_wrong(number, head, body, kinds, left):
    referee = referee_of(number, head.partition("(")[0])
    found = referee.explain(seen(referee.task, written(number, head, body)))
    assert {each.kind for each in found.mistakes} == kinds and found.unexplained == left


LBFGS = """
    torch.manual_seed(seed)
    model = make_model().to(device).train()
    X, y, loss_fn = X_train.to(device), y_train.to(device), nn.CrossEntropyLoss()
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = loss_fn(model(X), y)
        loss.backward()
        return loss

    for _ in range(epochs):
        optimizer.step(closure)
    return accuracy(model, X_test.to(device), y_test.to(device))
"""


@pytest.mark.slow
def test_an_optimizer_that_calls_the_model_again_is_one_that_you_like():
    head = "run(make_model, X_train, y_train, X_test, y_test, device, epochs, seed)"
    referee = referee_of("03", "run")
    assert referee.explain(seen(referee.task, written("03", head, LBFGS))).right


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs", "kinds"), [("range(1, epochs)", {"passes=one less"}), ("range(1)", set())]
)
def test_one_epoch_alone_is_not_one_too_few(epochs, kinds):
    body = f"""model.to(device)
    optimizer, loss_fn = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()
    for _ in {epochs}:
        for batch in DataLoader(train_set, batch_size=32, shuffle=True):
            train_step(model, *batch, loss_fn, optimizer, device)
    return accuracy(model, DataLoader(test_set, batch_size=64), device)"""
    referee = referee_of("04", "run")
    facts = seen(referee.task, written("04", "run(model, train_set, test_set, device, epochs)", body))
    found = referee.explain(facts)
    assert {each.kind for each in found.mistakes} == kinds
    assert found.unexplained == (() if kinds else ("epochs",))
