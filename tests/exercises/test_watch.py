"""What the observers see, and that they leave nothing behind."""

from __future__ import annotations

import json
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import optimizer as optimizers

from gpulesson import data, evaluation
from gpulesson.exercises.trace import Trace
from gpulesson.exercises.watch import observer as watch
from gpulesson.exercises.watch.rows import Part, Scaling, sketch
from gpulesson.exercises.watch.tensors import Reader
from gpulesson.exercises.watch.training import Training
from gpulesson.exercises.watch.values import Values
from gpulesson.practice import practice_gpu
from gpulesson.practice.patches import Patches


def state() -> list[object]:
    """Everything that is replaced while a program is watched."""
    owners = (torch, torch.Tensor, F, nn.Module, torch.autograd, torch.optim.Optimizer, torch.random)
    held = [dict(vars(owner)) for owner in owners]
    hooks = nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks
    steps = optimizers._global_optimizer_pre_hooks
    return [
        held,
        len(hooks[0]),
        len(hooks[1]),
        len(steps),
        sys.stdout,
        evaluation.evaluate,
        data.load_fashion_mnist,
    ]


@pytest.fixture
def watched():
    """An observer inside which a practice GPU is open."""
    with watch.observed() as observer, practice_gpu(force=True) as gpu:
        watch.attach(observer, gpu)
        yield observer


def test_nothing_is_left_behind():
    nn.Linear(2, 1)(torch.zeros(1, 2))
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # what PyTorch sets up on first use
    before = state()
    with pytest.raises(KeyError), watch.observed() as observer, practice_gpu(force=True) as gpu:
        watch.attach(observer, gpu)
        assert state() != before
        raise KeyError
    assert state() == before


def train(model, steps: int, zero: bool = True) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    inputs = torch.ones(8, 2, device="cuda")
    for _ in range(steps):
        if zero:
            optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), inputs[:, :1])
        loss.backward()
        optimizer.step()
    return optimizer


def test_a_training_is_seen_as_it_was(watched):
    torch.manual_seed(0)  # a start from which the loss falls
    model = nn.Linear(2, 1).cuda()
    train(model, 5)
    with torch.no_grad():
        model.eval()(torch.zeros(3, 2, device="cuda")).sum().item()
    trace = Trace.from_dict(json.loads(json.dumps(watched.trace().to_dict())))
    (seen,) = trace.models
    assert (seen.name, seen.devices, seen.stepped, seen.moody) == ("Linear", ["cuda"], True, False)
    (optimizer,) = trace.optimizers
    assert (optimizer.name, optimizer.steps, optimizer.params_on) == ("Adam", 5, ["cuda"])
    assert not (optimizer.accumulated or optimizer.zeroed_late or optimizer.strange)
    assert trace.backwards == len(trace.values) == 5 and trace.values[-1] < trace.values[0]
    assert [(call.trained, call.training, call.count) for call in trace.calls] == [
        (True, True, 5),
        (False, False, 1),
    ]
    assert [(read.call, read.count) for read in trace.reads] == [(".item()", 1)]  # not the observer's own


def test_on_a_real_gpu_the_observers_readings_are_not_the_learners(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)  # as there, where readings are seen by replacements
    reader, patches = Reader(), Patches()
    values = Values(Training(reader))
    values.plan_readings(patches)
    patches.apply()
    try:
        loss = torch.ones(())
        assert reader.number(loss) == reader.on_host(loss).item() == 1.0
        with pytest.raises(KeyError), reader.unnoticed():
            raise KeyError
        loss.cpu()
    finally:
        patches.undo()
    assert sorted((read.call, read.count) for read in values.reads.values()) == [
        (".cpu()", 1),
        (".item()", 1),
    ]


def test_what_is_compiled_is_watched_as_it_was_written():
    with watch.observed() as observer:  # as on a real GPU; the practice GPU compiles nothing either
        model = nn.Linear(2, 1)
        assert torch.compile(model, fullgraph=True) is model

        @torch.compile
        def once(x):
            return model(x)

        @torch.compile(fullgraph=True, dynamic=False)
        def twice(x):
            return model(model(x).expand(1, 2))

        model.compile(fullgraph=True)
        x = torch.ones(1, 2)
        assert torch.equal(once(x), model(x)) and twice(x).shape == (1, 1)
        assert sum(call.count for call in observer.trace().calls) == 4


def test_gradients_that_add_up_are_seen(watched):
    train(nn.Linear(2, 1).cuda(), 4, zero=False)
    (optimizer,) = watched.trace().optimizers
    assert (optimizer.steps, optimizer.accumulated) == (4, 3)


def test_two_backward_passes_before_one_step_are_no_fault(watched):
    model = nn.Linear(2, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.ones(8, 2, device="cuda")
    for _ in range(4):
        for half in inputs.split(4):
            model(half).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    (seen,) = watched.trace().optimizers
    assert (seen.steps, seen.accumulated) == (4, 0)


def test_the_learners_tensors_stay_what_they_were(watched):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)).cuda()
    train(model, 5)
    inside = [parameter.detach().cpu().clone() for parameter in model.parameters()]
    draw = torch.rand(3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)).cuda()
    watched.training.stop()
    train(model, 5)
    watched.training.start()
    assert all(torch.equal(a, b.cpu()) for a, b in zip(inside, model.parameters(), strict=True))
    assert torch.equal(draw, torch.rand(3))


def test_what_counts_operators_counts_none_of_the_observers(watched, count_operators):
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.ones(8, 2), torch.zeros(8, dtype=torch.int64)

    def step() -> None:
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    step()  # leaves gradients behind, which are looked at before the next pass
    counts = count_operators(step)  # the observers read the loss, the logits and the gradients meanwhile
    assert len(watched.trace().values) == 2 and watched.trace().optimizers[0].accumulated == 1
    assert not counts.keys() & {"aten.clone", "aten._local_scalar_dense", "aten.argmax", "aten.abs"}


@pytest.mark.parametrize("kept", [True, False])
def test_kept_histories_are_counted(watched, kept):
    model, losses = nn.Linear(2, 1).cuda(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.ones(8, 2, device="cuda")
    for _ in range(20):
        loss = F.mse_loss(model(inputs), inputs[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss if kept else loss.detach())
    (seen,) = watched.trace().losses
    assert (seen.kept > 10) == kept and len(losses) == 20


def prepared(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    order = torch.randperm(len(rows))
    return {
        "each column": ((rows - rows.mean(0)) / (rows.std(0) + 1e-6))[order],
        "one number": (3 * rows - 5)[order],
        "as it was": rows[order],
    }


@pytest.mark.parametrize("way", prepared(torch.rand(9, 2)))
@pytest.mark.parametrize("width", [4, 784], ids=["narrow", "wide"])
def test_scaled_and_shuffled_rows_are_known_again(width, way):
    torch.manual_seed(0)
    rows, others = (torch.randint(17, (400, width)) / 16 for _ in range(2))
    rows[7] = rows[3]  # twins
    rows[:, 1] = 0.5  # the same in every row
    if width > 256 and way == "each column":
        pytest.skip("of wide rows one number each is kept, and only one scaling for all columns can be found")
    known = Part.of(rows, torch.arange(400))
    torch.manual_seed(1)
    seen = sketch(prepared(rows)[way])
    scaling = Scaling.fit(known.rows, seen)
    torch.manual_seed(1)
    order = torch.randperm(400)
    found = scaling.applied(known.rows, known.labels).find(scaling.marks(seen))
    assert torch.equal(rows[found], rows[order]) and not bool((found == 7).any()), "twins have one place"
    assert Scaling.fit(known.rows, sketch(prepared(others)[way])) is None, "other rows"
    assert Scaling.fit(known.rows, seen[1:]) is None and Scaling.fit(known.rows, seen * float("nan")) is None
    changed = seen.clone()
    changed[0] = seen[1]
    assert Scaling.fit(known.rows, changed) is None, "one row in place of another"
