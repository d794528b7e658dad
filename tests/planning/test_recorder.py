from __future__ import annotations

import copy
import itertools
from collections import Counter

import pytest
import torch
from independent import counted, rounded
from tasks import SMALL, resnet50
from torch import nn
from torch.optim import optimizer as optimizer_module
from torch.utils.data import DataLoader, TensorDataset, dataloader

from gpulesson.data import Batches
from gpulesson_tools.planning.recording.cuda_rules import memory_as_on_cuda
from gpulesson_tools.planning.recording.record import BACKWARD, FORWARD, OPTIMIZER, Record
from gpulesson_tools.planning.recording.recorded import record_function
from gpulesson_tools.planning.recording.recorder import Recorder
from gpulesson_tools.programs.execution import Finished
from practice_gpu import practice_gpu


def recorded(program, steps: int = 2, **options) -> Record:
    """Run a function on the practice GPU, and return what was recorded."""
    with practice_gpu("4096 GiB", force=True) as gpu:
        recorder = Recorder(gpu, steps, **options)
        try:
            with recorder:
                program()
        except Finished:
            pass
    return recorder.record


def training(task, make=torch.optim.Adam):
    """Return a program that trains without end."""

    def program() -> None:
        model, batch, loss_of = task
        model.to("cuda")
        optimizer = make(model.parameters())
        while True:
            inputs = batch("cuda")
            optimizer.zero_grad()
            loss_of(model, *inputs).backward()
            optimizer.step()

    return program


def alive(record: Record, position: int) -> Counter:
    """Return the bytes of each kind that are there just before an event."""
    kinds: Counter = Counter()
    for each in record.allocations:
        if each.born < position and not 0 <= each.died < position:
            kinds[each.kind] += rounded(each.nbytes)
    return kinds


def counts(record: Record) -> dict[str, int]:
    """Return bytes by kind in the last step: gradients at its end, the others when backward begins."""
    start = record.ends[-2]
    backward = next(a.born for a in record.allocations if a.born > start and a.phase == BACKWARD)
    kinds = alive(record, backward)
    return {**kinds, "gradients": alive(record, record.ends[-1])["gradients"]}


@pytest.mark.parametrize(
    ("name", "make"),
    [
        *itertools.product(SMALL, [torch.optim.Adam, torch.optim.SGD]),
        pytest.param("resnet50", torch.optim.Adam, marks=[pytest.mark.slow, pytest.mark.thorough]),
    ],
)
def test_kinds_are_what_pytorchs_own_hooks_count(name, make):
    task = {**SMALL, "resnet50": resnet50}[name]
    expected = counted(task(), make)
    found = counts(recorded(training(task(), make)))
    for kind in ("parameters", "gradients", "optimizer state"):
        assert found.get(kind, 0) == expected[kind], kind
    assert found["activations"] == pytest.approx(expected["activations"], rel=0.05)


def test_every_allocation_has_phase_module_and_line():
    record = recorded(training(SMALL["mlp"]()))
    last = [each for each in record.allocations if each.step == 1]
    assert {each.phase for each in last} == {FORWARD, BACKWARD, OPTIMIZER}
    first_weight = next(each for each in last if each.kind == "gradients" and each.nbytes == 4 * 784 * 128)
    assert first_weight.place.module == "0", "in backward, that of the forward operator"
    assert all(each.place.filename.endswith(("test_recorder.py", "tasks.py")) for each in last)
    assert all(each.place.line for each in last)


def test_deaths_follow_births_and_come_once():
    record = recorded(training(SMALL["cnn"]()))
    seen: set[int] = set()
    for position, event in enumerate(record.events):
        if event >= 0:
            assert record.allocations[event].born == position
            seen.add(event)
        else:
            assert record.allocations[~event].died == position
            seen.remove(~event)
    assert seen == {n for n, each in enumerate(record.allocations) if each.died == -1}


def replaced() -> list[object]:
    """Return what a recorder replaces in PyTorch, and its lists of hooks."""
    steps = optimizer_module._global_optimizer_pre_hooks, optimizer_module._global_optimizer_post_hooks
    return [
        *(list(each) for each in steps),
        nn.Module.__call__,
        dataloader._BaseDataLoaderIter.__next__,
        Batches.__iter__,
        torch.optim.Optimizer.__init__,
    ]


def test_the_program_ends_after_the_steps_and_leaves_nothing_behind():
    before, during = replaced(), []
    task = training(SMALL["mlp"]())

    def program():
        during.extend(replaced())
        task()

    assert recorded(program, steps=3).steps == 3
    assert all(one != other for one, other in zip(before, during, strict=True))
    assert replaced() == before


def test_a_program_that_never_trains_has_no_steps():
    def program():
        with torch.no_grad():
            nn.Linear(4, 2).to("cuda")(torch.ones(3, 4, device="cuda"))

    record = recorded(program)
    assert record.steps == 0 and record.allocations


def test_with_two_optimizers_a_step_holds_one_of_each():
    def program():
        nets = [nn.Linear(8, 8).to("cuda") for _ in range(2)]
        optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
        while True:
            for net, optimizer in zip(nets, optimizers, strict=True):
                net(torch.ones(4, 8, device="cuda")).sum().backward()
                optimizer.step()

    record = recorded(program, steps=3)
    updates = Counter(
        each.step for each in record.operations if each.phase == OPTIMIZER and "foreach" in each.operator
    )
    assert updates[1] == updates[2] == 2


def test_the_record_waits_for_an_optimizer_that_steps_more_rarely():
    def program(every: int):
        nets = [nn.Linear(50, 50).to("cuda") for _ in range(2)]
        often, rarely = (torch.optim.Adam(net.parameters()) for net in nets)
        for step in itertools.count(1):
            nets[1](nets[0](torch.ones(4, 50, device="cuda"))).sum().backward()
            often.step()
            if step % every == 0:
                rarely.step()

    weights = rounded(4 * 50 * 50) + rounded(4 * 50)
    rare = recorded(lambda: program(5), steps=3)
    assert rare.steps == 6 and not rare.notes
    assert alive(rare, rare.ends[-1])["optimizer state"] == 4 * weights
    never = recorded(lambda: program(1000), steps=3)
    assert "1 optimizer(s) took no step" in never.notes[0]


def test_what_was_there_before_is_counted():
    with practice_gpu("64 MiB", force=True):
        model = nn.Linear(1000, 1000).to("cuda")

        def program():
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            while True:
                model(torch.ones(2000, 1000, device="cuda")).square().sum().backward()  # more than there is
                optimizer.step()
                torch.ones(2**26, device="cuda")

        record = record_function(program, 2)
        assert alive(record, record.ends[-1])["parameters"] == rounded(4 * 10**6) + rounded(4 * 1000)
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(2**26, device="cuda")


def test_what_outlasts_its_step_without_gradients_is_not_an_activation():
    def program():
        model = nn.Linear(300, 300).to("cuda")
        average = copy.deepcopy(model).requires_grad_(False)
        images = torch.randn(1000, 300, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        while True:
            model(images[:64]).square().sum().backward()
            optimizer.step()
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new.detach(), 0.1)

    record = recorded(program)
    kinds = alive(record, record.ends[-1])
    assert kinds["other"] == kinds["parameters"] == rounded(4 * 300 * 300) + rounded(4 * 300)
    assert kinds["data"] == rounded(4 * 1000 * 300)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_inputs_are_activations(reentrant):
    from torch.utils.checkpoint import checkpoint

    blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()) for _ in range(3)]

    def program():
        model = nn.Sequential(*blocks).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        while True:
            x = torch.ones(32, 64, device="cuda").requires_grad_()
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            x.sum().backward()
            optimizer.step()

    record = recorded(program)
    backward = next(a.born for a in record.allocations if a.step == 1 and a.phase == BACKWARD)
    kept = alive(record, backward)["activations"]
    assert kept == 3 * 32 * 64 * 4 + 2 * 512, "the results of the blocks, the sum and its gradient"


def test_gradients_of_lbfgs_are_gradients():
    def program():
        model = nn.Linear(100, 100).to("cuda")
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(4, 100, device="cuda")).square().sum()
            loss.backward()
            return loss

        while True:
            optimizer.step(closure)

    record = recorded(program)
    assert alive(record, record.ends[-1])["gradients"] == rounded(4 * 100 * 100) + rounded(400)


def test_of_a_program_that_catches_the_end_the_record_is_handed_over():
    handed = []

    def program():
        parameter = nn.Parameter(torch.ones(3, device="cuda"))
        optimizer = torch.optim.SGD([parameter], 0.1)
        for _ in range(20):
            parameter.sum().backward()
            try:
                optimizer.step()
            except BaseException as error:
                if handed:
                    raise KeyboardInterrupt from error

    with pytest.raises(KeyboardInterrupt):
        recorded(program, ignored=handed.append)
    assert handed[0].steps == 5, "three more than were asked for"


@pytest.mark.parametrize("loader", ["DataLoader", "Batches"])
def test_the_batch_size_is_that_of_the_loader_that_feeds_the_steps(loader):
    def program():
        data = torch.randn(40, 8), torch.randint(2, (40,))
        held_out = DataLoader(TensorDataset(*data), batch_size=5)
        batches = DataLoader(TensorDataset(*data), batch_size=10)
        if loader == "Batches":
            batches = Batches(*data, batch_size=10)
        model = nn.Linear(8, 2).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        while True:
            for inputs, _ in held_out:
                model(inputs.to("cuda"))
            for inputs, targets in batches:
                nn.functional.cross_entropy(model(inputs.to("cuda")), targets.to("cuda")).backward()
                optimizer.step()

    assert recorded(program).batch_size == 10


def test_waits_are_counted_by_step_and_line():
    def program():
        parameter = nn.Parameter(torch.ones(3, device="cuda"))
        optimizer = torch.optim.SGD([parameter], 0.1)
        while True:
            loss = parameter.sum()
            loss.backward()
            loss.item(), loss.item()
            optimizer.step()

    waits = [each for each in recorded(program).waits if each.call == ".item()"]
    assert [(each.step, each.count) for each in waits] == [(0, 2), (1, 2)]


def test_dropout_keeps_a_mask_of_bytes():
    def program():
        model = nn.Sequential(nn.Linear(100, 100), nn.Dropout(0.5)).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        while True:
            model(torch.ones(64, 100, device="cuda")).sum().backward()
            optimizer.step()

    with memory_as_on_cuda():
        record = recorded(program)
    masks = [
        a.nbytes for a in record.allocations if a.step == 1 and "dropout" in a.operator and a.phase == FORWARD
    ]
    assert sorted(masks) == [6400, 4 * 6400]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_dry_run_has_the_same_events_and_costs(name):
    torch.manual_seed(0)
    computed = recorded(training(SMALL[name]()))
    dry = recorded(training(SMALL[name]()), dry=True)
    assert dry.events == computed.events
    assert [each.nbytes for each in dry.allocations] == [each.nbytes for each in computed.allocations]
    assert [each.flop for each in dry.operations] == [each.flop for each in computed.operations]
